package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// eventsOf reads a stream until it has the insert of a document, and returns the events of the collections c and d, up to that one.
func (s *streamOf) eventsOf(id int32) (out []string) {
	s.c.t.Helper()
	last := fmt.Sprint("insert ", id)
	s.c.until(last+" is in the stream", func() bool {
		for _, e := range s.more(100) {
			what := field(e, "operationType").(string)
			if key, ok := field(e, "documentKey").(bson.D); ok {
				what = fmt.Sprint(what, " ", field(key, "_id"))
			}
			if out = append(out, what); what == last {
				return true
			}
		}
		return false
	})
	return out
}

// Who writes to a collection under its new name as soon as a shard lets him does so behind the rename, in the streams of the database and of the cluster, even if the
// coordinator's shard is the last one to rename its part. Likewise a name that is dropped: what is written to it next, by an insert that creates it or to a new
// sharded collection, is behind the drop.
func TestWritesUnderANewNameFollowItsEvent(t *testing.T) {
	for _, x := range []struct {
		db, cmd, part, event, into string
		first                      string // sent before the insert, with a time limit
	}{
		{"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "_shardsvrRenameCollectionParticipant", "rename", "d", ""},
		{"admin", `{"renameCollection": "db.c", "to": "db.target", "dropTarget": true}`, "_shardsvrRenameCollectionParticipant", "rename", "target", ""},
		{"db", `{"drop": "c"}`, "_shardsvrDropCollectionParticipant", "drop", "c", ""},
		{"db", `{"drop": "c"}`, "_shardsvrDropCollectionParticipant", "drop", "c", `{"shardCollection": "db.c", "key": {"k": 1}, "maxTimeMS": 100}`},
	} {
		c := newTestCluster(t, 2)
		here := c.interposed("shard0")
		c.fill(20) // shard0 coordinates, and documents from 10 on are on shard1
		c.run("admin", `{"shardCollection": "db.target", "key": {"k": 1}}`)
		c.run("db", `{"insert": "target", "documents": [{"_id": 1, "k": 1}]}`)
		db, whole := &streamOf{c: c, coll: "$cmd.aggregate"}, &streamOf{c: c, db: "admin", coll: "$cmd.aggregate"}
		db.take(c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
		whole.take(c.cmd("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}}}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
		other, insert := c.through(), `{"insert": "`+x.into+`", "documents": [{"_id": %d, "k": 15}], "maxTimeMS": 300}`
		early := make(chan string, 1)
		here.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			if name == x.part && len(early) == 0 {
				if x.first != "" {
					other.raw("admin", x.first)
				}
				m := other.raw("db", fmt.Sprintf(insert, 100))
				if m["code"] != int32(mongoerr.MaxTimeMSExpired) && m["ok"] != 1.0 {
					t.Errorf("an insert beside %s: %v", x.cmd, m)
				}
				early <- fmt.Sprint(m["ok"], " ", m["code"])
			}
			return call()
		})
		c.run(x.db, x.cmd)
		t.Logf("%s: an insert while the coordinator's shard has its part to do: %s", x.cmd, <-early)
		other.run("db", fmt.Sprintf(insert, 101))
		for _, s := range []*streamOf{db, whole} {
			events := s.eventsOf(101)
			if at := slices.Index(events, x.event); at < 0 || slices.ContainsFunc(events[:at], func(e string) bool { return strings.HasPrefix(e, "insert 10") }) {
				t.Errorf("%s: the stream has %q", x.cmd, events)
			}
		}
	}
}
