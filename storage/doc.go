// Package storage is the execution layer on pebble: records and indexes kept by version, the catalog, units of work,
// the oplog, and the one ordered commit.
package storage
