// Command shoal is the whole server in one binary: a cluster in one process (shoal start), or one server of it under the
// real servers' own command lines (shoal mongod, shoal mongos, also by the name of a link to the binary).
//
// The path of a start, by function name:
//
//	main → run → parse (option tables, configuration file) → forkAndWait where asked → serve
//	serve: configureLog → host.obey (signals) → bringUp: lockData → startServer or startCluster (assemble.go) → announce
//	→ a signal, or the shutdown command → roles.Stop → dataLock.release → exit code
//
// Invariants:
//
//  1. Both ways of starting run the same code: a server of `shoal start` is made by the functions that make one of
//     `shoal mongod`.
//  2. The line "Waiting for connections" is written once, after every port accepts.
//  3. Exit codes are the real servers': 0 clean, 2 bad options, 48 a port is taken, 100 the start failed.
//  4. assemble.go alone knows how the roles are made; everything else in this package knows processes and options.
package main
