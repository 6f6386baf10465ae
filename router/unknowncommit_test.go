package router_test

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The outcome of the transaction in which a router moves a document may stay unknown to the router. The write waits for it
// only until its time limit or the router's shutdown. It returns success if the shards can still be asked for the
// statement, otherwise an error that makes drivers retry it: then it is executed once.
func TestMovesWithoutAReplyToTheirCommit(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name, more string
		code       mongoerr.Code // the operation is killed with it
		deaf       bool          // shards do not report what they have executed either
		unsent     bool          // the commit does not reach the shard
	}{
		{"the operation's time is over", `, "maxTimeMS": 300`, 0, true, false},
		{"the operation's time is over, the shards can be asked", `, "maxTimeMS": 300`, 0, false, false},
		{"the operation's time is over before the commit arrives", `, "maxTimeMS": 300`, 0, false, true},
		{"the router stops", ``, mongoerr.InterruptedAtShutdown, true, false},
		{"the operation is killed", ``, mongoerr.Interrupted, true, false},
		{"the operation is killed, the shards can be asked", ``, mongoerr.Interrupted, false, false},
		{"the operation is killed before the commit arrives", ``, mongoerr.Interrupted, false, true},
	} {
		t.Run(end.name, func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.moveColl()
			tries := make(chan struct{}, 100)
			var late atomic.Bool // on a slow machine the time limit passed before the commit: the write has not been executed
			real := maps.Clone(c.shards)
			for id, p := range real {
				c.shards[id] = cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
					name := string(m.CommandName())
					commit := name == "coordinateCommitTransaction"
					var out []byte
					var err error
					if !commit || !end.unsent {
						out, err = p.Call(ctx, m, dst)
					}
					if commit && !end.unsent && cluster.ReplyError(out) != nil {
						late.Store(true)
					}
					if err != nil || !commit && (name != "_shardsvrStatementExecuted" || !end.deaf) {
						return out, err
					}
					select {
					case tries <- struct{}{}:
					default:
					}
					return dst, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
				})
			}
			deaf := c.through() // no shard reports a commit to it
			deaf.all("d", `{"find": "c"}`)
			maps.Copy(c.shards, real)
			other := c.through()
			write := retryable(update(`{"q": {"k": 1}, "u": {"$set": {"k": 12}}}`), 1)
			cmd := append(doc(t, write[:len(write)-1]+end.more+`, "comment": "moves"}`), bson.E{Key: "$db", Value: "d"})
			body, _ := bson.Marshal(cmd)
			reply := make(chan bson.M, 1)
			go func() {
				reply <- decode(t, deaf.router.Run(context.Background(), command.NewClient(8, "test", "test", nil), &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
			}()
			// The commit is asked for again, as often as the operation's time allows on this machine; without a limit it is not given up.
			limited := strings.Contains(end.more, "maxTimeMS")
			var m bson.M
			for i := 0; i < 3 && m == nil; i++ {
				select {
				case <-tries:
				case m = <-reply:
					if !limited || i == 0 {
						t.Fatalf("the commit was asked for %d times, then given up: %v", i, m)
					}
				}
			}
			switch end.code {
			case mongoerr.InterruptedAtShutdown:
				deaf.router.Stop()
			case mongoerr.Interrupted:
				deaf.router.EachOp(func(op *command.Op) {
					if value.Lookup(op.Req.Body, "comment").Str() == "moves" {
						op.Kill(mongoerr.Interrupted)
					}
				})
			}
			if m == nil {
				m = <-reply
			}
			done := m["ok"] == 1.0 && m["nModified"] == int32(1)
			if done == (end.deaf || end.unsent) && !(limited && late.Load()) {
				t.Errorf("the write: %v", m)
			}
			if !done && show(m["errorLabels"]) != `["RetryableWriteError"]` {
				t.Errorf("drivers do not send it again: %v", m)
			}
			other.expect(other.run("d", write)["nModified"], "1")
			c.expect(c.held(), `"[{_id:2,k:2}] [{_id:11,k:11},{_id:1,k:12}]"`)
		})
	}
}
