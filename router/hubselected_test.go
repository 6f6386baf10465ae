package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Streams that match one value each stay on the router's shared stream even if more is written for others than its window holds: each
// used to open streams of its own on all shards, and read the others' events.
func TestStreamsOfOneValueOutlastTheWindow(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoShards()
	c.r.SetStreamWindow(4 << 10)
	const n = 14
	streams := make([]*streamOf, n)
	for i := range streams {
		streams[i], _ = c.watch("s", bson.D{}, bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.to", Value: i}}}})
	}
	before := c.cursorsOnShards()
	for round := range 3 {
		for i := range 30 {
			c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: i * 3}, {Key: "to", Value: -1}, {Key: "pad", Value: strings.Repeat("x", 500)}}}}})
		}
		for _, s := range streams {
			if got := s.more(1); len(got) != 0 {
				t.Errorf("a stranger's events: %v", got)
			}
		}
		if now := c.cursorsOnShards(); now != before {
			t.Errorf("round %d: the streams have %d cursors on the shards, want %d", round, now, before)
		}
		for i, s := range streams {
			c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: i * 7}, {Key: "to", Value: i}}}}})
			got := bson.A{}
			for tries := 0; len(got) == 0 && tries < 20; tries++ {
				got = append(got, s.more(500)...)
			}
			if len(got) != 1 || field(field(got[0], "fullDocument"), "to") != int32(i) {
				t.Errorf("round %d: stream %d has %v", round, i, got)
			}
		}
	}
}
