// Package queryanalysis implements a member's part in the sampling of queries (packages command/sampling and command/analyzer): the primary
// that stores the configurations divides their rates among the samplers (Manager.runRefresh), members of a replica set sample, and shards
// record what sampled updates have changed.
package queryanalysis
