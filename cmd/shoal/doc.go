// Command shoal is the whole server in one binary: a cluster in one process (shoal start), or one server with the real
// servers' command lines (shoal mongod, shoal mongos, or by the name of a link to the binary).
//
// The path of a start, by function name:
//
//	main → run → parse (option tables, configuration file) → forkAndWait if requested → serve
//	serve: configureLog → host.obey (signals) → bringUp: lockData → startServer or startCluster (assemble.go) → announce
//	→ a signal, or the shutdown command → roles.Stop → dataLock.release → exit code
//
// Invariants:
//
//  1. Both ways of starting run the same code: a server of `shoal start` is made by the functions that make one of
//     `shoal mongod`.
//  2. The line "Waiting for connections" is written once, after every port accepts connections.
//  3. Exit codes are the real servers': 0 clean, 2 bad options, 48 a port is in use, 100 the start failed.
//  4. Only assemble.go knows how the roles are made; everything else in this package deals with processes and options.
package main
