package shardnode

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A findAndModify whose first attempt met a conflict, and whose document no longer matches at the second, modifies
// nothing and reports that: it does not return what the first attempt would have written.
func TestFindAndModifyAnswersForItsLastAttempt(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "v": 0}]}`)
	const lsid = `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}`
	n.ok("d", `{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"w": 1}}, "new": true, "txnNumber": {"$numberLong": "1"}, `+lsid+`}`)
	// Another unit of work holds the session's image, as one that imports sessions with a chunk does.
	node := n.srv.Node
	s := node.Engine.Snapshot()
	u := node.Engine.NewUnitOfWork(s)
	c := s.Catalog().Lookup(txn.ImagesNS)
	cur := s.Scan(c, storage.ScanOptions{})
	if !cur.Next() {
		t.Fatal("there is no image")
	}
	image := append([]byte(nil), cur.Doc()...)
	cur.Close()
	if err := statedoc.PutIn(s, u, c, value.WithField(image, "held", value.NewBool(true))); err != nil {
		t.Fatal(err)
	}
	answer := make(chan any, 1)
	go func() {
		answer <- n.do("d", `{"findAndModify": "c", "query": {"_id": 1, "v": 0}, "update": {"$set": {"v": 1}}, "new": true, "txnNumber": {"$numberLong": "2"}, `+lsid+`}`)["value"]
	}()
	time.Sleep(50 * time.Millisecond) // attempts follow each other much faster, and are counted only when the operation ends
	n.other().ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"v": 2}}}]}`)
	u.Rollback()
	s.Release()
	if got := <-answer; got != nil {
		t.Errorf("it answers %v", got)
	}
}

// other is another client of the node.
func (n *testNode) other() *testNode {
	return &testNode{t: n.t, srv: n.srv, cl: command.NewClient(2, "test:2", "test:27017", nil)}
}

// A findAndModify that is sent again, and whose image is gone, does not answer that it found nothing. The collection of the images
// cannot be dropped.
func TestFindAndModifyWhoseImageIsGone(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`)
	if code := n.code("config", `{"drop": "image_collection"}`); code != int32(mongoerr.InvalidNamespace) {
		t.Errorf("drop of the images: code %d", code)
	}
	cases := []struct {
		cmd  string
		want mongoerr.Code
	}{
		{`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"w": 1}}, "txnNumber": {"$numberLong": "%d"}, ` + testLSID + `}`, mongoerr.IncompleteTransactionHistory},
		{`{"findAndModify": "c", "query": {"_id": 2}, "remove": true, "txnNumber": {"$numberLong": "%d"}, ` + testLSID + `}`, mongoerr.IncompleteTransactionHistory},
		{`{"findAndModify": "c", "query": {"_id": 3}, "update": {"$set": {"w": 1}}, "upsert": true, "txnNumber": {"$numberLong": "%d"}, ` + testLSID + `}`, mongoerr.OK},
	}
	for i, c := range cases {
		cmd := fmt.Sprintf(c.cmd, i+1)
		first := n.ok("d", cmd)
		n.ok("config", `{"delete": "image_collection", "deletes": [{"q": {}, "limit": 0}]}`)
		n.forgetSessions()
		if again := n.do("d", cmd); c.want == mongoerr.OK && !reflect.DeepEqual(again["value"], first["value"]) || c.want != mongoerr.OK && again["code"] != int32(c.want) {
			t.Errorf("%s: %v, want code %d", cmd, again, c.want)
		}
	}
}
