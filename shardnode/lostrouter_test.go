package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The open transactions of a killed router blocked other writers of their documents for the rest of their 60 s.
func TestTransactionsOfALostRouterEnd(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`)
	router, process := n.fromRouter()
	write := func(id string) string {
		return `{"update": "c", "updates": [{"q": {"_id": ` + id + `}, "u": {"$set": {"x": 1}}}], "maxTimeMS": 50}`
	}
	router.ok("d", inTxn(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 5}}}]}`, 1, true))
	n.ok("d", otherSession(inTxn(`{"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"x": 5}}}]}`, 1, true)))
	if !n.srv.Node.txns.AbortTxnsOf(cluster.NewUUID()) || n.code("d", write("1")) != int32(mongoerr.MaxTimeMSExpired) {
		t.Error("the transaction of another router has ended")
	}
	if !n.srv.Node.txns.AbortTxnsOf(process) {
		t.Error("no command is running, but AbortTxnsOf reports that some transactions may be left")
	}
	n.ok("d", write("1"))
	if n.code("d", write("2")) != int32(mongoerr.MaxTimeMSExpired) {
		t.Error("the transaction of a client has ended")
	}
	router.ok("d", inTxn(`{"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"x": 5}}}]}`, 2, true))
	router.ok("admin", inTxn(`{"prepareTransaction": 1}`, 2, false))
	n.srv.Node.txns.AbortTxnsOf(process)
	if n.code("d", write("3")) != int32(mongoerr.MaxTimeMSExpired) {
		t.Error("a prepared transaction has ended")
	}
	router.ok("admin", inTxn(`{"abortTransaction": 1}`, 2, false))
}
