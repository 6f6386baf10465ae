package write_test

import (
	"context"
	"errors"
	"testing"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/write/writetest"
	"github.com/shoaldb/shoal/storage"
)

// interruptedSet runs something before the first commit, and refuses all after the tenth: by then a statement does not end by itself.
type interruptedSet struct {
	replication.Set
	before  func()
	commits int
}

func (s *interruptedSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	s.commits++
	if s.commits == 1 {
		s.before()
	}
	if s.commits > 10 {
		return 0, errors.New("the statement meets one conflict after another")
	}
	return s.Set.Commit(ctx, u, wc)
}

func embedded(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }

// newSeries returns a bench with the time series d.m, which has two measurements in each of three buckets.
func newSeries(t *testing.T) bench {
	t.Helper()
	b := newBench(t)
	eng := b.Writer.Engine
	s := eng.Snapshot()
	defer s.Release()
	u := eng.NewUnitOfWork(s)
	defer u.Rollback()
	of := &namespace.SeriesOptions{TimeField: "t", MetaField: "m", Granularity: "seconds", Span: 3600}
	spec := storage.CollectionSpec{NS: timeseries.BucketsOf("d.m"), Options: of.StoredOptions(namespace.Options{})}
	if _, err := u.CreateCollection(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Writer.Set.Commit(t.Context(), u, replication.Durable); err != nil {
		t.Fatal(err)
	}
	for i := range int32(6) {
		if r := b.measure(i); nOf(r) != 1 {
			t.Fatal(value.ShowDoc(r))
		}
	}
	return b
}

// measure inserts a measurement, two of which share a value of the metaField.
func (b bench) measure(i int32) []byte {
	doc := embedded(value.F("t", value.NewDateTime(int64(i))), value.F("m", value.NewInt32(i/2)), value.F("v", value.NewInt32(i)))
	return b.Do(value.F("insert", value.NewString("m")), value.F("documents", value.NewArray(value.ArrayOf(doc))))
}

// removes is a delete of measurements.
func (b bench) removes(limit int32, q ...value.Field) []byte {
	st := embedded(value.F("q", embedded(q...)), value.F("limit", value.NewInt32(limit)))
	return b.Do(value.F("delete", value.NewString("m")), value.F("deletes", value.NewArray(value.ArrayOf(st))))
}

// endBuildBeforeCommit makes an index build of the series end before the next commit of a statement, which needs no lock of the collection.
func (b bench) endBuildBeforeCommit() *interruptedSet {
	b.T.Helper()
	index := value.Doc(value.F("v", value.NewInt32(2)), value.F("key", embedded(value.F("meta.q", value.NewInt32(1)))), value.F("name", value.NewString("q")))
	build, err := b.Writer.Engine.StartIndexBuild(b.T.Context(), timeseries.BucketsOf("d.m"), [][]byte{index}, storage.NewUUID())
	if err != nil {
		b.T.Fatal(err)
	}
	set := &interruptedSet{Set: b.Writer.Set, before: func() {
		if _, err := build.Run(b.T.Context()); err != nil {
			b.T.Error(err)
		}
	}}
	b.Writer.Set = set
	return set
}

// A build commits without the lock of the collection, so the catalog entry that a statement began with may be an old one at its commit.
func TestStatementsOnASeriesBesideTheEndOfAnIndexBuild(t *testing.T) {
	one := value.F("v", value.NewInt32(3))
	for _, c := range []struct {
		name string
		run  func(b bench) []byte
		want int64 // n of the reply
	}{
		{"delete of many", func(b bench) []byte { return b.removes(0, value.F("v", embedded(value.F("$gte", value.NewInt32(1))))) }, 5},
		{"delete of one", func(b bench) []byte { return b.removes(1, one) }, 1},
		{"delete by the metaField", func(b bench) []byte { return b.removes(0, value.F("m", value.NewInt32(1))) }, 2},
		{"findAndModify", func(b bench) []byte {
			r := b.Do(value.F("findAndModify", value.NewString("m")), value.F("query", embedded(one)), value.F("remove", value.NewBool(true)))
			return value.Lookup(r, "lastErrorObject").Doc()
		}, 1},
		{"update", func(b bench) []byte {
			u := embedded(value.F("$set", embedded(value.F("m", value.NewInt32(7)))))
			st := embedded(value.F("q", embedded(value.F("m", value.NewInt32(1)))), value.F("u", u), value.F("multi", value.NewBool(true)))
			return b.Do(value.F("update", value.NewString("m")), value.F("updates", value.NewArray(value.ArrayOf(st))))
		}, 1},
		{"insert", func(b bench) []byte { return b.measure(6) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newSeries(t)
			set := b.endBuildBeforeCommit()
			if r := c.run(b); nOf(r) != c.want || writetest.CodeOf(r) != 0 {
				t.Error(value.ShowDoc(r))
			}
			if set.commits != 2 {
				t.Errorf("%d commits instead of the one that met the conflict and another", set.commits)
			}
		})
	}
}

// notedSet notes the strongest write concern that a command has waited for.
type notedSet struct {
	replication.Set
	journaled bool
}

func (s *notedSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	s.journaled = s.journaled || wc.J
	return s.Set.Commit(ctx, u, wc)
}

func (s *notedSet) Await(ctx context.Context, ts storage.Timestamp, wc replication.WriteConcern) error {
	s.journaled = s.journaled || wc.J
	return s.Set.Await(ctx, ts, wc)
}

// A delete of one measurement is as durable as the client asks, like one of many.
func TestDeletesOfMeasurementsAwaitTheirWriteConcern(t *testing.T) {
	concern := value.F("writeConcern", embedded(value.F("w", value.NewInt32(1)), value.F("j", value.NewBool(true))))
	one := embedded(value.F("v", value.NewInt32(3)))
	deleting := func(limit int32) value.Value {
		return value.NewArray(value.ArrayOf(embedded(value.F("q", one), value.F("limit", value.NewInt32(limit)))))
	}
	for _, cmd := range [][]value.Field{
		{value.F("delete", value.NewString("m")), value.F("deletes", deleting(0)), concern},
		{value.F("delete", value.NewString("m")), value.F("deletes", deleting(1)), concern},
		{value.F("findAndModify", value.NewString("m")), value.F("query", one), value.F("remove", value.NewBool(true)), concern},
	} {
		b := newSeries(t)
		set := &notedSet{Set: b.Writer.Set}
		b.Writer.Set = set
		if r := b.Do(cmd...); writetest.CodeOf(r) != 0 || !set.journaled {
			t.Errorf("%s: %s, journaled %v", value.ShowDoc(value.Doc(cmd...)), value.ShowDoc(r), set.journaled)
		}
	}
}

// releasingSet rolls a unit of work back before the first commit of others.
type releasingSet struct {
	replication.Set
	held *storage.UnitOfWork
}

func (s *releasingSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	s.held.Rollback()
	return s.Set.Commit(ctx, u, wc)
}

// A delete of measurements in several buckets does not need all of them at once: others may always be writing one or the other.
func TestDeleteOfMeasurementsBesideWriters(t *testing.T) {
	b := newSeries(t)
	eng := b.Writer.Engine
	s := eng.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(timeseries.BucketsOf("d.m"))
	cur := s.Scan(c, storage.ScanOptions{Reverse: true})
	defer cur.Close()
	if !cur.Next() {
		t.Fatal("there are no buckets")
	}
	held := eng.NewUnitOfWork(s)
	defer held.Rollback()
	if err := held.Delete(c, cur.RecordID().Clone(), append([]byte(nil), cur.Doc()...), storage.NoInfo); err != nil {
		t.Fatal(err)
	}
	b.Writer.Set = &releasingSet{Set: b.Writer.Set, held: held}
	st := embedded(value.F("q", embedded(value.F("v", embedded(value.F("$gte", value.NewInt32(0)))))), value.F("limit", value.NewInt32(0)))
	r := b.Do(value.F("delete", value.NewString("m")), value.F("deletes", value.NewArray(value.ArrayOf(st))), value.F("maxTimeMS", value.NewInt32(20_000)))
	if nOf(r) != 6 || writetest.CodeOf(r) != 0 {
		t.Error(value.ShowDoc(r))
	}
}
