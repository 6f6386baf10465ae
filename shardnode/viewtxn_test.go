package shardnode

import (
	"fmt"
	"testing"
)

// A distinct on a view read the newest data instead of its transaction's snapshot and writes.
func TestDistinctOnAViewInATransaction(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 1}]}`)
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": [{"$match": {"x": {"$gt": 0}}}]}`)
	in := func(cmd string, start bool) string {
		begin := ""
		if start {
			begin = `"startTransaction": true, `
		}
		return fmt.Sprintf(`{%s, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}, %s"autocommit": false}`, cmd, begin)
	}
	n.ok("d", in(`"insert": "c", "documents": [{"_id": 2, "x": 2}]`, true))
	n.ok("d", `{"insert": "c", "documents": [{"_id": 3, "x": 3}]}`)
	if got := fmt.Sprint(n.do("d", in(`"distinct": "v", "key": "x"`, false))["values"]); got != "[1 2]" {
		t.Errorf("%s, want the transaction's own [1 2]", got)
	}
}
