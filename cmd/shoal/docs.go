package main

import (
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// addShardCommand asks the config server to add a shard.
func addShardCommand(conn, shard string) []byte {
	return msg.Doc(&msg.AddShard{Connection: conn, Name: shard})
}

// describeRouter appends a router's part of hello.
func describeRouter(t *command.Topology, hello bool, dst []byte) []byte {
	name := "ismaster"
	if hello {
		name = "isWritablePrimary"
	}
	dst = value.Append(dst, name, value.NewBool(true))
	dst = value.Append(dst, "msg", value.NewString("isdbgrid"))
	return t.AppendVersion(dst)
}

// rehostCommand sets a shard's address in config.shards.
func rehostCommand(conn, shard string) []byte {
	set := value.NewDocument(value.Doc(value.F("$set", value.NewDocument(value.Doc(value.F("host", value.NewString(conn)))))))
	q := value.Doc(value.F("_id", value.NewString(shard)))
	return msg.Doc(&msg.Update{DB: "config", Coll: "shards", Updates: []msg.UpdateStatement{{Query: q, Change: set}}})
}
