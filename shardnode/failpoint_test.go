package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fail switches a fail point of the node on for the given number of times, or off for 0.
func (n *testNode) fail(name string, times int, data bson.M) {
	n.t.Helper()
	mode := value.NewString("off")
	if times > 0 {
		mode = value.NewDocument(value.Doc(value.F("times", value.NewInt32(int32(times)))))
	}
	raw, err := bson.Marshal(data)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.srv.Node.Points.Configure(name, mode, raw); err != nil {
		n.t.Fatal(err)
	}
}

// "Not primary" errors by failCommand carried no topologyVersion, so that drivers took them for a state change, marked
// the server unknown, and waited for its next hello. Shutdown errors carry none: no hello reports a shutdown.
func TestFailCommandCarriesTheTopologyVersion(t *testing.T) {
	n := newTestNode(t)
	hello := shown(t, n.ok("admin", `{"hello": 1}`), "topologyVersion")
	for code, want := range map[int]bool{int(mongoerr.NotWritablePrimary): true, int(mongoerr.NotPrimaryNoSecondaryOk): true, int(mongoerr.InterruptedDueToReplStateChange): true, int(mongoerr.PrimarySteppedDown): true, int(mongoerr.ShutdownInProgress): false, int(mongoerr.InterruptedAtShutdown): false, int(mongoerr.InternalError): false} {
		n.fail("failCommand", 1, bson.M{"failCommands": bson.A{"find"}, "errorCode": code})
		r := n.do("d", `{"find": "c"}`)
		if r["code"] != int32(code) {
			t.Fatalf("%d: %v", code, r)
		}
		if has := r["topologyVersion"] != nil; has != want || has && shown(t, r, "topologyVersion") != hello {
			t.Errorf("%d: the error's topologyVersion is %v, hello's %s", code, r["topologyVersion"], hello)
		}
	}
}

// onPrimaryTransactionalWrite was accepted and did nothing.
func TestFailPointOnPrimaryTransactionalWrite(t *testing.T) {
	n := newTestNode(t)
	hungUp := 0
	n.cl.Close = func() { hungUp++ }
	number := 0
	insert := func(id int) bson.M {
		number++
		return n.do("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}], "txnNumber": {"$numberLong": "%d"}, %s}`, id, number, testLSID))
	}
	insert(0)
	n.fail("onPrimaryTransactionalWrite", 1, nil)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`) // no retryable write
	if insert(2); hungUp != 1 {
		t.Errorf("hung up %d times", hungUp)
	}
	n.fail("onPrimaryTransactionalWrite", 1, bson.M{"failBeforeCommitExceptionCode": int(mongoerr.UnknownError), "closeConnection": false})
	if r := insert(3); !strings.Contains(fmt.Sprint(r), "onPrimaryTransactionalWrite") || hungUp != 1 {
		t.Errorf("hung up %d times, %v", hungUp, r)
	}
	n.fail("onPrimaryTransactionalWrite", 1, bson.M{"failBeforeCommitExceptionCode": int(mongoerr.UnknownError)})
	if insert(4); hungUp != 2 {
		t.Errorf("hung up %d times", hungUp)
	}
	if got := fmt.Sprint(n.first("d", `{"find": "c"}`)); got != "[{ _id: 0 } { _id: 1 } { _id: 2 }]" {
		t.Errorf("there are %s", got)
	}
}

// maxTimeAlwaysTimeOut and maxTimeNeverTimeOut did not exist.
func TestFailPointsOfMaxTime(t *testing.T) {
	n := newTestNode(t)
	n.load("d", "c", 500)
	slow := `{"find": "c", "filter": {"$where": "sleep(1) || true"}, "batchSize": 200, "maxTimeMS": 10}`
	for _, tc := range []struct {
		point, cmd string
		want       mongoerr.Code
	}{
		{"maxTimeAlwaysTimeOut", `{"find": "c", "maxTimeMS": 100000}`, mongoerr.MaxTimeMSExpired},
		{"maxTimeAlwaysTimeOut", `{"insert": "c", "documents": [{}], "maxTimeMS": 100000}`, mongoerr.MaxTimeMSExpired},
		{"maxTimeAlwaysTimeOut", `{"find": "c"}`, 0},
		{"maxTimeNeverTimeOut", slow, 0},
		{"disablePipelineOptimization", slow, mongoerr.MaxTimeMSExpired},
	} {
		n.fail(tc.point, 1, nil)
		if got := n.code("d", tc.cmd); got != int32(tc.want) {
			t.Errorf("%s, %s: %d, want %d", tc.point, tc.cmd, got, tc.want)
		}
		n.fail(tc.point, 0, nil)
	}
	// The remaining time of a find applies to its cursor's getMores too.
	r := n.ok("d", `{"find": "c", "batchSize": 2, "maxTimeMS": 100000}`)
	n.fail("maxTimeAlwaysTimeOut", 1, nil)
	if got := n.code("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, cursorID(t, r))); got != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("the getMore: %d", got)
	}
}

// failGetMoreAfterCursorCheckout acted on routers only.
func TestFailPointAfterCursorCheckout(t *testing.T) {
	n := newTestNode(t)
	n.load("d", "c", 500)
	more := fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, cursorID(t, n.ok("d", `{"find": "c", "batchSize": 2}`)))
	n.fail("failGetMoreAfterCursorCheckout", 1, bson.M{"errorCode": int(mongoerr.NotWritablePrimary)})
	for _, want := range []mongoerr.Code{mongoerr.NotWritablePrimary, mongoerr.CursorNotFound} {
		if got := n.code("d", more); got != int32(want) {
			t.Errorf("the getMore: %d, want %d", got, want)
		}
	}
	if n.srv.Node.Points.On("failGetMoreAfterCursorCheckout") {
		t.Error("the point is still on")
	}
}
