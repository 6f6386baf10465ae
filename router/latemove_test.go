package router_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// copyingPeer keeps copies of the messages of some commands that it passes on.
type copyingPeer struct {
	cluster.Peer
	commands map[string]bool
	kept     [][]byte
	before   func(m *wire.Message) // is called with each message
}

func (w *copyingPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	if w.before != nil {
		w.before(m)
	}
	if w.commands[string(m.CommandName())] {
		w.kept = append(w.kept, bytes.Clone(m.Body))
	}
	return w.Peer.Call(ctx, m, dst)
}

// Messages of a movePrimary that were sent twice arrive again when its sections have ended, and the run has not: the new primary shard dropped collections that had been made there since.
func TestLateMessagesOfAMoveBeforeItsEnd(t *testing.T) {
	for _, part := range []string{"_shardsvrCreateCollectionParticipant", "_shardsvrMovePrimaryStore"} {
		c := newTestCluster(t, 2)
		w := &copyingPeer{}
		c.between("shard1", func(to cluster.Peer) cluster.Peer {
			w.Peer = to
			return w
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 40)
		c.insertKeys("u", 1, 10)
		w.commands = map[string]bool{"_shardsvrParticipantBlock": true, part: true}
		reached, release := c.hangAt("shard0", "done")
		moved := c.later("admin", `{"movePrimary": "db", "to": "shard1"}`)
		reached()
		w.commands = nil
		c.run("db", `{"drop": "c"}`)
		c.run("db", `{"drop": "u"}`)
		c.shardedAs("c", 2, 40)
		c.insertKeys("u", 2, 10)
		for i, late := range w.kept[:len(w.kept)-1] { // the last one ends the section
			if _, err := cluster.Run(t.Context(), w.Peer, late); (err == nil) != (i == 0) {
				t.Errorf("%s: the late message %d: %v", part, i, err)
			}
		}
		release()
		if m := <-moved; m["ok"] != 1.0 {
			t.Error(m)
		}
		c.expect(c.counted("c", 2), `40`)
		c.expect(c.counted("u", 2), `10`)
		c.leftOver()
	}
}

// Parts of a database that was moved arrive again while the section on the new primary shard ends: it has them, and begins no copy anew, which would drop what it has.
func TestPartsOfAMoveThatArriveAtItsEnd(t *testing.T) {
	const block, store = "_shardsvrParticipantBlock", "_shardsvrMovePrimaryStore"
	c := newTestCluster(t, 2)
	w, sent := &copyingPeer{commands: map[string]bool{store: true}}, 0
	w.before = func(m *wire.Message) {
		if string(m.CommandName()) != block || value.Lookup(m.Body, "blockType").Str() != msg.Unblock {
			return
		}
		for _, late := range w.kept[:2] { // the first, and the one that drops what has the name
			sent++
			_, _ = cluster.Run(t.Context(), w.Peer, late) // what it answers does not matter
		}
	}
	c.between("shard1", func(to cluster.Peer) cluster.Peer {
		w.Peer = to
		return w
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("u", 1, 10)
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	if sent < 2 {
		t.Errorf("%d messages are late", sent)
	}
	c.expect(c.counted("u", 1), `10`)
	c.leftOver()
}
