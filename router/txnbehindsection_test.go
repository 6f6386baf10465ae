package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A transaction has written on one shard; DDL has entered its critical section on the other one and waits for the transaction on the first. The transaction's next statement
// meets the section: it must fail soon, so that the transaction is given up, rather than wait for the DDL that waits for it.
func TestTransactionDoesNotWaitForADDLThatWaitsForIt(t *testing.T) {
	for name, ddl := range map[string][2]string{
		"drop": {"d", `{"drop": "c"}`}, "rename": {"admin", `{"renameCollection": "d.c", "to": "d.e"}`}, "dropDatabase": {"d", `{"dropDatabase": 1}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.shardedTxnColl()
			w := c.txnClient(1)
			if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": -2}]}`, true); code != 0 {
				t.Fatal(m)
			}
			done := c.later(ddl[0], ddl[1])
			c.until("the DDL has its section on the shard that the transaction has not used", func() bool {
				return c.admin(c.shards["shard1"], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})["n"] != int32(0)
			})
			if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": 2}], "maxTimeMS": 10000}`, false); mongoerr.Code(code) == mongoerr.MaxTimeMSExpired || code == 0 {
				t.Error("the statement waited for the section until its own time limit: ", m)
			}
			w.do("admin", `{"abortTransaction": 1}`, false)
			if m := <-done; m["ok"] != 1.0 {
				t.Error(m)
			}
		})
	}
}
