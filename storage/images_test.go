package storage

import (
	"bytes"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// imagesMatch replays the oplog of a collection: before each update and delete its pre-image must be what was there. It
// returns the number of images.
func imagesMatch(t *testing.T, e *Engine, ns string) (n int) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	model := map[string][]byte{}
	apply := func(op, o, o2, ui value.Value, ts Timestamp, index int64) {
		key := o.Doc()
		if op.Str() == "u" {
			key = o2.Doc()
		}
		id := value.Show(value.Lookup(key, "_id"))
		if op.Str() != "i" {
			uuid, _ := catalog.UUIDFrom(ui)
			image, err := s.PreImage(uuid, ts, index)
			if err != nil || !bytes.Equal(image, model[id]) {
				t.Fatalf("the image of %s %s at %v, %d has %d bytes, want %d: %v", op.Str(), id, ts, index, len(image), len(model[id]), err)
			}
			n++
		}
		if model[id] = append([]byte(nil), o.Doc()...); op.Str() == "d" {
			delete(model, id)
		}
	}
	var waiting []value.Value
	cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		doc := append([]byte(nil), cur.Doc()...)
		ts, o := Timestamp(value.Lookup(doc, "ts").TimestampU64()), value.Lookup(doc, "o")
		switch {
		case value.Lookup(doc, "ns").Str() == ns:
			apply(value.Lookup(doc, "op"), o, value.Lookup(doc, "o2"), value.Lookup(doc, "ui"), ts, 0)
		case !value.Lookup(o.Doc(), "applyOps").IsMissing():
			waiting = append(waiting, value.Values(value.Lookup(o.Doc(), "applyOps").Doc())...)
			if value.Lookup(o.Doc(), "partialTxn").Truthy() {
				continue
			}
			if at := value.Lookup(o.Doc(), ImagesTime); !at.IsMissing() {
				ts = Timestamp(at.TimestampU64())
			}
			for i, op := range waiting {
				d := op.Doc()
				if value.Lookup(d, "ns").Str() != ns {
					continue
				}
				apply(value.Lookup(d, "op"), value.Lookup(d, "o"), value.Lookup(d, "o2"), value.Lookup(d, "ui"), ts, int64(i))
			}
			waiting = nil
		}
	}
	if got := s.Catalog().Lookup(PreImagesNS).Counters.Records.Load(); got != int64(n) {
		t.Errorf("%d images are counted, %d changes have one", got, n)
	}
	return n
}

// Every update and delete in a collection with images stores one under the timestamp of its oplog entry and its position
// in its transaction, on every member, however the unit was replicated.
func TestPreImages(t *testing.T) {
	l := newTestLog(t, 3, Options{stageBytes: 64 << 10, chunkBytes: 16 << 10, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	create(t, e, "db.c", D("changeStreamPreAndPostImages", D("enabled", true)), spec("n_1", D("n", 1)))
	create(t, e, "db.other", nil)
	for _, pad := range []int{10, 10 << 10} {
		for _, txn := range []bool{false, true, false, true} {
			commit(t, e, largeUnit(t, e, "db.c", 40, pad, txn))
			commit(t, e, largeUnit(t, e, "db.other", 40, 10, txn))
		}
	}
	l.settle()
	for _, m := range l.members {
		if n := imagesMatch(t, m.e, "db.c"); n < 200 {
			t.Errorf("%d images", n)
		}
	}
}

// Neither documents that move to another shard nor a rolled back unit leave images.
func TestNoPreImagesOfWhatMoves(t *testing.T) {
	e := openMem(t, Options{})
	c := create(t, e, "db.c", D("changeStreamPreAndPostImages", D("enabled", true)))
	insert(t, e, c, D("_id", 1), D("_id", 2))
	for _, migrate := range []bool{true, false} {
		s := e.Snapshot()
		u := e.NewUnitOfWork(s)
		if migrate {
			u.SetFromMigrate()
		}
		rid, doc, _, err := s.FindByID(c, V(1))
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Delete(c, rid.Clone(), append([]byte(nil), doc...), NoInfo); err != nil {
			t.Fatal(err)
		}
		if migrate {
			commit(t, e, u)
		} else {
			u.Rollback()
		}
		s.Release()
		if migrate {
			insert(t, e, c, D("_id", 1))
		}
	}
	if c := e.Catalog().Lookup(PreImagesNS); c != nil && c.Counters.Records.Load() != 0 {
		t.Errorf("there are %d images", c.Counters.Records.Load())
	}
}
