package catalog

import (
	"bytes"
	"slices"
	"strconv"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire"
)

// described is a collection with indexes of several kinds, some with arrays, one of them being built.
func described(t testing.TB) *Collection {
	t.Helper()
	c := testCollection("db.c", 7)
	c.CatalogID, c.Ident, c.IdentName, c.Replicated, c.Counters = 3, 17, IdentName("collection", 17, 5), true, &Counters{}
	c.SetOptions(valuetest.Doc(t, `{"capped": true, "size": 4096, "max": {"$numberLong": "10"}, "collation": {"locale": "fr"}}`))
	for i, x := range []struct {
		spec  string
		masks []uint64
		ready bool
	}{
		{`{"v": 2, "key": {"_id": 1}, "name": "_id_"}`, nil, true},
		{`{"v": 2, "key": {"a.b": 1, "c": -1}, "name": "ab", "unique": true, "collation": {"locale": "de", "strength": 2}}`, []uint64{2, 0}, true},
		{`{"v": 2, "key": {"loc": "2dsphere", "p.q": 1}, "name": "geo", "2dsphereIndexVersion": 3}`, []uint64{1, 1}, true},
		{`{"v": 2, "key": {"xy": "2d"}, "name": "flat"}`, []uint64{1}, true},
		{`{"v": 2, "key": {"n": 1, "w.$**": 1}, "name": "wild"}`, []uint64{0, 1}, true},
		{`{"v": 2, "key": {"h": "hashed"}, "name": "h", "sparse": true}`, nil, true},
		{`{"v": 2, "key": {"t": 1}, "name": "t", "expireAfterSeconds": 60, "partialFilterExpression": {"t": {"$gt": 1}}}`, nil, false},
	} {
		id := Ident(20 + i)
		idx, err := NewIndex(valuetest.Doc(t, x.spec), id, IdentName("index", id, 5), false)
		if err != nil {
			t.Fatal(err)
		}
		if x.masks != nil {
			idx = idx.WithMultikey(x.masks, []string{"a.b", "a"})
		}
		if idx.Ready = x.ready; !x.ready {
			idx.Build.UUID, idx.Enforcing = UUID{1, 2}, true
		}
		c.Indexes = append(c.Indexes, idx)
	}
	return c
}

// A collection is decoded as it was encoded. Which geometries have several keys was not stored: after a restart a query with two conditions on one missed the
// documents whose geometries meet them in different cells.
func TestEntriesDescribeTheirCollection(t *testing.T) {
	c := described(t)
	got, err := Decode(c.CatalogID, Encode(c))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(Encode(got), Encode(c)) {
		t.Errorf("%s is decoded as %s", value.ShowDoc(Encode(c)), value.ShowDoc(Encode(got)))
	}
	if got.NS != c.NS || got.UUID != c.UUID || got.Ident != c.Ident || got.CatalogID != c.CatalogID || !got.Replicated || !got.Capped || got.CappedSize != 4096 ||
		got.CappedMax != 10 || got.Collator == nil || got.Counters == nil || !bytes.Equal(got.Options, c.Options) {
		t.Errorf("%+v is decoded as %+v", c, got)
	}
	for i, idx := range c.Indexes {
		x := got.Indexes[i]
		masks := idx.MultikeyPaths
		if masks == nil {
			masks = make([]uint64, len(idx.Spec.Fields))
		}
		if x.Name != idx.Name || x.Ident != idx.Ident || x.Ready != idx.Ready || x.Build.UUID != idx.Build.UUID || x.Enforcing != idx.Enforcing || x.Unique != idx.Unique ||
			x.TTLSeconds != idx.TTLSeconds || x.Multikey != idx.Multikey || !slices.Equal(x.MultikeyPaths, masks) ||
			!slices.Equal(x.ArrayPaths, idx.ArrayPaths) || (x.ArrayPaths == nil) != (idx.ArrayPaths == nil) {
			t.Errorf("%+v is decoded as %+v", idx, x)
		}
	}
}

// Entries of versions that did not store the paths of geometries: any part of them may have arrays.
func TestEntriesWithoutThePathsOfGeometries(t *testing.T) {
	entry := valuetest.Doc(t, `{"md": {"ns": "db.c", "options": {"uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAABw==", "subType": "04"}}}, "indexes": [
		{"spec": {"v": 2, "key": {"x.loc": "2dsphere", "n": 1}, "name": "g", "2dsphereIndexVersion": 3}, "ready": true, "multikey": true, "multikeyPaths": {"n": {"$binary": {"base64": "AA==", "subType": "00"}}}},
		{"spec": {"v": 2, "key": {"loc": "2dsphere"}, "name": "one", "2dsphereIndexVersion": 3}, "ready": true, "multikey": false, "multikeyPaths": {}}]},
		"idxIdent": {"g": "index-2-1", "one": "index-3-1"}, "ns": "db.c", "ident": "collection-1-1"}`)
	c, err := Decode(1, entry)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Indexes[0].MultikeyPaths; !slices.Equal(got, []uint64{3, 0}) {
		t.Errorf("the paths' arrays are %v", got)
	}
	if got := c.Indexes[1].MultikeyPaths; !slices.Equal(got, []uint64{0}) {
		t.Errorf("an index without arrays has %v", got)
	}
}

// An index knows a path with arrays for ever, and a mark that adds nothing makes no new one.
func TestMultikeyMarksAdd(t *testing.T) {
	c := described(t)
	id, geo := c.Index("_id_"), c.Index("geo")
	if geo.WithMultikey([]uint64{1, 0}, nil) != geo || geo.WithMultikey(nil, nil) != geo {
		t.Error("what is known makes a new index")
	}
	more := geo.WithMultikey([]uint64{0, 2}, nil)
	if !slices.Equal(more.MultikeyPaths, []uint64{1, 3}) || !slices.Equal(geo.MultikeyPaths, []uint64{1, 1}) {
		t.Errorf("%v and %v", more.MultikeyPaths, geo.MultikeyPaths)
	}
	if id.Multikey || !id.WithMultikey([]uint64{0}, nil).Multikey {
		t.Error("the first mark of an index is lost")
	}
}

// The paths below a wildcard that have arrays are known one by one, until they are too many, or an earlier version has not stored them.
func TestArrayPathsOfAWildcardIndex(t *testing.T) {
	wild := described(t).Index("wild")
	masks := []uint64{0, 1}
	if !slices.Equal(wild.ArrayPaths, []string{"a", "a.b"}) || wild.WithMultikey(masks, []string{"a.b"}) != wild {
		t.Errorf("%q, or what is known makes a new index", wild.ArrayPaths)
	}
	if more := wild.WithMultikey(masks, []string{"b", "a", "b"}); !slices.Equal(more.ArrayPaths, []string{"a", "a.b", "b"}) {
		t.Errorf("b is added: %q", more.ArrayPaths)
	}
	full := wild
	for i := 0; i <= maxArrayPaths/16 && full.ArrayPaths != nil; i++ {
		full = full.WithMultikey(masks, []string{strconv.Itoa(i)})
	}
	if full.ArrayPaths != nil || full.WithMultikey(masks, []string{"z"}) != full {
		t.Errorf("%d paths are kept", len(full.ArrayPaths))
	}
	every := wild.WithMultikey(masks, nil)
	if every.ArrayPaths != nil || every.WithMultikey(masks, []string{"a"}) != every {
		t.Errorf("any path may have arrays, but %q", every.ArrayPaths)
	}
	for _, x := range []*Index{full, every} {
		c := described(t)
		c.Indexes = []*Index{x}
		got, err := Decode(1, Encode(c))
		if err != nil {
			t.Fatal(err)
		}
		if i := got.Indexes[0]; !i.Multikey || i.ArrayPaths != nil || i.WithMultikey(masks, []string{"a"}) != i {
			t.Errorf("%+v", i)
		}
	}
}

// RecordIds and the highest key are looked up once, and again when other members may have written.
func TestWhatIsLookedUpOnce(t *testing.T) {
	var c Counters
	looks := 0
	last := func() (int64, error) { looks++; return 41, nil }
	for want := int64(42); want < 45; want++ {
		if id, err := c.NextRecordID(last); id != want || err != nil {
			t.Errorf("RecordId %d, %v", id, err)
		}
	}
	c.ForgetRecordIDs()
	if id, _ := c.NextRecordID(last); id != 42 || looks != 2 {
		t.Errorf("RecordId %d after %d looks", id, looks)
	}
	var tail Tail
	first := func() ([]byte, error) { looks++; return []byte("m"), nil }
	for _, x := range []struct {
		key   string
		above bool
	}{{"a", false}, {"m", false}, {"n", true}, {"n", false}, {"z", true}, {"p", false}} {
		if above, err := tail.Raise([]byte(x.key), first); above != x.above || err != nil {
			t.Errorf("%s: %v, %v", x.key, above, err)
		}
	}
	tail.Forget()
	if above, _ := tail.Raise([]byte("p"), first); !above || looks != 4 {
		t.Errorf("after it was forgotten: %v, %d looks", above, looks)
	}
	c.NoteTrimmed(5, 100)
	c.NoteTrimmed(3, 200)
	if c.Trimmed(99) != 0 || c.Trimmed(100) != 5 || c.Trimmed(300) != 5 {
		t.Errorf("trimmed up to %d, %d, %d", c.Trimmed(99), c.Trimmed(100), c.Trimmed(300))
	}
}

// Whatever bytes a document of the catalog has, it is refused or decoded as a collection that is encoded and decoded again as the same.
func FuzzDecode(f *testing.F) {
	f.Add(Encode(described(f)))
	f.Fuzz(func(t *testing.T, entry []byte) {
		if wire.Validate(entry) != nil {
			return
		}
		c, err := Decode(1, entry)
		if err != nil {
			return
		}
		again, err := Decode(1, Encode(c))
		if err != nil {
			t.Fatalf("%s: %v", value.ShowDoc(entry), err)
		}
		if !bytes.Equal(Encode(again), Encode(c)) {
			t.Errorf("%s is decoded as %s", value.ShowDoc(Encode(c)), value.ShowDoc(Encode(again)))
		}
	})
}
