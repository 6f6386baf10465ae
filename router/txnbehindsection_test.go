package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
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

// A transaction that has written on one shard goes on with a statement that its router sends to the wrong shard, since a chunk moved before the transaction began. Nothing of the transaction is lost by sending
// the statement again.
func TestTransactionsAreRoutedAgain(t *testing.T) {
	c := newTestCluster(t, 3)
	c.shardedTxnColl()
	c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), both)
	if m := <-c.later("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shard2"}`); m["ok"] != 1.0 {
		t.Fatal(m)
	}
	w := c.txnClient(1)
	if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": -2}]}`, true); code != 0 {
		t.Fatal(m)
	}
	if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": 2}]}`, false); code != 0 {
		t.Errorf("the statement is not sent to the shard that has the chunk: %v", show(m))
	}
	if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
		t.Errorf("%v", show(m))
	}
}

// A section of a migration that is much shorter than the limit, and a transaction that has written on a shard that has nothing to do with the migration.
func TestTransactionsWaitForShortSections(t *testing.T) {
	c := newTestCluster(t, 3)
	c.params["shard1"].Store("metadataRefreshInTransactionMaxWaitBehindCritSecMS", value.NewInt32(100_000))
	c.shardedTxnColl()
	c.run("admin", `{"split": "d.c", "middle": {"_id": 5}}`)
	w := c.txnClient(1)
	if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": -2}]}`, true); code != 0 {
		t.Fatal(m)
	}
	entered := c.point("shard1", "moveChunkHangAtStep5", true)
	moved := c.later("admin", `{"moveChunk": "d.c", "find": {"_id": 6}, "to": "shard2"}`)
	entered()
	wrote := make(chan string, 1)
	go func() {
		if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": 2}]}`, false); code != 0 {
			wrote <- show(m)
		}
		close(wrote)
	}()
	c.until("the statement waits", func() bool {
		ops := c.admin(c.shards["shard1"], bson.D{{Key: "currentOp", Value: 1}, {Key: "command.insert", Value: "c"}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) > 0
	})
	c.point("shard1", "moveChunkHangAtStep5", false)
	if m := <-wrote; m != "" {
		t.Errorf("the transaction is given up: %s", m)
	}
	w.do("admin", `{"abortTransaction": 1}`, false)
	<-moved
}
