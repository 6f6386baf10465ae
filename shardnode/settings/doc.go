// Package settings keeps what administrators set for a whole set or cluster, each in a document that every member reads: the
// default concerns, cluster parameters, query settings, the feature compatibility version, and whether users may write.
//
//	setDefaultRWConcern, setClusterParameter, … ── check ──► Settings ── Docs.Put ──► config.settings, config.clusterParameters, …
//	                                                            ▲                          │
//	                          Load: at start, at step-up, ──────┴──────────────────────────┘
//	                          when another member wrote them
//	every command ──► CheckBlocked, Apply     a plan ──► Restrict
//
// The path of a setting: its command checks it, stores the document, and keeps it in memory (runSetClusterParameter,
// runSetQuerySettings). Members that are not primary see the document come with the log and Load it anew. Operations read what
// is in memory alone.
//
// Invariants
//
//  1. What is in memory was stored before, or is what holds without a document.
//  2. An operation of the cluster's own nodes is given neither concerns nor time limits, and is not refused.
//  3. Commands that change one kind of setting run one after another.
package settings
