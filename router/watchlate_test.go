package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// heldCursor delivers the events of one cursor of a shard only when the test lets it.
type heldCursor struct {
	cluster.Peer
	id    atomic.Int64 // of the first cursor of db.s that is read
	asked atomic.Int64 // the getMores on it
	late  atomic.Int64 // the replies with events that have been held
	let   chan struct{}
}

func (h *heldCursor) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	id := value.Lookup(m.Body, "getMore")
	if id.T != value.Int64 || value.Lookup(m.Body, "collection").Str() != "s" || !h.id.CompareAndSwap(0, id.Int64()) && h.id.Load() != id.Int64() {
		return h.Peer.Call(ctx, m, dst)
	}
	h.asked.Add(1)
	reply, err := h.Peer.Call(ctx, m, dst)
	if batch := value.Lookup(value.LookupDoc(reply, "cursor"), "nextBatch"); err == nil && batch.T == value.Array && len(value.Values(batch.Doc())) > 0 {
		h.late.Add(1)
		select {
		case <-h.let:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return reply, err
}

// A stream that has caught up joins a window that other streams share before that has the events it has returned. They arrive there afterwards, one by one, and then so many that the stream is behind the window: it
// reads on from where it was before it joined, and not from the last event that it has skipped. It used to return an event twice.
func TestStreamsThatJoinALateWindowReturnNothingTwice(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	held := &heldCursor{let: make(chan struct{}, 10)}
	c.between("shard0", func(to cluster.Peer) cluster.Peer {
		held.Peer = to
		return held
	})
	c.twoShards()
	c.r.SetStreamWindow(4 << 10)
	put := func(id, size int) {
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}, {Key: "pad", Value: strings.Repeat("x", size)}}}}})
	}
	shared, _ := c.watch("s", bson.D{})
	c.until("the window is read", func() bool {
		shared.more(1)
		return held.asked.Load() > 0
	})
	from := shared.token
	put(1, 10)
	c.until("the window's first event is late", func() bool { return held.late.Load() == 1 })
	put(2, 10)
	var got []any
	take := func(batch bson.A) {
		for _, e := range batch {
			got = append(got, field(field(e, "documentKey"), "_id"))
		}
	}
	s, first := c.watch("s", bson.D{{Key: "resumeAfter", Value: from}})
	take(first)
	c.until("the stream has returned both", func() bool {
		if len(got) < 2 {
			take(s.more(100))
		}
		return len(got) >= 2
	})
	take(s.more(1)) // joins
	for id := range 5 {
		put(10+id, 3<<10)
	}
	held.let <- struct{}{}
	c.until("the first event is in the window", func() bool { return len(shared.more(100)) > 0 })
	take(s.more(300)) // skips it
	c.until("the others are late", func() bool { return held.late.Load() == 2 })
	asked := held.asked.Load()
	held.let <- struct{}{}
	c.until("the others have been in the window", func() bool { return held.asked.Load() > asked })
	close(held.let)
	c.until("the stream has all events", func() bool {
		take(s.more(100))
		return len(got) >= 7
	})
	if take(s.more(100)); fmt.Sprint(got) != "[1 2 10 11 12 13 14]" {
		t.Errorf("the stream has the inserts of %v", got)
	}
}

// A getMore that ends while its stream's merge becomes that of a new window leaves the merge to the window. Both used to read it: the getMore failed as if the router had, and what it took was missing in the window.
func TestEndedReadsLeaveTheirMergeToTheWindow(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.twoShards()
	s, _ := c.watch("s", bson.D{})
	from := s.token
	c.cmd("db", bson.D{{Key: "killCursors", Value: "s"}, {Key: "cursors", Value: bson.A{s.id}}})
	c.puts(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3000 {
		s, _ = c.watch("s", bson.D{{Key: "resumeAfter", Value: from}})
		more := value.Doc(value.F("getMore", value.NewInt64(s.id)), value.F("collection", value.NewString("s")), value.F("$db", value.NewString("db")))
		if m := decode(t, c.router.Run(ctx, c.client, &wire.Message{OpCode: wire.OpMsg, Body: more}, nil)); m["code"] != int32(mongoerr.Interrupted) {
			t.Fatal(m)
		}
	}
}
