package targeting

import (
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// TestUnbounded checks that a filter is called unbounded only where Ranges returns the whole range of the shard key.
func TestUnbounded(t *testing.T) {
	key, err := cluster.ParseShardKey(valuetest.Doc(t, `{"a.b":1,"c":1}`))
	if err != nil {
		t.Fatal(err)
	}
	whole := Ranges(key, valuetest.Doc(t, `{}`), false)
	for _, c := range []struct {
		filter string
		want   bool
	}{
		{`{}`, true},
		{`{"k":1}`, true},
		{`{"k":{"$gt":1},"ab":2,"a.bc":3,"cc":4}`, true},
		{`{"k":1,"c":2}`, false},
		{`{"k":1,"a.b":2}`, false},
		{`{"k":1,"a":{"b":2}}`, false},
		{`{"k":1,"$and":[{"c":1}]}`, false},
		{`{"k":1,"$or":[{"a.b":1}]}`, false},
		{`{"k":1,"$expr":{"$eq":["$c",1]}}`, false},
	} {
		filter := valuetest.Doc(t, c.filter)
		if got := Unbounded(key, filter); got != c.want {
			t.Errorf("%s: %v", c.filter, got)
		}
		if r := Ranges(key, filter, false); c.want && (len(r) != 1 || cluster.CompareKeys(r[0].Low, whole[0].Low) != 0 || cluster.CompareKeys(r[0].High, whole[0].High) != 0) {
			t.Errorf("%s: ranges %v", c.filter, r)
		}
	}
}
