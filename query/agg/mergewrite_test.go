package agg

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestMergeStatements(t *testing.T) {
	d := fromJSON(t, `{"a": {"b": 1}, "c": null}`).Doc()
	q, err := MergeFilter([]string{"a.b", "c", "d"}, false, d)
	if want := fromJSON(t, `{"a.b": {"$eq": 1}, "c": {"$eq": null}, "d": {"$eq": null}}`); err != nil || string(q) != string(want.Doc()) {
		t.Errorf("%s, %v", value.ShowDoc(q), err)
	}
	if _, err := MergeFilter([]string{"c"}, true, d); mongoerr.CodeOf(err) != 51132 {
		t.Errorf("a sparse index finds null: %v", err)
	}
	for mode, want := range map[string]string{"replace": `{"x": 1}`, "merge": `{"$set": {"x": 1}}`, "keepExisting": `{"$setOnInsert": {"x": 1}}`,
		"fail": `{"$setOnInsert": {"x": 1}}`} {
		w := WriteSpec{WhenMatched: mode}
		if got := w.Change(fromJSON(t, `{"x": 1}`).Doc()); string(got.Doc()) != string(fromJSON(t, want).Doc()) {
			t.Errorf("%s: %s", mode, value.Show(got))
		}
	}
	w := WriteSpec{WhenMatched: "pipeline"}
	if !w.NeedsID([]string{"x"}, d) || (&WriteSpec{WhenMatched: "merge"}).NeedsID([]string{"x"}, d) || !(&WriteSpec{}).NeedsID([]string{"_id"}, d) ||
		w.NeedsID([]string{"_id"}, value.Doc(value.F("_id", value.NewInt32(1)))) {
		t.Error("who needs an _id")
	}
}
