package plan

import "testing"

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"filter":{"a":1}}`, `{"filter":{"a":3}}`, true},
		{`{"filter":{"a":1,"b":2}}`, `{"filter":{"b":5,"a":2}}`, true},
		{`{"filter":{"$or":[{"a":1},{"b":2}]}}`, `{"filter":{"$or":[{"b":0},{"a":4}]}}`, true},
		{`{"filter":{"a":{"$in":[1,2]}}}`, `{"filter":{"a":{"$in":[4,5,6]}}}`, true},
		{`{"filter":{"a":{"$in":[1]}}}`, `{"filter":{"a":{"$in":[1,2]}}}`, false},
		{`{"filter":{"a":{"$exists":true}}}`, `{"filter":{"a":{"$exists":false}}}`, false},
		{`{"filter":{"a":{"$gt":1}}}`, `{"filter":{"a":{"$lt":1}}}`, false},
		{`{"filter":{"a":1},"sort":{"b":1}}`, `{"filter":{"a":1},"sort":{"b":-1}}`, false},
		{`{"filter":{"a":1},"projection":{"a":1,"b":1}}`, `{"filter":{"a":1},"projection":{"b":1,"a":1}}`, true},
		{`{"filter":{"a":1},"projection":{"a":1}}`, `{"filter":{"a":1}}`, false},
	} {
		a, b := query(t, c.a).Shape(), query(t, c.b).Shape()
		if (a == b) != c.same {
			t.Errorf("%s: %s\n%s: %s", c.a, a, c.b, b)
		}
	}
	if h := ShapeHash("eqa"); len(h) != 8 {
		t.Errorf("hash %q", h)
	}
}

func TestCache(t *testing.T) {
	coll := &Collection{NS: "db.c", Indexes: []*Index{index(t, `{"key":{"_id":1}}`), index(t, `{"key":{"a":1}}`), index(t, `{"key":{"b":1}}`)}}
	q := query(t, `{"filter":{"a":5,"b":7}}`)
	r, err := Plan(q, coll)
	if err != nil || len(r.Candidates) != 3 {
		t.Fatalf("%d candidates, %v", len(r.Candidates), err)
	}
	winner := r.Candidates[1] // the trial knows better than the guess
	cache := NewCache(0)
	shape := q.Shape()
	key := q.CacheKey(coll, shape)
	cache.Put(key, shape, winner, 10, 2, Origin{})
	if c, ok := cache.Get(key); !ok || c.Active {
		t.Errorf("after one trial: %+v", c)
	}
	cache.Put(key, shape, winner, 8, 2, Origin{})
	other := query(t, `{"filter":{"b":1,"a":2}}`)
	c, ok := cache.Get(other.CacheKey(coll, other.Shape()))
	if !ok || !c.Active || c.Index != "b_1" {
		t.Fatalf("after two trials: %+v", c)
	}
	cache.Clear(nil)
	if len(cache.Entries()) != 0 {
		t.Error("not cleared")
	}
}
