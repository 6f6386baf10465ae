package shardnode

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Drivers end a cursor on the member that has it, without a read preference: secondaries refused that (13435), and the cursor
// stayed open until it timed out.
func TestSecondariesEndCursors(t *testing.T) {
	m := newTestMembers(t, 300*time.Millisecond)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}], "writeConcern": {"w": 3}}`)
	for _, x := range m.nodes {
		if x == n {
			continue
		}
		cursor := asM(x.ok("d", `{"find": "c", "batchSize": 1, "$readPreference": {"mode": "secondary"}}`)["cursor"])
		r := x.ok("d", fmt.Sprintf(`{"killCursors": "c", "cursors": [{"$numberLong": "%d"}]}`, cursor["id"]))
		if killed, _ := r["cursorsKilled"].(bson.A); len(killed) != 1 {
			t.Errorf("%v", r)
		}
	}
}
