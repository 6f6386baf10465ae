package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard has to refresh its routing table for a statement of a transaction, and the config server does not reply: the transaction is given up, with an error after which
// it is begun again. Outside of transactions an operation waits until its own time limit. Both names of the parameter set it.
func TestTransactionDoesNotWaitLongForARefresh(t *testing.T) {
	t.Parallel()
	var held heldTables
	c := newHookedCluster(t, 2, clusterHooks{out: func(set string) func(to cluster.Peer) cluster.Peer {
		return func(to cluster.Peer) cluster.Peer {
			if set == "shard1" && to != nil && held.Peer == nil {
				held.Peer = to
				return &held
			}
			return to
		}
	}})
	c.shardedTxnColl()
	c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), both)
	for i, name := range []string{"metadataRefreshInTransactionMaxWaitMS", "metadataRefreshInTransactionMaxWaitBehindCritSecMS"} {
		c.params["shard1"].Store(name, value.NewInt32(1))
		held.on(true)
		c.restart("shard1")
		w := c.txnClient(i)
		m, code := w.do("d", `{"insert": "c", "documents": [{"_id": 2}], "maxTimeMS": 20000}`, true)
		if mongoerr.Code(code) != mongoerr.ExceededTimeLimit || show(m["errorLabels"]) != `["TransientTransactionError"]` {
			t.Errorf("%s: %v", name, m)
		}
		if m := c.raw("d", `{"find": "c", "filter": {"_id": 1}, "maxTimeMS": 100}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("outside of transactions: %v", m)
		}
		held.on(false)
		c.params["shard1"].Store(name, value.NewInt32(100_000))
		if m, code := w.do("d", `{"insert": "c", "documents": [{"_id": 2}]}`, true); code != 0 {
			t.Errorf("%s: begun again: %v", name, m)
		}
		w.do("admin", `{"abortTransaction": 1}`, false)
	}
}
