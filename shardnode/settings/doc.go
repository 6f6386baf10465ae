// Package settings holds the settings of a whole set or cluster, each in a document that every member reads: the default
// concerns, cluster parameters, query settings, the feature compatibility version, and whether users may write.
//
//	setDefaultRWConcern, setClusterParameter, … ── check ──► Settings ── Docs.Put ──► config.settings, config.clusterParameters, …
//	                                                            ▲                          │
//	                          Load: at start, at step-up, ──────┴──────────────────────────┘
//	                          when another member wrote them
//	every command ──► CheckBlocked, Apply     a plan ──► Restrict
//
// The path of a setting: its command checks it, stores the document, and keeps it in memory (runSetClusterParameter,
// runSetQuerySettings). Secondaries receive the document with the log and call Load again. Operations read only what is in
// memory.
//
// Invariants
//
//  1. A value in memory was stored before, or is the default that applies without a document.
//  2. Operations of the cluster's own nodes get neither default concerns nor time limits, and are not refused.
//  3. Commands that change one kind of setting run one after another.
//  4. What the config server decides on without a time, the feature compatibility version and what users may not do, a shard stores only as the config server has it (asDecided).
package settings
