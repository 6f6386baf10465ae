package consistency

import (
	"bytes"
	"cmp"
	"hash/fnv"
	"iter"
	"maps"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// Collection is an entry of config.collections.
type Collection struct {
	NS    string
	UUID  value.Value
	Key   *cluster.ShardKeyPattern
	entry []byte
}

// Local is a shard's part of a collection.
type Local struct {
	Shard   string
	Owner   bool // of chunks
	UUID    value.Value
	Options []byte
	Indexes [][]byte
	// Auxiliary is what the shard's catalog says of the collection beside its options and indexes.
	Auxiliary []byte
	// Deletes means that ranges of the collection are to be deleted on the shard.
	Deletes bool
}

// Parse reads an entry.
func Parse(entry []byte) (*Collection, error) {
	e, err := cluster.ParseCollectionEntry(entry)
	if err != nil {
		return nil, err
	}
	return &Collection{NS: e.NS, UUID: value.Lookup(entry, "uuid"), Key: e.Key, entry: entry}, nil
}

// found returns the document of an inconsistency. Types, descriptions and details are those of the manual's pages below reference/inconsistency-type.
func found(kind, text, ns string, details ...value.Field) []byte {
	details = append([]value.Field{value.F("namespace", value.NewString(ns))}, details...)
	return value.Doc(value.F("type", value.NewString(kind)), value.F("description", value.NewString(text)), value.F("details", value.NewDocument(value.Doc(details...))))
}

func (c *Collection) found(kind, text string, details ...value.Field) []byte {
	return found(kind, text, c.NS, append([]value.Field{value.F("collectionUUID", c.UUID)}, details...)...)
}

// Hidden returns the inconsistency of a collection whose database does not exist.
func Hidden(ns string, entry []byte) []byte {
	return found("HiddenShardedCollection", "Found sharded collection but relative database does not exist", ns, value.F("collection", value.NewDocument(entry)))
}

// Misplaced returns the inconsistency of an unsharded collection on a shard that is not the primary shard of its
// database.
func Misplaced(ns, shard string, uuid value.Value) []byte {
	return found("MisplacedCollection", "Found unsharded collection without the appropriate metadata on a shard different from the database primary shard", ns,
		value.F("shard", value.NewString(shard)), value.F("localUUID", uuid))
}

// piece is a chunk or a zone's range.
type piece struct {
	doc      value.Value
	min, max []value.Value
}

func (p *piece) empty() bool { return cluster.CompareKeys(p.min, p.max) >= 0 }

// pieces returns those documents whose bounds have the key's fields, in order, and the inconsistencies of the others.
func (c *Collection) pieces(docs [][]byte, kind, text, name string) (out []piece, bad [][]byte) {
	for _, d := range docs {
		p := piece{doc: value.NewDocument(d)}
		min, max := value.LookupDoc(d, "min"), value.LookupDoc(d, "max")
		if !c.hasFields(min) || !c.hasFields(max) {
			bad = append(bad, c.found(kind, text, value.F(name, p.doc), value.F("shardKeyPattern", value.NewDocument(c.Key.Doc()))))
			continue
		}
		p.min, p.max = value.Values(min), value.Values(max)
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b piece) int {
		return cmp.Or(cluster.CompareKeys(a.min, b.min), cluster.CompareKeys(a.max, b.max))
	})
	return out, bad
}

func (c *Collection) hasFields(bound []byte) bool {
	i := 0
	for name := range value.Elements(bound) {
		if i == len(c.Key.Parts) || c.Key.Parts[i].Path != name {
			return false
		}
		i++
	}
	return i == len(c.Key.Parts)
}

// RoutingTable checks the chunks of a collection.
func (c *Collection) RoutingTable(chunks [][]byte) (bad [][]byte) {
	unsplittable := value.Lookup(c.entry, "unsplittable").Truthy()
	if unsplittable && value.CompareDocs(c.Key.Doc(), value.Doc(value.F("_id", value.NewInt32(1))), nil) != 0 {
		bad = append(bad, found("TrackedUnshardedCollectionHasInvalidKey", "Found tracked unsharded collection with invalid shard-key", c.NS,
			value.F("uuid", c.UUID), value.F("shardKey", value.NewDocument(c.Key.Doc()))))
	}
	if len(chunks) == 0 {
		return append(bad, c.found("MissingRoutingTable", "There is a sharded collection without routing table"))
	}
	if unsplittable && len(chunks) > 1 {
		bad = append(bad, found("TrackedUnshardedCollectionHasMultipleChunks", "Found tracked unsharded collection with more than one chunks", c.NS,
			value.F("uuid", c.UUID), value.F("numChunks", value.NewInt32(int32(len(chunks))))))
	}
	all, corrupted := c.pieces(chunks, "CorruptedChunkShardKey", "Found chunk with a shard key pattern violation", "chunk")
	bad = append(bad, corrupted...)
	if len(all) == 0 {
		return bad
	}
	if low := c.Key.GlobalMin(); cluster.CompareKeys(all[0].min, value.Values(low)) != 0 {
		bad = append(bad, c.found("RoutingTableMissingMinKey", "Routing table has a gap because first chunk does not start from MinKey",
			value.F("minKeyObj", value.NewDocument(c.Key.KeyDoc(all[0].min))), value.F("globalMin", value.NewDocument(low))))
	}
	last := all[0]
	for i, p := range all[1:] {
		if p.empty() || i == 0 && last.empty() { // two chunks begin, or end, at the same key
			bad = append(bad, c.found("RoutingTableRangeOverlap", "Found two overlapping consecutive chunks", value.F("chunkA", last.doc), value.F("chunkB", p.doc)))
			continue
		}
		switch r := cluster.CompareKeys(last.max, p.min); {
		case r < 0:
			bad = append(bad, c.found("RoutingTableRangeGap", "Found a gap between two consecutive chunks", value.F("chunkA", last.doc), value.F("chunkB", p.doc)))
		case r > 0:
			bad = append(bad, c.found("RoutingTableRangeOverlap", "Found two overlapping consecutive chunks", value.F("chunkA", last.doc), value.F("chunkB", p.doc)))
		}
		if cluster.CompareKeys(p.max, last.max) >= 0 {
			last = p
		}
	}
	if high := c.Key.GlobalMax(); cluster.CompareKeys(last.max, value.Values(high)) != 0 {
		bad = append(bad, c.found("RoutingTableMissingMaxKey", "Routing table has a gap because last chunk boundary does not reach MaxKey",
			value.F("maxKeyObj", value.NewDocument(c.Key.KeyDoc(last.max))), value.F("globalMax", value.NewDocument(high))))
	}
	return bad
}

// Zones checks the ranges of a collection's zones.
func (c *Collection) Zones(zones [][]byte) (bad [][]byte) {
	all, bad := c.pieces(zones, "CorruptedZoneShardKey", "Found zone with a shard key pattern violation", "zone")
	for i := 1; i < len(all); i++ {
		if cluster.CompareKeys(all[i-1].max, all[i].min) > 0 {
			bad = append(bad, c.found("ZonesRangeOverlap", "Found two overlapping zones", value.F("zoneA", all[i-1].doc), value.F("zoneB", all[i].doc)))
		}
	}
	return bad
}

// Sum returns a number that tables with the same chunks have in common, whatever the order of the chunks.
func Sum(chunks iter.Seq[*cluster.Chunk]) (sum int64) {
	for c := range chunks {
		h := fnv.New64a()
		_, _ = h.Write(value.Doc(value.F("min", value.NewDocument(c.Min)), value.F("max", value.NewDocument(c.Max)), value.F("shard", value.NewString(c.Shard)),
			value.F("lastmod", value.NewTimestampU64(c.Version.Combined()))))
		sum += int64(h.Sum64())
	}
	return sum
}

// Cached checks the tables that shards have stored, by their ids, against the chunks of a table without gaps. One that is older or newer, or of another incarnation of
// the collection, is not compared: a shard fetches what has changed since before it uses the table.
func (c *Collection) Cached(chunks [][]byte, stored map[string]*msg.CheckParticipantReply) [][]byte {
	e, err := cluster.ParseCollectionEntry(c.entry)
	if err != nil {
		return nil
	}
	table := make([]*cluster.Chunk, len(chunks))
	version := uint64(0)
	for i, d := range chunks {
		if table[i], err = cluster.ParseChunk(d, e.Generation); err != nil {
			return nil
		}
		version = max(version, table[i].Version.Combined())
	}
	var differ []value.Value
	for _, id := range slices.Sorted(maps.Keys(stored)) {
		has := stored[id]
		if has.Entry == nil {
			continue
		}
		own, err := cluster.ParseCollectionEntry(has.Entry)
		if err != nil || !own.Generation.SameGeneration(e.Generation) || has.Version != version {
			continue
		}
		what := ""
		switch {
		case own.UUID != e.UUID || !bytes.Equal(own.Key.Doc(), e.Key.Doc()) || own.Unique != e.Unique:
			what = "collection"
		case has.Damaged || has.Sum != Sum(slices.Values(table)):
			what = "chunks"
		default:
			continue
		}
		differ = append(differ, value.NewDocument(value.Doc(value.F("shard", value.NewString(id)), value.F("field", value.NewString(what)))))
	}
	if len(differ) == 0 {
		return nil
	}
	return [][]byte{c.found("ShardCatalogCacheCollectionMetadataMismatch", "Shard is missing metadata or routing information for the collection", value.F("details", value.NewArray(value.ArrayOf(differ...))))}
}

// Owners returns the shards that own chunks.
func Owners(chunks [][]byte) (ids []string) {
	for _, d := range chunks {
		ids = append(ids, value.Lookup(d, "shard").Str())
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Locals checks the shards' parts of a collection: every shard that owns chunks must have the collection, and all of them must have it
// under the catalog's UUID, with the same options.
func (c *Collection) Locals(owners []string, locals []Local) (bad [][]byte) {
	var options, auxiliary groups
	for _, id := range owners {
		if !slices.ContainsFunc(locals, func(l Local) bool { return l.Shard == id }) {
			bad = append(bad, found("MissingLocalCollection", "Collection registered on the sharding catalog not found on the given shards", c.NS, value.F("uuid", c.UUID), value.F("shard", value.NewString(id))))
		}
	}
	for _, l := range locals {
		if !value.Equal(l.UUID, c.UUID) {
			bad = append(bad, found("CollectionUUIDMismatch", "Found collection on non primary shard with mismatching UUID", c.NS,
				value.F("shard", value.NewString(l.Shard)), value.F("localUUID", l.UUID), value.F("uuid", c.UUID)))
			continue
		}
		if l.Owner {
			options.add(l.Options, l.Shard)
			auxiliary.add(l.Auxiliary, l.Shard)
		}
	}
	if planned := c.planned(options); planned != nil {
		options.add(planned, cluster.ConfigShardID)
	}
	if len(options) > 1 {
		bad = append(bad, found("CollectionOptionsMismatch", "Found collection with mismatching options across shards and/or config server", c.NS, value.F("options", options.list("options"))))
	}
	if len(auxiliary) > 1 {
		bad = append(bad, found("CollectionAuxiliaryMetadataMismatch", "Found collection with mismatching auxiliary metadata across shards and/or config server", c.NS,
			value.F("collectionMetadata", auxiliary.list("md"))))
	}
	return bad
}

// A record is an option of a collection that its entry has a copy of, by which routers target.
type record struct{ option, field string }

var recorded = []record{{"collation", "defaultCollation"}, {"timeseries", "timeseriesFields"}}

// planned returns the options that the owners would have if the entry were right about those that it records; nil if one of them has those.
func (c *Collection) planned(options groups) []byte {
	if len(options) == 0 {
		return nil
	}
	for _, g := range options {
		if !slices.ContainsFunc(recorded, func(x record) bool {
			return !value.SameFields(recordedAs(g.doc, x.option), recordedAs(c.entry, x.field))
		}) {
			return nil
		}
	}
	var out []value.Field
	for k, v := range value.Elements(options[0].doc) {
		if !slices.ContainsFunc(recorded, func(x record) bool { return x.option == k }) {
			out = append(out, value.F(k, v))
		}
	}
	for _, x := range recorded {
		if d := value.LookupDoc(c.entry, x.field); d != nil {
			out = append(out, value.F(x.option, value.NewDocument(d)))
		}
	}
	return value.Doc(out...)
}

// recordedAs returns an option as entries record it: the simple collation is none.
func recordedAs(doc []byte, name string) []byte {
	d := value.LookupDoc(doc, name)
	if value.Lookup(d, "locale").Str() == "simple" {
		return nil
	}
	return d
}

// groups are the shards by what they have of a collection.
type groups []struct {
	doc    []byte
	shards []value.Value
}

func (g *groups) add(doc []byte, shard string) {
	for i := range *g {
		if x := &(*g)[i]; value.SameFields(x.doc, doc) {
			x.shards = append(x.shards, value.NewString(shard))
			return
		}
	}
	*g = append(*g, struct {
		doc    []byte
		shards []value.Value
	}{doc, []value.Value{value.NewString(shard)}})
}

// list returns the groups, with what they have under a name.
func (g groups) list(name string) value.Value {
	var list []value.Value
	for _, x := range g {
		list = append(list, value.NewDocument(value.Doc(value.F(name, value.NewDocument(x.doc)), value.F("shards", value.NewArray(value.ArrayOf(x.shards...))))))
	}
	return value.NewArray(value.ArrayOf(list...))
}

// ShardKeyIndex checks that the owners have an index that serves the shard key, and so have shards with ranges to delete.
func (c *Collection) ShardKeyIndex(locals []Local) (bad [][]byte) {
	for _, l := range locals {
		if slices.ContainsFunc(l.Indexes, c.serves) {
			continue
		}
		where := []value.Field{value.F("shard", value.NewString(l.Shard)), value.F("shardKey", value.NewDocument(c.Key.Doc()))}
		if l.Owner {
			bad = append(bad, found("MissingShardKeyIndex", "Found sharded collection without a shard key index", c.NS, where...))
		}
		if l.Deletes {
			bad = append(bad, found("RangeDeletionMissingShardKeyIndex", "Found sharded collection with an outstanding range deletion task without a shard key index", c.NS, where...))
		}
	}
	return bad
}

func (c *Collection) serves(spec []byte) bool {
	if value.Lookup(spec, "sparse").Truthy() || !value.Lookup(spec, "partialFilterExpression").IsMissing() {
		return false
	}
	own := value.Lookup(spec, "collation")
	return (own.T != value.Document || value.Lookup(own.Doc(), "locale").Str() == "simple") && c.Key.IsPrefixOfIndex(value.LookupDoc(spec, "key"))
}

// Indexes checks that the owners have the same indexes.
func (c *Collection) Indexes(locals []Local) (bad [][]byte) {
	var names []string
	for _, l := range locals {
		for _, spec := range l.Indexes {
			if l.Owner {
				names = append(names, value.Lookup(spec, "name").Str())
			}
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		var missing []value.Value
		var specs [][]byte
		for _, l := range locals {
			if !l.Owner {
				continue
			}
			if i := slices.IndexFunc(l.Indexes, func(spec []byte) bool { return value.Lookup(spec, "name").Str() == name }); i >= 0 {
				specs = append(specs, l.Indexes[i])
			} else {
				missing = append(missing, value.NewString(l.Shard))
			}
		}
		differ := differing(specs)
		if len(missing) == 0 && len(differ) == 0 {
			continue
		}
		bad = append(bad, found("InconsistentIndex", "Found an index of a sharded collection that is inconsistent between different shards", c.NS, value.F("info", value.NewDocument(value.Doc(
			value.F("missingFromShards", value.NewArray(value.ArrayOf(missing...))), value.F("inconsistentProperties", value.NewArray(value.ArrayOf(differ...))), value.F("indexName", value.NewString(name)))))))
	}
	return bad
}

// differing returns the fields that not all of the specifications have, or not with the same value, as documents {k, v} in order.
func differing(specs [][]byte) (out []value.Value) {
	for _, spec := range specs {
		for k, v := range value.Elements(spec) {
			if slices.ContainsFunc(specs, func(other []byte) bool { return !value.Equal(v, value.Lookup(other, k)) }) {
				out = append(out, value.NewDocument(value.Doc(value.F("k", value.NewString(k)), value.F("v", v))))
			}
		}
	}
	slices.SortFunc(out, value.Compare)
	return slices.CompactFunc(out, value.Equal)
}
