package configsvr

import (
	"bytes"
	"context"
	"math"
	"sort"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardJob is one shardCollection in progress.
type shardJob struct {
	m        *Manager
	req      *msg.ShardCollection
	pattern  *cluster.ShardKeyPattern
	db       *cluster.DatabaseInfo
	uuid     [16]byte
	options  []byte
	indexes  [][]byte
	empty    bool
	zones    []zoneRange
	fallback []string // the shards that may get chunks
}

// shardCollection shards a collection. It is sharded once its entry in config.collections is written, which happens last.
func (m *Manager) shardCollection(ctx context.Context, req *msg.ShardCollection) error {
	pattern, err := cluster.ParseShardKey(req.Key)
	if err != nil {
		return err
	}
	if pattern.IsHashed() && req.Unique {
		return mongoerr.New(mongoerr.InvalidOptions, "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field.")
	}
	unlock, err := m.ddl.lock(ctx, req.NS)
	if err != nil {
		return err
	}
	defer unlock()
	if done, err := m.alreadySharded(ctx, req, pattern); done || err != nil {
		return err
	}
	name, _ := cluster.SplitNS(req.NS)
	j := &shardJob{m: m, req: req, pattern: pattern}
	if j.db, err = m.database(ctx, name); err != nil {
		return err
	}
	if err := j.ensureCollection(ctx); err != nil {
		return err
	}
	if err := j.ensureIndex(ctx); err != nil {
		return err
	}
	return j.commit(ctx)
}

// alreadySharded compares an existing entry with the request.
func (m *Manager) alreadySharded(ctx context.Context, req *msg.ShardCollection, pattern *cluster.ShardKeyPattern) (bool, error) {
	docs, err := m.find(ctx, "collections", doc(fld("_id", str(req.NS))))
	if err != nil || len(docs) == 0 {
		return false, err
	}
	e, err := cluster.ParseCollectionEntry(docs[0])
	if err != nil {
		return false, err
	}
	if value.CompareDocs(e.Key.Doc(), pattern.Doc(), nil) == 0 && e.Unique == req.Unique {
		return true, nil
	}
	return false, mongoerr.Newf(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s", req.NS)
}

// onPrimary runs a command on the database's primary shard.
func (j *shardJob) onPrimary(ctx context.Context, f ...value.Field) ([]byte, error) {
	return j.m.runOn(ctx, j.db.Primary, value.Doc(append(f, fld("$db", str(j.db.Name)))...))
}

func (j *shardJob) findOnPrimary(ctx context.Context, f ...value.Field) ([][]byte, error) {
	return j.m.findOn(ctx, j.db, f...)
}

// ensureCollection creates the collection if it does not exist, and refuses what cannot be sharded.
func (j *shardJob) ensureCollection(ctx context.Context) error {
	_, coll := cluster.SplitNS(j.req.NS)
	look := func() ([][]byte, error) {
		return j.findOnPrimary(ctx, fld("listCollections", value.NewInt32(1)), fld("filter", doc(fld("name", str(coll)))))
	}
	found, err := look()
	if err != nil {
		return err
	}
	if len(found) == 0 {
		f := []value.Field{fld("create", str(coll))}
		if j.req.Collation != nil {
			f = append(f, fld("collation", value.NewDocument(j.req.Collation)))
		}
		if _, err := j.onPrimary(ctx, f...); err != nil {
			return err
		}
		if found, err = look(); err != nil || len(found) == 0 {
			return err
		}
	}
	info := found[0]
	j.options = value.Lookup(info, "options").Doc()
	switch t := value.Lookup(info, "type").Str(); {
	case t == "view":
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", j.req.NS)
	case t == "timeseries":
		return mongoerr.New(mongoerr.NotImplemented, "sharding a time-series collection is not implemented")
	case value.Lookup(j.options, "capped").Truthy():
		return mongoerr.New(mongoerr.InvalidOptions, "can't shard a capped collection")
	}
	if c := value.Lookup(j.options, "collation"); c.T == value.Document {
		given := j.req.Collation != nil && value.Lookup(j.req.Collation, "locale").Str() == "simple"
		if !given && value.Lookup(c.Doc(), "locale").Str() != "simple" {
			return mongoerr.New(mongoerr.BadValue, "Collection has default collation, must specify collation {locale: \"simple\"} to shard it")
		}
	}
	copy(j.uuid[:], value.Lookup(value.Lookup(info, "info").Doc(), "uuid").Bytes())
	return nil
}

// ensureIndex finds an index that begins with the shard key, or creates one if the collection is empty.
func (j *shardJob) ensureIndex(ctx context.Context) error {
	_, coll := cluster.SplitNS(j.req.NS)
	list := func() (found bool, err error) {
		specs, err := j.findOnPrimary(ctx, fld("listIndexes", str(coll)))
		j.indexes = nil
		for _, s := range specs {
			j.indexes = append(j.indexes, s)
			if servesShardKey(j.pattern, s) {
				found = true
			}
			if err := j.checkUnique(s); err != nil {
				return false, err
			}
		}
		return found, err
	}
	found, err := list()
	if err != nil || found {
		return err
	}
	empty, err := j.isEmpty(ctx)
	if err != nil {
		return err
	}
	if !empty {
		return mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before sharding the collection. ")
	}
	spec := []value.Field{fld("key", value.NewDocument(j.pattern.Doc())), fld("name", str(indexName(j.pattern)))}
	if j.req.Unique {
		spec = append(spec, fld("unique", value.NewBool(true)))
	}
	if _, ok := j.collation(); ok {
		spec = append(spec, fld("collation", doc(fld("locale", str("simple")))))
	}
	if _, err := j.onPrimary(ctx, fld("createIndexes", str(coll)), fld("indexes", arr(doc(spec...)))); err != nil {
		return err
	}
	_, err = list()
	return err
}

func (j *shardJob) collation() (value.Value, bool) {
	c := value.Lookup(j.options, "collation")
	return c, c.T == value.Document
}

// servesShardKey reports whether an index can serve a shard key: it must begin with it and omit no document.
func servesShardKey(k *cluster.ShardKeyPattern, spec []byte) bool {
	for _, bad := range []string{"sparse", "partialFilterExpression"} {
		if value.Lookup(spec, bad).Truthy() {
			return false
		}
	}
	if c := value.Lookup(spec, "collation"); c.T == value.Document && value.Lookup(c.Doc(), "locale").Str() != "simple" {
		return false
	}
	return k.IsPrefixOfIndex(value.Lookup(spec, "key").Doc())
}

func (j *shardJob) checkUnique(spec []byte) error {
	if value.Lookup(spec, "unique").Truthy() && !j.pattern.UniqueIndexAllowed(value.Lookup(spec, "key").Doc()) {
		return mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key. Uniqueness can't be maintained unless shard key is a prefix",
			j.req.NS, value.Lookup(spec, "name").Str())
	}
	return nil
}

func indexName(k *cluster.ShardKeyPattern) string {
	out := ""
	for i, p := range k.Parts {
		if i > 0 {
			out += "_"
		}
		if out += p.Path + "_1"; p.Hashed {
			out = out[:len(out)-1] + "hashed"
		}
	}
	return out
}

func (j *shardJob) isEmpty(ctx context.Context) (bool, error) {
	_, coll := cluster.SplitNS(j.req.NS)
	docs, err := j.findOnPrimary(ctx, fld("find", str(coll)), fld("limit", value.NewInt32(1)), fld("projection", doc(fld("_id", value.NewInt32(1)))))
	return len(docs) == 0, err
}

// commit blocks writes, lays out the first chunks and makes the collection sharded.
func (j *shardJob) commit(ctx context.Context) error {
	m := j.m
	unblock, err := m.block(ctx, "shardCollection", []string{j.db.Primary}, j.req.NS)
	if err != nil {
		return err
	}
	defer unblock()
	if j.empty, err = j.isEmpty(ctx); err != nil {
		return err
	}
	if j.zones, err = m.zonesOf(ctx, j.req.NS); err != nil {
		return err
	}
	if j.fallback, err = j.recipients(ctx); err != nil {
		return err
	}
	if err := j.write(ctx, j.layout(ctx)); err != nil {
		return err
	}
	_, err = m.onShard(ctx, j.db.Primary, &msg.NotifyShardingEvent{NS: j.req.NS, UUID: j.uuid, Event: value.Doc(
		fld("shardCollection", str(j.req.NS)), fld("shardKey", value.NewDocument(j.pattern.Doc())), fld("unique", value.NewBool(j.req.Unique)),
		fld("numInitialChunks", value.NewInt64(j.req.Chunks)), fld("presplitHashedZones", value.NewBool(false)))})
	return err
}

// write creates the collection on all shards that get chunks, and makes it sharded.
func (j *shardJob) write(ctx context.Context, chunks []placed) error {
	m := j.m
	gen := cluster.ChunkVersion{Major: 1, Epoch: newOID(), Timestamp: m.tick()}
	owners := map[string]bool{}
	docs := make([]value.Value, len(chunks))
	v := gen
	for i, c := range chunks {
		owners[c.shard] = true
		docs[i] = chunkDoc(newOID(), j.uuid, c, v, []cluster.Owner{{ValidAfter: gen.Timestamp, Shard: c.shard}})
		v = v.IncMinor()
	}
	if err := j.makeOnOthers(ctx, owners); err != nil {
		return err
	}
	if err := m.remove(ctx, "chunks", doc(fld("uuid", value.NewBinary(4, j.uuid[:])))); err != nil {
		return err
	}
	for len(docs) > 0 {
		n := min(len(docs), 1000)
		if err := m.insert(ctx, "chunks", docs[:n]...); err != nil {
			return err
		}
		docs = docs[n:]
	}
	if err := m.insert(ctx, "collections", j.entry(gen)); err != nil {
		return err
	}
	ids, err := m.shardIDs(ctx)
	if err != nil {
		return err
	}
	m.refreshShards(ctx, j.req.NS, ids)
	m.log(ctx, "shardCollection.end", j.req.NS, doc(fld("numChunks", value.NewInt32(int32(len(chunks))))))
	return nil
}

func (j *shardJob) entry(gen cluster.ChunkVersion) value.Value {
	f := []value.Field{
		fld("_id", str(j.req.NS)), fld("lastmodEpoch", value.NewObjectID(gen.Epoch)), fld("lastmod", value.NewTime(time.Now())),
		fld("timestamp", value.NewTimestampU64(gen.Timestamp)), fld("uuid", value.NewBinary(4, j.uuid[:])),
		fld("key", value.NewDocument(j.pattern.Doc())), fld("unique", value.NewBool(j.req.Unique)), fld("noBalance", value.NewBool(false)),
	}
	if c, ok := j.collation(); ok {
		f = append(f, fld("defaultCollation", c))
	}
	return doc(f...)
}

// makeOnOthers creates the collection, with its options, UUID and indexes, on the other shards that get chunks.
func (j *shardJob) makeOnOthers(ctx context.Context, owners map[string]bool) error {
	for id := range owners {
		if id == j.db.Primary {
			continue
		}
		_, err := j.m.onShard(ctx, id, &msg.CreateCollectionParticipant{NS: j.req.NS, UUID: j.uuid, Options: j.options, Indexes: j.indexes})
		if err != nil {
			return err
		}
	}
	return nil
}

// recipients returns the shards that may be given chunks, in order of name.
func (j *shardJob) recipients(ctx context.Context) ([]string, error) {
	all, err := j.m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all {
		if !s.Draining {
			out = append(out, s.ID)
		}
	}
	sort.Strings(out)
	return out, nil
}

// placed is a chunk of the first layout.
type placed struct {
	min, max []byte
	shard    string
}

// layout chooses the first chunks: one per shard for an empty hashed collection, one per zone for an empty zoned one,
// else a single chunk on the primary.
func (j *shardJob) layout(ctx context.Context) []placed {
	k := j.pattern
	whole := []placed{{k.GlobalMin(), k.GlobalMax(), j.db.Primary}}
	if !j.empty {
		return whole
	}
	if len(j.zones) > 0 {
		return j.layoutZones(ctx)
	}
	if k.HashedIndex() != 0 || len(j.fallback) == 0 {
		return whole
	}
	n := int(j.req.Chunks)
	if n <= 0 {
		n = len(j.fallback)
	}
	n = min(n, 8192*len(j.fallback))
	points := hashedPoints(n)
	out := make([]placed, 0, n)
	lo := k.GlobalMin()
	for i := 0; i < n; i++ {
		hi := k.GlobalMax()
		if i < len(points) {
			vals := make([]value.Value, len(k.Parts))
			for f := range vals {
				vals[f] = value.NewMinKey()
			}
			vals[0] = value.NewInt64(points[i])
			hi = k.KeyDoc(vals)
		}
		out = append(out, placed{lo, hi, j.fallback[i*len(j.fallback)/n]})
		lo = hi
	}
	return out
}

// hashedPoints divides the range of 64-bit hashes into n parts of the same size, symmetric around 0.
func hashedPoints(n int) []int64 {
	if n < 2 {
		return nil
	}
	step := (int64(math.MaxInt64) / int64(n)) * 2
	at := int64(0)
	var out []int64
	if n%2 == 0 {
		out = append(out, at)
		at += step
	} else {
		at += step / 2
	}
	for i := 0; i < (n-1)/2; i++ {
		out = append(out, at, -at)
		at += step
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// layoutZones makes a chunk for each zone's range, on a shard of the zone, and for each gap between them.
func (j *shardJob) layoutZones(ctx context.Context) []placed {
	k := j.pattern
	all, _ := j.m.registry.All(ctx)
	next := map[string]int{}
	pick := func(zone string) string {
		var in []string
		for _, s := range all {
			for _, t := range s.Tags {
				if t == zone && !s.Draining {
					in = append(in, s.ID)
				}
			}
		}
		if len(in) == 0 {
			in = j.fallback
		}
		next[zone]++
		return in[(next[zone]-1)%len(in)]
	}
	var out []placed
	lo := k.GlobalMin()
	for _, z := range j.zones {
		if !bytes.Equal(lo, z.min) {
			out = append(out, placed{lo, z.min, pick("")})
		}
		out = append(out, placed{z.min, z.max, pick(z.zone)})
		lo = z.max
	}
	if !bytes.Equal(lo, k.GlobalMax()) {
		out = append(out, placed{lo, k.GlobalMax(), pick("")})
	}
	return out
}

// chunkDoc returns an entry of config.chunks.
func chunkDoc(id [12]byte, uuid [16]byte, c placed, v cluster.ChunkVersion, history []cluster.Owner) value.Value {
	return doc(
		fld("_id", value.NewObjectID(id)), fld("uuid", value.NewBinary(4, uuid[:])),
		fld("min", value.NewDocument(c.min)), fld("max", value.NewDocument(c.max)), fld("shard", str(c.shard)),
		fld("lastmod", value.NewTimestampU64(v.Combined())), fld("onCurrentShardSince", value.NewTimestampU64(history[0].ValidAfter)),
		fld("history", cluster.HistoryValue(history)))
}
