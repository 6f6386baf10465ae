package migration

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// What is left of a range without others, which may overlap it and each other in any way.
func TestRangeWithoutOthers(t *testing.T) {
	for _, x := range []struct {
		others [][2]int32
		want   string
	}{
		{nil, "[10,20)"}, {[][2]int32{{0, 10}, {20, 30}}, "[10,20)"}, {[][2]int32{{0, 30}}, ""}, {[][2]int32{{10, 20}}, ""},
		{[][2]int32{{0, 12}, {18, 30}}, "[12,18)"}, {[][2]int32{{14, 16}, {12, 13}}, "[10,12)[13,14)[16,20)"}, {[][2]int32{{11, 18}, {12, 13}}, "[10,11)[18,20)"},
	} {
		var others []*KeyRange
		for _, o := range x.others {
			others = append(others, testRange(t, o[0], o[1]))
		}
		got := ""
		for _, r := range without(testRange(t, 10, 20), others) {
			got += fmt.Sprintf("[%s,%s)", value.Show(r.minV[0]), value.Show(r.maxV[0]))
		}
		if got != x.want {
			t.Errorf("%v: %s, want %s", x.others, got, x.want)
		}
	}
}

// The first or last chunk of a collection is cut at its first or last key, in place of the split point at that end; points beyond it go.
func TestTopChunk(t *testing.T) {
	at := func(i int32) []byte { return value.Doc(value.F("_id", value.NewInt32(i))) }
	chunk := &cluster.Chunk{Min: at(0), Max: at(100)}
	for _, x := range []struct {
		points []int32
		key    int32
		last   bool
		want   string
	}{
		{[]int32{30, 60}, 99, true, "30 99 top 99-100"},
		{[]int32{30, 60, 90}, 60, true, "30 60 top 60-100"},
		{[]int32{30, 60}, 1, false, "1 60 top 0-1"},
		{[]int32{30, 60}, 60, false, "60 top 0-60"},
	} {
		var points [][]byte
		for _, p := range x.points {
			points = append(points, at(p))
		}
		points, top := cutTop(points, at(x.key), chunk, x.last)
		got := ""
		id := func(b []byte) string { return value.Show(value.Lookup(b, "_id")) }
		for _, p := range points {
			got += id(p) + " "
		}
		if got += "top " + id(top.Min) + "-" + id(top.Max); got != x.want {
			t.Errorf("%v, key %d: %s, want %s", x.points, x.key, got, x.want)
		}
	}
}
