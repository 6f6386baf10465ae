package agg

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// An error of a $merge statement is prefixed with its context; errors of $out stay as they are.
func TestMergeExplainsItsFailures(t *testing.T) {
	dup := func(pattern string) error {
		return mongoerr.New(mongoerr.DuplicateKey, "E11000").WithDetails(value.Doc(value.F("keyPattern", valuetest.Value(t, pattern))))
	}
	for _, tc := range []struct {
		w    WriteSpec
		err  error
		want string
	}{
		{WriteSpec{Stage: "$merge", WhenMatched: "fail", On: []string{"_id"}}, dup(`{"_id": 1}`), "DuplicateKey: $merge with whenMatched: fail found an existing document with the same values for the 'on' fields :: caused by :: E11000"},
		{WriteSpec{Stage: "$merge", WhenMatched: "fail", On: []string{"a", "b"}}, dup(`{"b": 1, "a": 1}`), "DuplicateKey: $merge with whenMatched: fail found an existing document with the same values for the 'on' fields :: caused by :: E11000"},
		{WriteSpec{Stage: "$merge", WhenMatched: "fail", On: []string{"_id"}}, dup(`{"a": 1}`), "DuplicateKey: $merge failed due to a DuplicateKey error :: caused by :: E11000"},
		{WriteSpec{Stage: "$merge", WhenMatched: "replace", On: []string{"_id"}}, dup(`{"_id": 1}`), "DuplicateKey: $merge failed due to a DuplicateKey error :: caused by :: E11000"},
		{WriteSpec{Stage: "$merge", WhenMatched: "merge"}, mongoerr.New(mongoerr.ImmutableField, "x"), "ImmutableField: $merge failed to update the matching document, did you attempt to modify the _id or the shard key? :: caused by :: x"},
		{WriteSpec{Stage: "$merge"}, mongoerr.New(mongoerr.BadValue, "x"), "BadValue: x"},
		{WriteSpec{Stage: "$out"}, dup(`{"_id": 1}`), "DuplicateKey: E11000"},
	} {
		if got := tc.w.explainFailure(tc.err); got.Error() != tc.want {
			t.Errorf("%+v: %v, want %s", tc.w, got, tc.want)
		}
	}
	if err := (&WriteSpec{Stage: "$merge"}).explainFailure(nil); err != nil {
		t.Error(err)
	}
}

func TestMergeStatements(t *testing.T) {
	d := valuetest.Value(t, `{"a": {"b": 1}, "c": null}`).Doc()
	q, err := MergeFilter([]string{"a.b", "c", "d"}, false, d)
	if want := valuetest.Value(t, `{"a.b": {"$eq": 1}, "c": {"$eq": null}, "d": {"$eq": null}}`); err != nil || string(q) != string(want.Doc()) {
		t.Errorf("%s, %v", value.ShowDoc(q), err)
	}
	if _, err := MergeFilter([]string{"c"}, true, d); mongoerr.CodeOf(err) != 51132 {
		t.Errorf("a sparse index finds null: %v", err)
	}
	for mode, want := range map[string]string{"replace": `{"x": 1}`, "merge": `{"$set": {"x": 1}}`, "keepExisting": `{"$setOnInsert": {"x": 1}}`,
		"fail": `{"$setOnInsert": {"x": 1}}`} {
		w := WriteSpec{WhenMatched: mode}
		if got := w.Change(valuetest.Value(t, `{"x": 1}`).Doc()); string(got.Doc()) != string(valuetest.Value(t, want).Doc()) {
			t.Errorf("%s: %s", mode, value.Show(got))
		}
	}
	w := WriteSpec{WhenMatched: "pipeline"}
	if !w.NeedsID([]string{"x"}, d) || (&WriteSpec{WhenMatched: "merge"}).NeedsID([]string{"x"}, d) || !(&WriteSpec{}).NeedsID([]string{"_id"}, d) ||
		w.NeedsID([]string{"_id"}, value.Doc(value.F("_id", value.NewInt32(1)))) {
		t.Error("who needs an _id")
	}
}
