package router_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
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

// That a statement of a transaction has waited for a critical section in vain is told to routers, which give the transaction up, and to no client: neither by the router nor by a shard to which it has connected.
func TestClientsAreNotToldOfBlockedStatements(t *testing.T) {
	var sent atomic.Pointer[bson.D]
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		var d bson.D
		if shard == "shard1" && string(m.CommandName()) == "insert" && bson.Unmarshal(m.Body, &d) == nil {
			sent.Store(&d)
		}
		return nil
	})
	c.shardedTxnColl()
	c.params["shard1"].Store("metadataRefreshInTransactionMaxWaitBehindCritSecMS", value.NewInt32(1))
	c.run("d", `{"insert": "other", "documents": [{"_id": 1}]}`)
	reached, release := c.hangAt("shard0", "dropCollection")
	done := c.later("d", `{"drop": "c"}`)
	reached()
	check := func(of string, m bson.M, told bool) {
		t.Helper()
		if _, has := m["blocked"]; has != told || m["code"] != int32(mongoerr.StaleConfig) || m["ns"] != "d.c" {
			t.Errorf("%s: %v", of, m)
		}
	}
	w := c.txnClient(1)
	if m, code := w.do("d", `{"insert": "other", "documents": [{"_id": 2}]}`, true); code != 0 {
		t.Fatal(m)
	}
	m, _ := w.do("d", `{"insert": "c", "documents": [{"_id": 2}]}`, false)
	check("the router", m, false)
	for number, internal := range []bool{false, true} {
		client := command.NewClient(7, "test", "test", nil)
		client.Internal = internal
		d := append(slices.Clone(*sent.Load()), bson.E{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 2}}}}) // the router has sent them beside the body
		for i := range d {
			if d[i].Key == "txnNumber" {
				d[i].Value = int64(100 + number)
			}
		}
		body, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprint("the shard, to a router: ", internal), decode(t, c.server["shard1"].Service.Run(t.Context(), client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)), internal)
	}
	release()
	if m := <-done; m["ok"] != 1.0 {
		t.Error(m)
	}
}
