package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Errors while documents are read or written are prefixed with the command that was executing; errors in the request
// itself, or in its constants, are not.
func TestErrorsNameWhatWasExecuting(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": true}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "u": 1, "s": "x"}, {"_id": 2, "u": 2, "s": "y"}]}`)
	cur := n.ok("d", `{"aggregate": "c", "pipeline": [{"$project": {"r": {"$divide": [1, {"$subtract": ["$_id", 2]}]}}}], "cursor": {"batchSize": 1}}`)["cursor"].(bson.D)
	for _, c := range []struct{ cmd, want string }{
		{`{"find": "c", "projection": {"r": {"$abs": "$s"}}}`, "Executor error during find command: d.c :: caused by :: $abs only supports numeric types, not string"},
		{`{"aggregate": "c", "pipeline": [{"$project": {"r": {"$abs": "$s"}}}], "cursor": {}}`,
			"Executor error during aggregate command on namespace: d.c :: caused by :: $abs only supports numeric types, not string"},
		{`{"aggregate": "c", "pipeline": [{"$addFields": {"r": {"$abs": "x"}}}], "cursor": {}}`, "Failed to optimize pipeline :: caused by :: $abs only supports numeric types, not string"},
		{`{"aggregate": "c", "pipeline": [{"$addFields": {"r": {"$ifNull": 1}}}], "cursor": {}}`, "Invalid $addFields :: caused by :: $ifNull needs at least two arguments, had: 1"},
		{`{"getMore": {"$numberLong": "` + fmt.Sprint(cur[1].Value) + `"}, "collection": "c"}`, "Executor error during getMore :: caused by :: can't $divide by zero"},
		{`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"s": 1}}}`,
			"Plan executor error during findAndModify :: caused by :: Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 's' of non-numeric type string"},
		{`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"s": 1}}}]}`,
			"Plan executor error during update :: caused by :: Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 's' of non-numeric type string"},
		{`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"u": 2}}}]}`,
			"Plan executor error during update :: caused by :: E11000 duplicate key error collection: d.c index: u dup key: { u: 2 }"},
		{`{"update": "c", "updates": [{"q": {}, "u": [{"$set": {"u": {"$abs": "$s"}}}], "multi": true}]}`,
			"Plan executor error during update :: caused by :: $abs only supports numeric types, not string"},
		{`{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"s": "a"}}}]}`, "Cannot increment with non-numeric argument: {s: \"a\"}"},
		{`{"insert": "c", "documents": [{"u": 1}]}`, "E11000 duplicate key error collection: d.c index: u dup key: { u: 1 }"},
	} {
		m := n.do("d", c.cmd)
		got, _ := m["errmsg"].(string)
		if errs, ok := m["writeErrors"].(bson.A); ok {
			for _, e := range errs[0].(bson.D) {
				if e.Key == "errmsg" {
					got = e.Value.(string)
				}
			}
		}
		if got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.cmd, got, c.want)
		}
	}
}
