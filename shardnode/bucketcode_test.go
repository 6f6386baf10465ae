package shardnode

import (
	"strings"
	"testing"
)

// A document outside of every bucket of a $bucket without a default fails with the code of the slot-based engine where that engine runs the $group, which is
// at the beginning of a pipeline, and with that of $switch elsewhere (8.2.11 as measured for SecantusDB).
func TestCodeOfADocumentOutsideOfAllBuckets(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "n": 5}, {"_id": 2, "n": 50}]}`)
	const bucket = `{"$bucket": {"groupBy": "$n", "boundaries": [0, 10]}}`
	for _, tc := range []struct {
		stages string
		code   int32
	}{
		{bucket, 7158303},
		{`{"$match": {"n": {"$gt": 0}}}, ` + bucket, 7158303},
		{`{"$bucket": {"groupBy": "$n", "boundaries": [0, 10], "default": "more"}}`, 0},
		{`{"$limit": 2}, {"$unwind": "$n"}, ` + bucket, 40066},
		{`{"$facet": {"f": [` + bucket + `]}}`, 40066},
		{`{"$project": {"x": {"$switch": {"branches": [{"case": {"$lt": ["$n", 10]}, "then": 1}]}}}}`, 40066},
	} {
		r := n.do("d", `{"aggregate": "c", "pipeline": [`+tc.stages+`], "cursor": {}}`)
		code, _ := r["code"].(int32)
		if code != tc.code {
			t.Errorf("%s: code %d, want %d: %v", tc.stages, code, tc.code, r["errmsg"])
		}
		if code == 7158303 {
			want := "Executor error during aggregate command on namespace: d.c :: caused by :: $switch could not find a matching branch for an input, and no default was specified."
			if r["errmsg"] != want {
				t.Errorf("%s: %v, want %s", tc.stages, r["errmsg"], want)
			}
		} else if code != 0 && !strings.Contains(r["errmsg"].(string), "$switch could not find a matching branch") {
			t.Errorf("%s: %v", tc.stages, r["errmsg"])
		}
	}
}
