package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Each type of inconsistency that the manual lists for 8.2 (reference/inconsistency-type), but for the one of a shard's cache, is made and found, with the details and
// the description of its page.
func TestEachTypeOfInconsistency(t *testing.T) {
	t.Parallel()
	const overlapping = `{"update": "chunks", "updates": [{"q": {"uuid": UUID, "shard": "shard1"}, "u": {"$set": {"min": {"k": -5}}}}]}`
	zone := func(field, min, max string) [3]string {
		return [3]string{"config", "config", `{"insert": "tags", "documents": [{"ns": "db.c", "tag": "z", "min": {"` + field + `": ` + min + `}, "max": {"` + field + `": ` + max + `}}]}`}
	}
	chunk := func(shard, set string) [3]string {
		return [3]string{"config", "config", `{"update": "chunks", "updates": [{"q": {"uuid": UUID, "shard": "` + shard + `"}, "u": {"$set": {` + set + `}}}]}`}
	}
	options := func(coll, change string) [3]string {
		return [3]string{"config", "config", `{"update": "collections", "updates": [{"q": {"_id": "db.` + coll + `"}, "u": {` + change + `}}]}`}
	}
	for _, x := range []struct {
		kind, coll, description, details string
		do                               [][3]string // a node, a database, and a command
	}{
		{"CollectionAuxiliaryMetadataMismatch", "system.buckets.ts", "Found collection with mismatching auxiliary metadata across shards and/or config server", "namespace collectionMetadata",
			[][3]string{{"shard1", "db", `{"collMod": "system.buckets.ts", "timeseriesBucketsMayHaveMixedSchemaData": true}`}}},
		{"CollectionOptionsMismatch", "c", "Found collection with mismatching options across shards and/or config server", "namespace options",
			[][3]string{{"shard1", "db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`}}},
		{"CollectionOptionsMismatch", "c", "Found collection with mismatching options across shards and/or config server", "namespace options",
			[][3]string{options("c", `"$set": {"defaultCollation": {"locale": "fr"}}`)}},
		{"CollectionOptionsMismatch", "c", "Found collection with mismatching options across shards and/or config server", "namespace options",
			[][3]string{options("c", `"$set": {"timeseriesFields": {"timeField": "t"}}`)}},
		{"CollectionOptionsMismatch", "system.buckets.ts", "Found collection with mismatching options across shards and/or config server", "namespace options",
			[][3]string{options("system.buckets.ts", `"$unset": {"timeseriesFields": 1}`)}},
		{"CollectionUUIDMismatch", "c", "Found collection on non primary shard with mismatching UUID", "namespace shard localUUID uuid", [][3]string{{"shard2", "db", `{"create": "c"}`}}},
		{"CorruptedChunkShardKey", "c", "Found chunk with a shard key pattern violation", "namespace collectionUUID chunk shardKeyPattern", [][3]string{chunk("shard1", `"min": {"y": 0}`)}},
		{"CorruptedZoneShardKey", "c", "Found zone with a shard key pattern violation", "namespace collectionUUID zone shardKeyPattern", [][3]string{zone("y", "0", "1")}},
		{"HiddenShardedCollection", "gone.c", "Found sharded collection but relative database does not exist", "namespace collection", [][3]string{{"config", "config", `{"insert": "collections", "documents": [
			{"_id": "gone.c", "uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}, "lastmodEpoch": {"$oid": "6b03fe3ea9561bd055000213"}, "timestamp": {"$timestamp": {"t": 1, "i": 1}}, "key": {"_id": 1}}]}`}}},
		{"InconsistentIndex", "c", "Found an index of a sharded collection that is inconsistent between different shards", "namespace info",
			[][3]string{{"shard1", "db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`}}},
		{"MisplacedCollection", "stray", "Found unsharded collection without the appropriate metadata on a shard different from the database primary shard", "namespace shard localUUID", [][3]string{{"shard1", "db", `{"create": "stray"}`}}},
		{"MisplacedCollection", "system.views", "Found unsharded collection without the appropriate metadata on a shard different from the database primary shard", "namespace shard localUUID",
			[][3]string{{"config", "config", `{"update": "databases", "updates": [{"q": {"_id": "db"}, "u": {"$set": {"primary": "shard2"}}}]}`}}},
		{"MissingLocalCollection", "c", "Collection registered on the sharding catalog not found on the given shards", "namespace uuid shard", [][3]string{{"shard1", "db", `{"drop": "c"}`}}},
		{"MissingRoutingTable", "c", "There is a sharded collection without routing table", "namespace collectionUUID", [][3]string{{"config", "config", `{"delete": "chunks", "deletes": [{"q": {"uuid": UUID}, "limit": 0}]}`}}},
		{"MissingShardKeyIndex", "h", "Found sharded collection without a shard key index", "namespace shard shardKey", [][3]string{{"shard1", "db", `{"dropIndexes": "h", "index": "k_hashed"}`}}},
		{"RangeDeletionMissingShardKeyIndex", "h", "Found sharded collection with an outstanding range deletion task without a shard key index", "namespace shard shardKey",
			[][3]string{{"", "admin", `{"moveRange": "db.h", "min": MIN, "toShard": "shard2"}`}, {"shard1", "db", `{"dropIndexes": "h", "index": "k_hashed"}`}}},
		{"RoutingTableMissingMaxKey", "c", "Routing table has a gap because last chunk boundary does not reach MaxKey", "namespace collectionUUID maxKeyObj globalMax", [][3]string{chunk("shard1", `"max": {"k": 100}`)}},
		{"RoutingTableMissingMinKey", "c", "Routing table has a gap because first chunk does not start from MinKey", "namespace collectionUUID minKeyObj globalMin", [][3]string{chunk("shard0", `"min": {"k": -100}`)}},
		{"RoutingTableRangeGap", "c", "Found a gap between two consecutive chunks", "namespace collectionUUID chunkA chunkB", [][3]string{chunk("shard1", `"min": {"k": 1}`)}},
		{"RoutingTableRangeOverlap", "c", "Found two overlapping consecutive chunks", "namespace collectionUUID chunkA chunkB", [][3]string{{"config", "config", overlapping}}},
		{"TrackedUnshardedCollectionHasInvalidKey", "moved", "Found tracked unsharded collection with invalid shard-key", "namespace uuid shardKey",
			[][3]string{{"config", "config", `{"update": "collections", "updates": [{"q": {"_id": "db.moved"}, "u": {"$set": {"key": {"x": 1}}}}]}`}}},
		{"TrackedUnshardedCollectionHasMultipleChunks", "moved", "Found tracked unsharded collection with more than one chunks", "namespace uuid numChunks",
			[][3]string{{"config", "config", `{"insert": "chunks", "documents": [{"uuid": UUID, "min": {"_id": 1}, "max": {"_id": 2}, "shard": "shard1", "lastmod": {"$timestamp": {"t": 9, "i": 9}}}]}`}}},
		{"ZonesRangeOverlap", "c", "Found two overlapping zones", "namespace collectionUUID zoneA zoneB", [][3]string{zone("k", "0", "10"), zone("k", "5", "15")}},
	} {
		c := newTestCluster(t, 3)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		for _, ns := range []string{"db.c", "db.ts"} {
			key, more := "k", ""
			if ns == "db.ts" {
				key, more = "m", `, "timeseries": {"timeField": "t", "metaField": "m"}`
			}
			c.run("admin", `{"shardCollection": "`+ns+`", "key": {"`+key+`": 1}`+more+`}`)
			in := strings.Replace(ns, "ts", "system.buckets.ts", 1)
			if ns == "db.ts" {
				key = "meta"
			}
			c.run("admin", `{"split": "`+in+`", "middle": {"`+key+`": 0}}`)
			c.run("admin", `{"moveChunk": "`+in+`", "find": {"`+key+`": 5}, "to": "shard1", "_waitForDelete": true}`)
		}
		c.insertKeys("c", 1, 10)
		c.shardedAs("h", 1, 10)
		c.insertKeys("moved", 1, 2)
		c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		if x.kind == "RangeDeletionMissingShardKeyIndex" {
			c.param("shard1", "disableResumableRangeDeleter", true)
		}
		uuid, min := "", ""
		if e := c.all("config", `{"find": "collections", "filter": {"_id": "db.`+x.coll+`"}}`); len(e) == 1 {
			uuid = show(get(e[0], "uuid"))
			if on := c.all("config", `{"find": "chunks", "filter": {"shard": "shard1", "uuid": `+uuid+`}}`); len(on) > 0 {
				min = show(get(on[0], "min"))
			}
		}
		for _, do := range x.do {
			cmd := strings.ReplaceAll(strings.ReplaceAll(do[2], "UUID", uuid), "MIN", min)
			if do[0] == "" {
				c.run(do[1], cmd)
				continue
			}
			p := c.confP
			if do[0] != "config" {
				p = c.shards[do[0]]
			}
			if m := c.onPeer(p, do[1], cmd); m["ok"] != 1.0 || m["writeErrors"] != nil {
				t.Fatalf("%s: %v", cmd, m)
			}
		}
		var kinds []string
		for _, d := range c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`) {
			kinds = append(kinds, get(d, "type").(string))
			if get(d, "type") != x.kind {
				continue
			}
			var names []string
			for _, e := range get(d, "details").(bson.D) {
				names = append(names, e.Key)
			}
			if got := strings.Join(names, " "); got != x.details || get(d, "description") != x.description {
				t.Errorf("%s: %s", x.kind, show(d))
			}
			x.kind = strings.TrimSuffix(x.kind, " found") + " found"
		}
		if !strings.HasSuffix(x.kind, " found") {
			t.Errorf("%s is not found, but %v", x.kind, kinds)
		}
	}
}
