package shardnode

import (
	"strconv"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A write command that has ids for another number of statements than it has is refused, in a retryable write and outside. It was executed: the statements without an id got their position, which may
// be the id of another one.
func TestAsManyStatementIDsAsStatements(t *testing.T) {
	n, number := newTestNode(t), 0
	for _, cmd := range []string{
		`{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`,
		`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": true}, {"q": {"_id": 2}, "u": {"$set": {"a": 1}}, "upsert": true}]}`,
		`{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}, {"q": {"_id": 2}, "limit": 1}]}`,
		`{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 2}}], "nsInfo": [{"ns": "d.c"}]}`,
	} {
		db := "d"
		if cmd[2] == 'b' {
			db = "admin"
		}
		for ids, want := range map[string]mongoerr.Code{"[]": mongoerr.InvalidLength, "[1]": mongoerr.InvalidLength, "[5, 6]": 0, "[1, 2, 3]": mongoerr.InvalidLength} {
			n.ok("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
			with := cmd[:len(cmd)-1] + `, "stmtIds": ` + ids
			if got := n.code(db, with+"}"); got != int32(want) {
				t.Errorf("%s}: code %d, want %d", with, got, int32(want))
			}
			n.ok("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
			number++
			if got := n.code(db, with+`, "txnNumber": {"$numberLong": "`+strconv.Itoa(number)+`"}, `+testLSID+`}`); got != int32(want) {
				t.Errorf("%s} in a session: code %d, want %d", with, got, int32(want))
			}
		}
	}
}
