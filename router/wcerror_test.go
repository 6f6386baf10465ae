package router_test

import (
	"context"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// late is a shard whose writes and catalog changes do not satisfy their write concern.
type late struct {
	cluster.Peer
	error func() []byte
}

var lateCommands = map[string]bool{"insert": true, "update": true, "delete": true, "findAndModify": true, "bulkWrite": true, "createIndexes": true, "commitTransaction": true}

func (l late) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	mark := len(dst)
	out, err := l.Peer.Call(ctx, m, dst)
	it := value.Walk(m.Body)
	name, _, _ := it.Next()
	if err != nil || !lateCommands[string(name)] || value.Lookup(m.Body, "writeConcern").IsMissing() || cluster.ReplyError(out[mark:]) != nil {
		return out, err
	}
	reply := append([]byte(nil), out[mark:]...)
	d, at := value.Begin(out[:mark])
	for k, v := range value.Elements(reply) {
		if k == "ok" {
			d = value.Append(d, "writeConcernError", value.NewDocument(l.error()))
		}
		d = value.Append(d, k, v)
	}
	return value.End(d, at), nil
}

// The router reports which shard did not satisfy the write concern, and lists all of them if there are several.
func TestWriteConcernErrorsOfShards(t *testing.T) {
	c := newTestCluster(t, 2)
	timeout := mongoerr.WriteConcernTimeout
	code := timeout
	for id := range c.shards {
		c.between(id, func(p cluster.Peer) cluster.Peer {
			return late{p, func() []byte {
				return value.Doc(value.F("code", value.NewInt32(int32(code))), value.F("codeName", value.NewString(code.Name())),
					value.F("errmsg", value.NewString("waiting for replication timed out")),
					value.F("errInfo", value.NewDocument(value.Doc(value.F("wtimeout", value.NewBool(true))))))
			}}
		})
	}
	c.shardedTxnColl()
	const wc = `, "writeConcern": {"w": "majority", "wtimeout": 100}}`
	one := func(shard string) string {
		return `waiting for replication timed out; Error details: { wtimeout: true } at ` + shard
	}
	quoted := `{ code: 64, codeName: "WriteConcernTimeout", errmsg: "waiting for replication timed out", errInfo: { wtimeout: true } } at `
	both := "multiple errors reported : " + quoted + "shard0 :: and :: " + quoted + "shard1"
	swapped := "multiple errors reported : " + quoted + "shard1 :: and :: " + quoted + "shard0"
	for _, tc := range []struct{ db, cmd, want string }{
		{"d", `{"insert": "c", "documents": [{"_id": -2}]`, one("shard0")},
		{"d", `{"insert": "c", "documents": [{"_id": -3}, {"_id": 3}], "ordered": false`, both},
		{"d", `{"insert": "plain", "documents": [{"_id": 1}]`, one("shard0")},
		{"d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]`, one("shard1")},
		{"d", `{"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]`, one("shard1")},
		{"d", `{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"x": 2}}`, one("shard1")},
		{"d", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]`, both},
		{"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 5}}], "nsInfo": [{"ns": "d.c"}]`, one("shard1")},
	} {
		r := c.run(tc.db, tc.cmd+wc)
		e := r["writeConcernError"]
		if e == nil {
			t.Errorf("%s: no writeConcernError in %v", tc.cmd, r)
			continue
		}
		msg := get(e, "errmsg").(string)
		if get(e, "code") != int32(timeout) || msg != tc.want && (tc.want != both || msg != swapped) {
			t.Errorf("%s: %v", tc.cmd, e)
		}
		if details := get(e, "errInfo"); (details != nil) != strings.HasPrefix(tc.want, "waiting") {
			t.Errorf("%s: errInfo %v", tc.cmd, details)
		}
	}
	// A bulkWrite over several namespaces stops there.
	r := c.run("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 6}}, {"insert": 1, "document": {"_id": 7}}], "nsInfo": [{"ns": "d.c"}, {"ns": "d.other"}]`+wc)
	if r["nInserted"] != int32(1) || r["nErrors"] != int32(1) || r["writeConcernError"] == nil {
		t.Errorf("bulkWrite over two namespaces: %v", r)
	}
	// A shard's state change is reported to clients of the router under another code.
	code = mongoerr.InterruptedDueToReplStateChange
	r = c.run("d", `{"insert": "c", "documents": [{"_id": 8}]`+wc)
	if e := r["writeConcernError"]; e == nil || get(e, "code") != int32(mongoerr.HostUnreachable) {
		t.Errorf("a change of state: %v", r)
	}
}
