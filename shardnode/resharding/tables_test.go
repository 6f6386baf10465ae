package resharding

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lateConfig is a config server that has the temporary collection only after a number of requests for it.
type lateConfig struct {
	behind int // requests without a reply, then as many without the collection
	asked  int
	id     catalog.UUID
}

// Call implements cluster.Peer.
func (c *lateConfig) Call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	var docs []value.Value
	epoch, ts := value.NewObjectID([12]byte{1}), value.NewTimestampU64(1)
	key := value.NewDocument(value.Doc(value.F("k", value.NewInt32(1))))
	bound := func(v value.Value) value.Value { return value.NewDocument(value.Doc(value.F("k", v))) }
	switch value.Lookup(m.Body, "find").Str() {
	case "databases":
		version := value.Doc(value.F("uuid", value.NewBinary(4, make([]byte, 16))), value.F("timestamp", ts), value.F("lastMod", value.NewInt32(1)))
		docs = append(docs, value.NewDocument(value.Doc(value.F("_id", value.NewString("d")), value.F("primary", value.NewString("a")), value.F("version", value.NewDocument(version)))))
	case "collections":
		ns := value.Lookup(value.LookupDoc(m.Body, "filter"), "_id").Str()
		if ns != "d.system.resharding.x" {
			break
		}
		if c.asked++; c.asked <= c.behind {
			return dst, mongoerr.New(mongoerr.HostUnreachable, "the config server is frozen")
		}
		if c.asked > 2*c.behind {
			docs = append(docs, value.NewDocument(value.Doc(value.F("_id", value.NewString(ns)), value.F("lastmodEpoch", epoch), value.F("timestamp", ts),
				value.F("uuid", c.id.Value()), value.F("key", key))))
		}
	case "chunks":
		docs = append(docs, value.NewDocument(value.Doc(value.F("_id", epoch), value.F("min", bound(value.NewMinKey())), value.F("max", bound(value.NewMaxKey())),
			value.F("shard", value.NewString("b")), value.F("lastmod", value.NewTimestampU64(1<<32)))))
	}
	cur := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(docs...))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.x")))
	return append(dst, value.Doc(value.F("cursor", value.NewDocument(cur)), value.F("ok", value.NewDouble(1)))...), nil
}

// A recipient waits for a config server that cannot be reached, or does not have the chunks yet: both undid the resharding. It does not wait once the operation
// has failed, or if the collection is another one.
func TestRecipientWaitsForTheTables(t *testing.T) {
	recipientOf := func(behind int) (*recipient, *lateConfig) {
		a := newApplied(t)
		conf := &lateConfig{behind: behind, id: a.r.doc.id}
		a.r.m.State = migration.NewShardState("b", cluster.NewCatalog(conf), nil, nil)
		return a.r, conf
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, conf := recipientOf(2)
	x, err := r.tables(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if to, err := x.recipientOf(numbered(1, 5, 1)); to != "b" || err != nil {
		t.Errorf("it goes to %q, %v", to, err)
	}
	if conf.asked < 5 {
		t.Errorf("%d questions", conf.asked)
	}

	r, _ = recipientOf(1 << 30)
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if x, err := r.tables(short); x != nil || err == nil {
		t.Errorf("without a config server: %v, %v", x, err)
	}
	failed := mongoerr.New(mongoerr.ReshardCollectionAborted, "aborted")
	r.mu.err = failed
	if _, err := r.tables(ctx); !errors.Is(err, failed) {
		t.Errorf("after the operation has failed: %v", err)
	}
}
