package router_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// delayedPeer keeps the first call of some commands, for which the caller has an error.
type delayedPeer struct {
	cluster.Peer
	commands map[string]bool
	kept     [][]byte
}

func (w *delayedPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	name := string(m.CommandName())
	if !w.commands[name] {
		return w.Peer.Call(ctx, m, dst)
	}
	delete(w.commands, name)
	w.kept = append(w.kept, bytes.Clone(m.Body))
	return nil, mongoerr.New(mongoerr.HostUnreachable, "connection reset")
}

// Two messages of a run arrive when it has ended, and the collection was made again: one enters a section, by which the other took the new one for the run's.
func TestTwoLateMessages(t *testing.T) {
	const block, drop, rename = "_shardsvrParticipantBlock", "_shardsvrDropCollectionParticipant", "_shardsvrRenameCollectionParticipant"
	for _, x := range []struct{ db, cmd, sent string }{
		{"db", `{"drop": "c"}`, drop},
		{"admin", `{"renameCollection": "db.other", "to": "db.c", "dropTarget": true}`, rename},
	} {
		c := newTestCluster(t, 2)
		w := &delayedPeer{}
		c.between("shard1", func(to cluster.Peer) cluster.Peer {
			w.Peer = to
			return w
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 40)
		c.shardedAs("other", 1, 10)
		w.commands = map[string]bool{block: true, x.sent: true}
		c.run(x.db, x.cmd)
		if x.sent == rename {
			c.run("db", `{"drop": "c"}`)
			c.shardedAs("other", 1, 10)
		}
		c.shardedAs("c", 2, 40)
		if len(w.kept) != 2 {
			t.Fatalf("%s: %d messages are late", x.cmd, len(w.kept))
		}
		for i, late := range w.kept {
			if _, err := cluster.Run(t.Context(), w.Peer, late); (err == nil) != (i == 0) {
				t.Errorf("%s: the late message %d: %v", x.cmd, i, err)
			}
		}
		c.expect(c.counted("c", 2), `40`)
		c.expect(c.counted("other", 1), `10`)
	}
}
