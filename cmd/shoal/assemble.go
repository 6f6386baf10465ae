package main

import "github.com/shoaldb/shoal/wire/mongoerr"

// startServer makes one server: a data-bearing node (standalone, member of a set, shard, config server), or a router.
func startServer(c *config, h *host) (*roles, error) {
	return nil, mongoerr.Newf(mongoerr.NotImplemented, "%s", c.Program)
}

// startCluster makes what `shoal start` asks for, of the same parts.
func startCluster(c *config, h *host) (*roles, error) {
	return nil, mongoerr.Newf(mongoerr.NotImplemented, "--topology %s", c.Topology)
}
