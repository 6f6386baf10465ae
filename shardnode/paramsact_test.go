package shardnode

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Parameters that were accepted and returned, but had no effect.
func TestParametersOfScansAndListsAct(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "s": "one of some length"}, {"_id": 2, "a": 2, "s": "another of some length"}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`)
	group := func(acc string) string {
		return `{"aggregate": "c", "cursor": {}, "pipeline": [{"$group": {"_id": null, "l": {"` + acc + `": "$s"}}}]}`
	}
	for _, tc := range []struct {
		param, value, cmd string
		code              mongoerr.Code
		text              string
	}{
		{"notablescan", "true", `{"find": "c", "filter": {"s": "x"}}`, mongoerr.NoQueryExecutionPlans, "No indexed plans available, and running with 'notablescan' 1"},
		{"notablescan", "true", `{"find": "c"}`, mongoerr.NoQueryExecutionPlans, "No indexed plans available"},
		{"notablescan", "true", `{"find": "c", "filter": {"a": 1}, "hint": {"$natural": 1}}`, mongoerr.NoQueryExecutionPlans, "hint $natural is not allowed, because 'notablescan' is enabled"},
		{"notablescan", "true", `{"find": "c", "filter": {"$or": [{"a": 1}, {"s": "x"}]}}`, mongoerr.NoQueryExecutionPlans, "No indexed plans available"},
		{"notablescan", "true", `{"find": "c", "filter": {"a": 1}}`, 0, ""},
		{"notablescan", "true", `{"find": "c", "filter": {"_id": 1}}`, 0, ""},
		{"notablescan", "true", `{"find": "none", "filter": {"s": 1}}`, 0, ""},
		{"notablescan", "true", `{"find": "system.profile", "filter": {"s": 1}}`, 0, ""},
		{"notablescan", "false", `{"find": "c", "filter": {"s": "x"}}`, 0, ""},
		{"internalQueryMaxPushBytes", "30", group("$push"), mongoerr.ExceededMemoryLimit, "$push used too much memory"},
		{"internalQueryMaxPushBytes", "30", group("$addToSet"), 0, ""},
		{"internalQueryMaxPushBytes", "104857600", group("$push"), 0, ""},
		{"internalQueryMaxAddToSetBytes", "30", group("$addToSet"), mongoerr.ExceededMemoryLimit, "$addToSet used too much memory"},
		{"internalQueryMaxAddToSetBytes", "30", group("$push"), 0, ""},
		{"internalQueryMaxAddToSetBytes", "104857600", group("$addToSet"), 0, ""},
	} {
		n.ok("admin", `{"setParameter": 1, "`+tc.param+`": `+tc.value+`}`)
		m := n.do("d", tc.cmd)
		text, _ := m["errmsg"].(string)
		if code, _ := m["code"].(int32); code != int32(tc.code) || !strings.Contains(text, tc.text) {
			t.Errorf("%s %s: %s: %v, want %d", tc.param, tc.value, tc.cmd, m, int32(tc.code))
		}
	}
	n.ok("admin", `{"setParameter": 1, "internalQueryMaxAddToSetBytes": 77}`)
	n.ok("admin", `{"setParameter": 1, "internalDocumentSourceGroupMaxMemoryBytes": 3000000000}`)
	shown := make(map[string]any)
	for _, e := range n.do("d", `{"explain": {"find": "c"}}`)["serverParameters"].(bson.D) {
		shown[e.Key] = e.Value
	}
	if shown["internalQueryMaxAddToSetBytes"] != int32(77) || shown["internalDocumentSourceGroupMaxMemoryBytes"] != int64(3000000000) {
		t.Errorf("explain shows %v", shown)
	}
}
