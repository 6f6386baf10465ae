package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
)

// txnOn runs a command of a transaction of w's session on a shard itself.
func (w *txnClient) txnOn(shard, db, cmd string, number int, start bool) (bson.M, error) {
	w.c.t.Helper()
	begin := ""
	if start {
		begin = `, "startTransaction": true`
	}
	var d bson.D
	text := fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false%s, "$db": %q}`, cmd[:len(cmd)-1], w.lsid, number, begin, db)
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		w.c.t.Fatal(err)
	}
	body, _ := bson.Marshal(d)
	reply, err := cluster.Run(context.Background(), w.c.shards[shard], body)
	if err != nil {
		return nil, err
	}
	return decode(w.c.t, reply), nil
}

// The session history that arrives with a chunk is newer than a transaction that is open, or prepared, on the recipient. It does not wait for
// the decision, and the retried write does not run twice.
func TestHistoryThatArrivesBesideATransaction(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprint("prepared ", prepared), func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.twoHalves()
			c.move("shard1")
			c.run("d", `{"create": "mine"}`)
			c.run("d", `{"insert": "mine", "documents": [{"_id": 1}]}`)
			w := c.txnClient(0)
			if _, err := w.txnOn("shard0", "d", `{"update": "mine", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 5}}}]}`, 5, true); err != nil {
				t.Fatal(err)
			}
			if prepared {
				if _, err := w.txnOn("shard0", "admin", `{"prepareTransaction": 1}`, 5, false); err != nil {
					t.Fatal(err)
				}
			}
			write := func() bson.M {
				return c.runAs(w, "d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}], %s, "txnNumber": {"$numberLong": "6"}}`, w.lsid))
			}
			if m := write(); m["nModified"] != int32(1) {
				t.Fatal(m)
			}
			c.move("shard0")
			if prepared {
				if _, err := w.txnOn("shard0", "admin", `{"abortTransaction": 1}`, 5, false); err != nil {
					t.Error(err)
				}
			}
			if m := write(); m["nModified"] != int32(1) || m["retriedStmtIds"] == nil {
				t.Errorf("sent again: %v", m)
			}
			c.expect(c.all("d", `{"find": "c", "filter": {"_id": 1}}`), `[{"_id":1,"x":2}]`)
			if m, err := w.txnOn("shard0", "admin", `{"commitTransaction": 1}`, 5, false); err == nil {
				t.Errorf("the earlier transaction: %v", m)
			}
		})
	}
}
