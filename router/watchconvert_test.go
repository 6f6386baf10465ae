package router_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Streams show a convertToCapped of a collection that moveCollection has placed like one of a collection that has never been moved.
func TestStreamsOfConvertToCapped(t *testing.T) {
	t.Parallel()
	for _, expanded := range []bool{false, true} {
		want := convertedEvents(t, expanded, "")
		if !strings.Contains(strings.Join(want, "\n"), `"operationType":"rename"`) {
			t.Fatalf("events of a collection that was not moved: %q", want)
		}
		for _, to := range []string{"shard0", "shard1"} {
			if got := convertedEvents(t, expanded, to); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("expanded %t, moved to %s:\n%s\nnot moved:\n%s", expanded, to, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

// convertedEvents returns the events of a convertToCapped that streams of the database and of the collection show, without what differs between any two runs. The collection has been moved to
// a shard, or never if that is "".
func convertedEvents(t *testing.T, expanded bool, to string) (shown []string) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "log"}`)
	c.run("db", `{"createIndexes": "log", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
	if to != "" {
		c.run("admin", `{"moveCollection": "db.log", "toShard": "shard1"}`)
	}
	if to == "shard0" {
		c.run("admin", `{"moveCollection": "db.log", "toShard": "shard0"}`)
	}
	c.run("db", `{"insert": "log", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}]}`)
	spec := bson.D{{Key: "showExpandedEvents", Value: expanded}}
	coll, _ := c.watch("log", spec)
	db := &streamOf{c: c, coll: "$cmd.aggregate"}
	db.take(c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
	c.run("db", `{"convertToCapped": "log", "size": 8192}`)
	c.run("db", `{"insert": "log", "documents": [{"_id": 3, "k": 3}]}`)
	c.run("db", `{"insert": "end", "documents": [{"_id": 1}]}`)
	names := map[string]string{}
	for _, s := range []*streamOf{coll, db} {
		shown = append(shown, "of "+s.coll)
		c.until("the last event", func() bool {
			last := ""
			for _, e := range s.more(100) {
				last = sameEvent(t, e, names)
				shown = append(shown, last)
			}
			return strings.Contains(last, `"coll":"end"`) || strings.Contains(last, `"invalidate"`)
		})
	}
	return shown
}

// chosen are UUIDs, and the names of temporary collections.
var chosen = regexp.MustCompile(`tmp[0-9a-zA-Z]+\.|"base64":"[^"]+"`)

// sameEvent shows an event without its token and times, and with numbers, in the order of their appearance, for what any run chooses anew.
func sameEvent(t *testing.T, e any, names map[string]string) string {
	out := bson.D{}
	for _, f := range e.(bson.D) {
		switch f.Key {
		case "_id", "clusterTime", "wallTime":
		default:
			out = append(out, f)
		}
	}
	js, err := bson.MarshalExtJSON(out, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return chosen.ReplaceAllStringFunc(string(js), func(s string) string {
		if names[s] == "" {
			names[s] = fmt.Sprintf("<%d>", len(names))
		}
		return names[s]
	})
}
