package router_test

import (
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A shard whose chunk moves loses its power, and with it a write whose session's history the recipient has fetched already. The migration fails. The client, which has had no reply, sends the
// write again once another migration has succeeded: it is executed. It was answered as one that had been executed before, and was lost.
func TestHistoryOfALostWriteIsNotFetched(t *testing.T) {
	t.Parallel()
	p := newPoweredCluster(t, 2)
	p.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	p.run("admin", `{"shardCollection": "db.u", "key": {"_id": 1}}`)
	p.run("db", `{"insert": "u", "documents": [{"_id": 1, "x": 0}], "writeConcern": {"w": "majority"}}`)
	const inc = `{"update": "u", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]`
	const move = `{"moveChunk": "db.u", "find": {"_id": 1}, "to": "shard1"}`
	reached, release := p.hangOn("shard0", "moveChunkHangAtStep4", "any", "any")
	moved := make(chan bson.M, 1)
	go func() { moved <- p.raw("admin", move) }()
	reached()
	p.run("db", asSession(inc+`, "writeConcern": {"w": 1, "j": false}}`, 1, 1)) // nobody waits until it is durable
	parts := p.node("shard0").replied("_getNextSessionMods")
	from := parts.Load()
	p.until("the recipient has adopted the history", func() bool { return parts.Load() > from+2 })
	p.lose("shard0")
	release()
	p.start("shard0")
	if m := <-moved; m["ok"] == 1.0 {
		t.Errorf("the migration has succeeded without its donor: %v", m)
	}
	p.run("admin", move)
	p.run("db", asSession(inc+`}`, 1, 1))
	p.expect(p.all("db", `{"find": "u"}`), `[{"_id":1,"x":1}]`)
}

// The primary shard of a database that moves loses its power, and with it a write whose session's history it has sent already. The client, which has had no reply, sends the write again after
// the move: it is executed. It was answered as one that had been executed before, and was lost.
func TestHistoryOfALostWriteIsNotSent(t *testing.T) {
	t.Parallel()
	p := newPoweredCluster(t, 2)
	p.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	p.run("db", `{"insert": "u", "documents": [{"_id": 1, "x": 0}]}`)
	const inc = `{"update": "u", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]`
	var written sync.Once
	sent, lost := make(chan struct{}), make(chan struct{})
	told := sync.OnceFunc(func() { close(sent) })
	to := p.node("shard1")
	meets := func(command string) error {
		if command != "_shardsvrMovePrimaryStore" {
			return nil
		}
		written.Do(func() { p.run("db", asSession(inc+`, "writeConcern": {"w": 1}}`, 1, 1)) }) // nobody waits until it is durable
		if to.replied("_shardsvrAdoptSessions").Load() > 0 {
			told()
			<-lost
		}
		return nil
	}
	to.meets.Store(&meets)
	moved := make(chan bson.M, 1)
	go func() { moved <- p.raw("admin", `{"movePrimary": "db", "to": "shard1"}`) }()
	<-sent
	p.lose("shard0")
	close(lost)
	p.start("shard0")
	<-moved
	p.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	p.run("db", asSession(inc+`}`, 1, 1))
	p.expect(p.all("db", `{"find": "u"}`), `[{"_id":1,"x":1}]`)
}
