package shardnode

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The constants of update pipelines were folded before a document was found, and an error in folding failed the
// command: such an expression must fail only when a document is updated.
func TestUpdatePipelinesFailOnDocumentsOnly(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "r": "r"}]}`)
	for _, tc := range []struct {
		stage string
		code  mongoerr.Code // with a document
	}{
		{`{"$set": {"x": {"$add": ["age", 1]}}}`, mongoerr.TypeMismatch},
		{`{"$set": {"x": {"y": [{"$divide": [1, 0]}]}}}`, mongoerr.BadValue},
		{`{"$set": {"x": {"$regexMatch": {"input": "$r", "regex": "("}}}}`, 51111},
		{`{"$set": {"x": {"$switch": {"branches": [{"case": false, "then": 1}]}}}}`, 40066},
		{`{"$replaceWith": {"$toInt": "x"}}`, mongoerr.ConversionFailure},
		{`{"$set": {"x": {"$cond": ["$r", 1, {"$toInt": "x"}]}}}`, 0},
	} {
		for _, id := range []string{"1", "2"} {
			want := int32(tc.code)
			if id == "2" {
				want = 0
			}
			stages := `[` + tc.stage + `]`
			if got := n.code("d", `{"findAndModify": "c", "query": {"_id": `+id+`}, "update": `+stages+`}`); got != want {
				t.Errorf("findAndModify of %s by %s: %d, want %d", id, stages, got, want)
			}
			r := n.ok("d", `{"update": "c", "updates": [{"q": {"_id": `+id+`}, "u": `+stages+`}]}`)
			got := int32(0)
			if r["writeErrors"] != nil {
				e := asM(r["writeErrors"].(bson.A)[0])
				got = e["code"].(int32)
				if m := e["errmsg"].(string); !strings.HasPrefix(m, "Plan executor error during update :: caused by :: ") || strings.Contains(m, "optimize") {
					t.Errorf("%s: %s", stages, m)
				}
			}
			if got != want {
				t.Errorf("update of %s by %s: %d, want %d", id, stages, got, want)
			}
		}
	}
	// Parse errors are reported all the same, and so are errors in filters.
	if r := n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 2}, "u": [{"$set": {"x": {"$nope": 1}}}]}]}`); r["writeErrors"] == nil {
		t.Errorf("an unknown operator: %v", r)
	}
	if got := n.code("d", `{"findAndModify": "c", "query": {"_id": 2, "$expr": {"$add": ["age", 1]}}, "update": [{"$set": {"x": 1}}]}`); got != int32(mongoerr.TypeMismatch) {
		t.Errorf("a filter: %d", got)
	}
}

// $where accepted code with scope and ran it without its scope.
func TestWhereRefusesCodeWithScope(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	for where, want := range map[string]mongoerr.Code{
		`{"$code": "this._id == x", "$scope": {"x": 1}}`: 4649201, `{"$code": "this._id == 1"}`: 0, `"this._id == 1"`: 0, `1`: mongoerr.BadValue,
	} {
		if got := n.code("d", `{"find": "c", "filter": {"$where": `+where+`}}`); got != int32(want) {
			t.Errorf("%s: %d, want %d", where, got, want)
		}
	}
}
