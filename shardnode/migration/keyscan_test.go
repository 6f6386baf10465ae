package migration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// oddValue returns a value of a shard key, of one of many types, or missing or undefined.
func oddValue(r *rand.Rand) value.Value {
	switch r.IntN(9) {
	case 0:
		return value.Value{}
	case 1:
		return value.NewNull()
	case 2:
		return value.NewUndefined()
	case 3:
		return value.NewString(string(rune('a' + r.IntN(5))))
	case 4:
		return value.NewDouble(float64(r.IntN(10)) / 2)
	case 5:
		return value.NewMinKey()
	case 6:
		return value.NewMaxKey()
	case 7:
		return value.NewDocument(value.Doc(value.F("z", value.NewInt32(int32(r.IntN(3))))))
	}
	return value.NewInt64(int64(r.IntN(10)))
}

// filled creates a collection of odd documents with an index.
func filled(t *testing.T, m *Manager, r *rand.Rand, index []byte, n int) *catalog.Collection {
	t.Helper()
	err := m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: catalog.UUID{1}, Options: value.Doc()})
		if err != nil {
			return err
		}
		_, err = u.CreateIndexes(c, [][]byte{value.Doc(value.F("v", value.NewInt32(2)), value.F("key", value.NewDocument(index)), value.F("name", value.NewString("x")))})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup("d.c")
		for i := range n {
			f := []value.Field{value.F("_id", value.NewInt32(int32(i)))}
			for _, name := range []string{"a", "b"} {
				if v := oddValue(r); !v.IsMissing() {
					f = append(f, value.F(name, v))
				}
			}
			if _, err := u.Insert(c, value.Doc(f...), storage.NoInfo); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m.Engine.Catalog().Lookup("d.c")
}

// A scan along the index returns exactly the documents of a range, in order of their shard keys, whatever their types. (Undefined
// counts as null in a shard key, and has a position of its own in an index.)
func TestScansAlongTheShardKeysIndex(t *testing.T) {
	one, hashed := value.NewInt32(1), value.NewString("hashed")
	for _, index := range [][]byte{
		value.Doc(value.F("a", one)), value.Doc(value.F("a", one), value.F("b", one)), value.Doc(value.F("a", hashed)),
		value.Doc(value.F("a", one), value.F("b", hashed)), value.Doc(value.F("a", one), value.F("b", one), value.F("_id", one)),
	} {
		t.Run(value.ShowDoc(index), func(t *testing.T) {
			m := newTestManager(t, &fakeNode{}, &fakeSessions{})
			r := rand.New(rand.NewPCG(3, 4))
			c := filled(t, m, r, index, 400)
			pattern := index
			if len(value.Values(index)) == 3 {
				pattern = value.Doc(value.F("a", one), value.F("b", one))
			}
			key, err := cluster.ParseShardKey(pattern)
			if err != nil {
				t.Fatal(err)
			}
			s := m.Engine.Snapshot()
			defer s.Release()
			bound := func() []byte {
				vals := make([]value.Value, len(key.Parts))
				for i := range vals {
					for vals[i] = oddValue(r); vals[i].IsMissing() || vals[i].T == value.Undefined; {
						vals[i] = oddValue(r)
					}
				}
				key.HashParts(vals)
				return key.KeyDoc(vals)
			}
			for range 200 {
				lo, hi := bound(), bound()
				if r.IntN(5) == 0 {
					lo = key.GlobalMin()
				}
				if r.IntN(5) == 0 {
					hi = key.GlobalMax()
				}
				rng := NewKeyRange(key, lo, hi)
				if cluster.CompareKeys(rng.minV, rng.maxV) >= 0 {
					continue
				}
				var want, got, back []string
				all := s.Scan(c, storage.ScanOptions{})
				for all.Next() {
					if rng.Contains(all.Doc()) {
						want = append(want, value.ShowDoc(all.Doc()))
					}
				}
				all.Close()
				for _, reverse := range []bool{false, true} {
					scan := scanRange(s, c, rng, reverse)
					if !scan.ordered {
						t.Fatal("the index is not used")
					}
					var last []value.Value
					for i := 0; scan.Next(); i++ {
						vals, _ := key.FromDocument(scan.Doc(), nil)
						if cmp := cluster.CompareKeys(last, vals); last != nil && last[0].T != value.Null && vals[0].T != value.Null && (cmp > 0 && !reverse || cmp < 0 && reverse) {
							t.Errorf("out of order: %v behind %v", vals, last)
						}
						last = nil
						for _, v := range vals {
							last = append(last, v.Clone())
						}
						if reverse {
							back = append(back, value.ShowDoc(scan.Doc()))
						} else {
							got = append(got, value.ShowDoc(scan.Doc()))
						}
						if i%7 == 0 {
							scan.Save()
						}
					}
					if scan.Err() != nil {
						t.Fatal(scan.Err())
					}
					scan.Close()
				}
				slices.Sort(want)
				for _, window := range []int{1 + r.IntN(50), recordWindow} {
					if stored := storedOrder(t, s, c, rng, window); fmt.Sprint(stored) != fmt.Sprint(want) {
						t.Fatalf("[%s, %s): %d documents in the order in which they are stored, want %d", value.ShowDoc(lo), value.ShowDoc(hi), len(stored), len(want))
					}
				}
				slices.Sort(got)
				slices.Sort(back)
				if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(back) != fmt.Sprint(want) {
					t.Fatalf("[%s, %s): %d and %d documents, want %d", value.ShowDoc(lo), value.ShowDoc(hi), len(got), len(back), len(want))
				}
			}
		})
	}
}

// storedOrder reads a range by the records' order, and sorts what it has found.
func storedOrder(t *testing.T, s *storage.Snapshot, c *catalog.Collection, rng *KeyRange, window int) (docs []string) {
	t.Helper()
	scan := scanRecords(scanRange(s, c, rng, false), func() error { return nil })
	scan.window = window
	defer scan.Close()
	last := int64(0)
	for i := 0; scan.Next(); i++ {
		if window == recordWindow && scan.on <= last {
			t.Errorf("record %d comes after record %d", scan.on, last)
		}
		last = scan.on
		docs = append(docs, value.ShowDoc(scan.Doc()))
		if i%7 == 0 {
			scan.Save()
		}
	}
	if scan.Err() != nil {
		t.Fatal(scan.Err())
	}
	slices.Sort(docs)
	return docs
}

// A scan of a collection that is clustered by its shard key reads the range only, in either direction, whatever its bounds are.
func TestScansOfAClusteredCollection(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	err := m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: catalog.UUID{1}, Options: value.Doc(value.F("clusteredIndex", value.NewDocument(value.Doc(
			value.F("v", value.NewInt32(2)), value.F("key", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))), value.F("name", value.NewString("ci")), value.F("unique", value.NewBool(true))))))})
		return err
	})
	ids := []value.Value{value.NewMinKey(), value.NewNull(), value.NewInt32(-1), value.NewDouble(0.5), value.NewInt64(3), value.NewString("a"), value.NewMaxKey()}
	if err == nil {
		err = m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			for _, id := range ids {
				if _, err := u.Insert(s.Catalog().Lookup("d.c"), value.Doc(value.F("_id", id)), storage.NoInfo); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	key, err := cluster.ParseShardKey(value.Doc(value.F("_id", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup("d.c")
	bound := func(v value.Value) []byte { return key.KeyDoc([]value.Value{v}) }
	for i, lo := range ids {
		for j := i + 1; j < len(ids); j++ {
			rng := NewKeyRange(key, bound(lo), bound(ids[j]))
			want := ids[i:j]
			if ids[j].T == value.MaxKey {
				want = ids[i:]
			}
			for _, reverse := range []bool{false, true} {
				w, err := walkKeys(s, c, rng, reverse)
				if err != nil {
					t.Fatal(err)
				}
				var got []value.Value
				for _, ok := w.nextKey(); ok; _, ok = w.nextKey() {
					vals, ok := w.values()
					if !ok {
						t.Fatal("the key cannot be read")
					}
					got = append(got, vals[0].Clone())
					w.Save()
				}
				w.Close()
				if reverse {
					slices.Reverse(got)
				}
				if !slices.EqualFunc(got, want, value.Equal) {
					t.Errorf("[%v, %v): %v, want %v", lo, ids[j], got, want)
				}
			}
		}
	}
}
