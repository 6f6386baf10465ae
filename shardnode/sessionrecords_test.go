package shardnode

import (
	"fmt"
	"strings"
	"testing"
)

// The record of a session shows its last write as soon as that is acknowledged; it used to show it up to five seconds later.
func TestSessionRecordsAreReadWithTheirWrites(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 0}]}`)
	reads := []string{`{"find": "transactions"}`, `{"aggregate": "transactions", "pipeline": [{"$match": {"txnNum": {"$gt": 0}}}], "cursor": {}}`,
		`{"find": "transactions", "readConcern": {"level": "majority"}}`}
	for i, read := range reads {
		n.ok("d", inSession(fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}]}`, i+1), i+1))
		if got := n.first("config", read); len(got) != 1 || !strings.Contains(fmt.Sprint(got[0]), fmt.Sprintf("txnNum: %d,", i+1)) {
			t.Errorf("after number %d, %s: %v", i+1, read, got)
		}
	}
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 10}], "startTransaction": true, "autocommit": false}`, 10))
	n.ok("admin", inSession(`{"commitTransaction": 1, "autocommit": false}`, 10))
	if got := fmt.Sprint(n.first("config", reads[0])); !strings.Contains(got, "txnNum: 10,") || !strings.Contains(got, "committed") {
		t.Errorf("after a transaction: %s", got)
	}
}
