package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fragmented creates db.c of 1,200 documents of 1 KB in 60 chunks with a chunk size of 1 MB. Their shards are 0, 1, 2, 2, 1, 2, 2, 1, 2, and so on:
// 41 chunks remain once neighbours are merged.
func fragmented(t *testing.T) *testCluster {
	t.Helper()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	for i := 20; i < 1200; i += 20 {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"_id": %d}}`, i))
		if i/20%3 != 0 {
			c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"_id": %d}, "to": "shard%d"}`, i, i/20%3))
		}
	}
	for from := 0; from < 1200; from += 300 {
		var docs []string
		for i := from; i < from+300; i++ {
			docs = append(docs, fmt.Sprintf(`{"_id": %d, "s": %q}`, i, strings.Repeat("x", 1000)))
		}
		c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
	}
	c.run("admin", `{"configureCollectionBalancing": "db.c", "chunkSize": 1}`)
	return c
}

func (c *testCluster) chunks() int { return len(strings.Fields(c.chunkList("c"))) }

// defragmentation returns the fields of the collection's entry that describe its progress.
func (c *testCluster) defragmentation() (on, phase any) {
	c.t.Helper()
	e := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
	return get(e, "defragmentCollection"), get(e, "defragmentationPhase")
}

// A collection in many small chunks is merged into as few as its size requires, phase by phase; a router that knows the earlier chunks
// finds every document.
func TestDefragmentCollection(t *testing.T) {
	t.Parallel()
	c := fragmented(t)
	other := c.through()
	other.expect(other.run("db", `{"count": "c", "query": {}}`)["n"], `1200`)
	before := c.chunks()
	if before != 60 {
		t.Fatalf("%d chunks", before)
	}
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": true}`)
	status := c.run("admin", `{"balancerCollectionStatus": "db.c"}`)
	c.expect(status["balancerCompliant"], `false`)
	c.expect(status["firstComplianceViolation"], `"defragmentingChunks"`)
	c.expect(get(status["details"], "currentPhase"), `"mergeAndMeasureChunks"`)
	c.expect(get(get(status["details"], "progress"), "remainingChunksToProcess"), `60`)
	if err := c.config.Defragment(context.Background()); err != nil {
		t.Fatal(err)
	}
	// A chunk is small below 256 KB: of 1.2 MB at most nine remain that neither are larger nor have small neighbours.
	if n := c.chunks(); n > 9 {
		t.Errorf("%d chunks remain of %d: %s", n, before, c.chunkList("c"))
	}
	if on, phase := c.defragmentation(); on != nil || phase != nil {
		t.Errorf("the entry says %v, %v", on, phase)
	}
	if status := c.run("admin", `{"balancerCollectionStatus": "db.c"}`); status["firstComplianceViolation"] == "defragmentingChunks" {
		t.Errorf("%v", status)
	}
	for _, via := range []*testCluster{c, other} {
		if n := len(via.all("db", `{"find": "c"}`)); n != 1200 {
			t.Errorf("%d documents", n)
		}
	}
}

// Defragmentation obeys the balancer's settings, stops when it is switched off, and continues in the phase that it was in.
func TestDefragmentationStopsAndGoesOn(t *testing.T) {
	c := fragmented(t)
	ctx := context.Background()
	run := func() {
		t.Helper()
		if err := c.config.Defragment(ctx); err != nil {
			t.Fatal(err)
		}
	}
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": true}`)
	c.run("admin", `{"balancerStop": 1}`)
	if run(); c.chunks() != 60 {
		t.Errorf("%d chunks with the balancer off", c.chunks())
	}
	c.run("admin", `{"balancerStart": 1}`)
	for i := range 3 {
		c.point(fmt.Sprintf("shard%d", i), "moveChunkHangAtStep3", true)
	}
	ended := make(chan error)
	go func() { ended <- c.config.Defragment(ctx) }()
	c.until("the second phase", func() bool { _, phase := c.defragmentation(); return phase == "moveAndMergeChunks" })
	var left any
	c.until("progress", func() bool {
		left = get(get(c.run("admin", `{"balancerCollectionStatus": "db.c"}`)["details"], "progress"), "remainingChunksToProcess")
		return show(left) == `41`
	})
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": false}`)
	for i := range 3 {
		c.point(fmt.Sprintf("shard%d", i), "moveChunkHangAtStep3", false)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := c.chunks(); n < 40 { // the move that was under way may have ended
		t.Errorf("%d chunks: it went on after it was stopped", n)
	}
	if on, phase := c.defragmentation(); on != nil || phase != nil {
		t.Errorf("the entry says %v, %v", on, phase)
	}
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": true}`)
	if run(); c.chunks() > 9 {
		t.Errorf("%d chunks", c.chunks())
	}
	c.expect(c.run("db", `{"count": "c", "query": {}}`)["n"], `1200`)
}

// Chunks of different zones stay apart, and each in its zone.
func TestDefragmentationHeedsZones(t *testing.T) {
	t.Parallel()
	c := fragmented(t)
	for shard, zone := range map[string]string{"shard0": "low", "shard1": "high"} {
		c.run("admin", fmt.Sprintf(`{"addShardToZone": %q, "zone": %q}`, shard, zone))
	}
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"_id": {"$minKey": 1}}, "max": {"_id": 600}, "zone": "low"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"_id": 600}, "max": {"_id": {"$maxKey": 1}}, "zone": "high"}`)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": true}`)
	if n := c.balance(1); n != 0 {
		t.Errorf("the balancer moves %d chunks of a collection that is being defragmented", n)
	}
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": false}`)
	c.balance(100)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "defragmentCollection": true}`)
	if err := c.config.Defragment(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.expect(c.chunkList("c"), `"shard0:? shard1:600 "`)
	c.expect(c.run("db", `{"count": "c", "query": {}}`)["n"], `1200`)
}

// dataSize of a range reads the index of the key and stops at its limits.
func TestDataSizeOfARange(t *testing.T) {
	c := newTestCluster(t, 1)
	c.sharded("c", 100)
	ask := func(more string) (out string) {
		m := c.run("db", `{"dataSize": "db.c", "keyPattern": {"_id": 1}, "min": {"_id": 10}, "max": {"_id": 60}`+more+`}`)
		return show(m["numObjects"]) + " " + show(m["maxReached"])
	}
	for more, want := range map[string]string{
		``: `50 null`, `, "estimate": true`: `50 null`, `, "maxObjects": 20`: `21 true`, `, "estimate": true, "maxObjects": 20`: `21 true`, `, "maxSize": 1`: `1 true`,
	} {
		if got := ask(more); got != want {
			t.Errorf("%s: %s, want %s", more, got, want)
		}
	}
	if m := c.raw("admin", `{"configureCollectionBalancing": "db.none", "defragmentCollection": true}`); m["code"] != int32(mongoerr.NamespaceNotSharded) && m["code"] != int32(mongoerr.NamespaceNotFound) {
		t.Errorf("%v", m)
	}
}
