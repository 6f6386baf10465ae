package configsvr

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardJob is one collection that is being sharded.
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
	fallback []string // the shards that take chunks
	epoch    cluster.Epoch
	section  *[16]byte // of the run that creates the collection on other shards; nil for none
	placed   bool      // the collection has an entry, and its only chunk is on db.Primary
	keeper   string    // of a placed collection, the primary shard of its database, which has an empty copy; "" for none

	topology uint64 // the topology time of the list of shards before the copies were made
}

// runCommitShardCollection makes a collection that is complete on its database's primary shard a sharded one, for the run of a DDL
// that holds its critical section on all shards. The entry in config.collections, written last, makes it sharded.
func (m *Manager) runCommitShardCollection(op *command.Op, req *msg.CommitShardCollection, dst []byte) ([]byte, error) {
	pattern, err := cluster.ParseShardKey(req.Key)
	if err != nil {
		return dst, err
	}
	unlock, err := m.ddl.lock(op, req.NS)
	if err != nil {
		return dst, err
	}
	defer unlock()
	_, e, err := m.entry(op, req.NS)
	if err != nil || e != nil && e.Generation.Epoch == req.NewEpoch {
		return dst, err // an earlier attempt wrote it
	}
	if req.Home == "" && e != nil {
		return dst, mongoerr.Newf(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s", req.NS)
	}
	if req.Home != "" && (e == nil || !e.Unsplittable || e.UUID != req.UUID) {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is no longer on shard %s", req.NS, req.Home)
	}
	if err := m.stillWanted(op, req.NS, &req.Run, true); err != nil {
		return dst, err
	}
	name, _ := cluster.SplitNS(req.NS)
	j := &shardJob{
		m: m, req: &req.ShardCollection, pattern: pattern, uuid: req.UUID, options: req.Options, indexes: req.Indexes, empty: req.Empty,
		epoch: req.NewEpoch, section: &req.Run.ID,
	}
	if j.db, err = m.database(op, name); err != nil {
		return dst, err
	}
	if j.db.Primary != req.Run.Coordinator { // its locks exclude nothing then, not even the drop of the database
		return dst, cluster.StaleDbVersion(name, cluster.DatabaseVersion{}, &j.db.Version)
	}
	if req.Home != "" {
		at := *j.db
		j.keeper, at.Primary, j.db, j.placed = at.Primary, req.Home, &at, true
	}
	if j.zones, err = m.zonesOf(op, req.NS); err != nil {
		return dst, err
	}
	if err := normalizeZones(j.zones, j.pattern); err != nil {
		return dst, err
	}
	return dst, j.place(op)
}

// place lays the chunks out and writes them, again if one of the shards is removed before they are written, and perhaps another set added under its name. The removed shard may keep an empty
// copy of the collection.
func (j *shardJob) place(ctx context.Context) error {
	for {
		var err error
		if j.fallback, err = j.recipients(ctx); err != nil {
			return err
		}
		chunks, err := j.layout(ctx)
		if err != nil {
			return err
		}
		err = j.write(ctx, chunks)
		var changed setChanged
		if !errors.As(err, &changed) && mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
			return err
		}
		if err := j.m.registry.Reload(ctx); err != nil {
			return err
		}
		if changed.error != nil {
			continue
		}
		all, lerr := j.m.registry.All(ctx)
		if lerr != nil {
			return lerr
		}
		if !slices.ContainsFunc(chunkShards(chunks), func(id string) bool { return id != j.db.Primary && shardByID(all, id) == nil }) {
			return err
		}
	}
}

// chunkShards returns the shards of some chunks.
func chunkShards(chunks []placed) (ids []string) {
	for _, c := range chunks {
		ids = append(ids, c.shard)
	}
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

// alreadySharded compares an existing entry with the request.
func (m *Manager) alreadySharded(ctx context.Context, req *msg.ShardCollection, pattern *cluster.ShardKeyPattern) (bool, error) {
	_, e, err := m.entry(ctx, req.NS)
	if err != nil || e == nil {
		return false, err
	}
	if value.CompareDocs(e.Key.Doc(), pattern.Doc(), nil) == 0 && e.Unique == req.Unique {
		return true, nil
	}
	return false, mongoerr.Newf(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s", req.NS)
}

// listed returns what listCollections shows of the job's collection on the primary shard; nil if it is not there.
func (j *shardJob) listed(ctx context.Context) ([]byte, error) {
	found, err := j.m.findOn(ctx, j.db, &msg.ListCollections{DB: j.db.Name, Filter: value.Doc(fld("name", str(j.coll())))})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// listIndexes returns the indexes that the collection has on the primary shard.
func (j *shardJob) listIndexes(ctx context.Context) ([][]byte, error) {
	return j.m.findOn(ctx, j.db, &msg.ListIndexes{DB: j.db.Name, Coll: j.coll()})
}

func (j *shardJob) coll() string {
	_, coll := cluster.SplitNS(j.req.NS)
	return coll
}

func (j *shardJob) collation() (value.Value, bool) {
	c := value.Lookup(j.options, "collation")
	return c, c.T == value.Document
}

// write creates the collection on all shards that get chunks, and makes it sharded.
func (j *shardJob) write(ctx context.Context, chunks []placed) error {
	m := j.m
	gen := cluster.ChunkVersion{Major: 1, Epoch: j.epoch, Timestamp: m.tick()}
	owners := map[string]bool{}
	docs := make([]value.Value, len(chunks))
	v := gen
	for i, c := range chunks {
		owners[c.shard] = true
		docs[i] = chunkDoc(cluster.NewObjectID(), j.uuid, c, v, []cluster.Owner{{ValidAfter: gen.Timestamp, Shard: c.shard}})
		v = v.IncMinor()
	}
	if err := j.noteList(ctx); err != nil {
		return err
	}
	if err := j.makeOnOthers(ctx, owners); err != nil {
		return err
	}
	put := j.insert
	if j.placed {
		put = j.replace
	}
	if err := put(ctx, docs, j.entry(gen), owners); err != nil {
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

// insert writes the chunks, which are not read before the entry exists, and then the entry.
func (j *shardJob) insert(ctx context.Context, chunks []value.Value, entry value.Value, owners map[string]bool) error {
	m := j.m
	if err := m.removeChunks(ctx, j.uuid); err != nil {
		return err
	}
	on := slices.Sorted(maps.Keys(owners))
	for len(chunks) > 0 {
		n := min(len(chunks), 1000)
		if err := j.placeOn(ctx, on, func() error { return m.insert(ctx, "chunks", chunks[:n]...) }); err != nil {
			return err
		}
		chunks = chunks[n:]
	}
	unlock, err := m.lockTables(ctx) // so that no zone is added meanwhile
	if err != nil {
		return err
	}
	defer unlock()
	zones, err := m.shortZones(ctx, j.req.NS, j.pattern)
	if err != nil {
		return err
	}
	w := &msg.WriteTogether{NS: "config.collections", Changes: msg.Changes{Put: [][]byte{entry.Doc()}}, Zones: zones}
	return j.placeOn(ctx, on, func() error { return m.writePlaced(ctx, w, j.placing(owners)) })
}

// placeOn runs a write that places chunks on shards, which must still be the sets that have copies of the collection.
func (j *shardJob) placeOn(ctx context.Context, ids []string, write func() error) error {
	return j.m.place(ctx, ids, func(on []*cluster.Shard) error {
		for _, s := range on {
			if s.ID == j.db.Primary {
				continue
			}
			if err := j.m.sameSet(ctx, s, j.topology); err != nil {
				return err
			}
		}
		return write()
	})
}

// placing returns the placement that the collection gets.
func (j *shardJob) placing(owners map[string]bool) placing {
	return placing{nss: j.req.NS, uuid: j.uuid, shards: slices.Collect(maps.Keys(owners))}
}

// replace replaces the collection's chunks and entry in one unit of work, so that the collection remains readable.
func (j *shardJob) replace(ctx context.Context, chunks []value.Value, entry value.Value, owners map[string]bool) error {
	m := j.m
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := m.findOnly(ctx, "chunks", doc(fld("uuid", value.NewBinary(4, j.uuid[:]))))
	if err != nil {
		return err
	}
	zones, err := m.shortZones(ctx, j.req.NS, j.pattern)
	if err != nil {
		return err
	}
	w := &msg.WriteTogether{NS: "config.chunks", AlsoNS: "config.collections", Also: msg.Changes{Put: [][]byte{entry.Doc()}}, Zones: zones}
	for _, d := range old {
		w.Changes.Delete = append(w.Changes.Delete, value.Lookup(d, "_id"))
	}
	for _, c := range chunks {
		w.Changes.Put = append(w.Changes.Put, c.Doc())
	}
	return j.placeOn(ctx, slices.Sorted(maps.Keys(owners)), func() error { return m.writePlaced(ctx, w, j.placing(owners)) })
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
	if ts := value.Lookup(j.options, "timeseries"); ts.T == value.Document {
		f = append(f, fld("timeseriesFields", ts))
	}
	if j.req.Unsplittable {
		f = append(f, fld("unsplittable", value.NewBool(true)))
	}
	return doc(f...)
}

// noteList notes the time of the list of shards. The registry is loaded after it: what is sent from then on goes to the sets of this list, or of a later one.
func (j *shardJob) noteList(ctx context.Context) error {
	all, err := j.m.listedShards(ctx)
	if err != nil {
		return err
	}
	j.topology = topologyTime(all)
	return j.m.registry.Reload(ctx)
}

// makeOnOthers creates the collection, with its options, UUID and indexes, on the other shards that get chunks. The primary shard of the database, which has each of its collections,
// gets the index that was created for the shard key, too.
func (j *shardJob) makeOnOthers(ctx context.Context, owners map[string]bool) error {
	ids := slices.Collect(maps.Keys(owners))
	if j.keeper != "" {
		ids = append(ids, j.keeper)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if id == j.db.Primary {
			continue
		}
		_, err := j.m.onShard(ctx, id, &msg.CreateCollectionParticipant{NS: j.req.NS, UUID: j.uuid, Options: j.options, Indexes: j.indexes, Section: j.section})
		if err != nil {
			return err
		}
	}
	return nil
}

// recipients returns the shards that may receive chunks, in order of name.
func (j *shardJob) recipients(ctx context.Context) ([]string, error) {
	all, err := j.m.registry.All(ctx)
	return cluster.Receiving(all, ""), err
}

// placed is a chunk of the first layout.
type placed struct {
	min, max []byte
	shard    string
}

// maxChunksPerShard limits numInitialChunks: it must result in less than that.
const maxChunksPerShard = 8192

// checkNumber compares numInitialChunks with the limit.
func (j *shardJob) checkNumber(n int) error {
	if n <= 0 || n < maxChunksPerShard*len(j.fallback) {
		return nil
	}
	return mongoerr.Newf(mongoerr.InvalidOptions, "numInitialChunks must result in less than %d per shard: %d shards, %d chunks", maxChunksPerShard, len(j.fallback), n)
}

// layout chooses the first chunks: one per shard, or the requested number, for an empty hashed collection, one per zone for an empty zoned one,
// otherwise a single chunk on the primary.
func (j *shardJob) layout(ctx context.Context) ([]placed, error) {
	k, n := j.pattern, int(j.req.Chunks)
	tooMany := j.checkNumber(n)
	switch {
	case j.req.Unsplittable:
		return j.layoutUnsplittable(ctx)
	case n > 0 && !k.IsHashed():
		return nil, mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks is not supported when the shard key is not hashed.")
	case n > 0 && !j.empty:
		return nil, mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks is not supported when the collection is not empty.")
	case tooMany != nil:
		return nil, tooMany
	case j.empty && len(j.zones) > 0:
		return j.layoutZones(ctx)
	case j.req.Presplit:
		return nil, mongoerr.Newf(mongoerr.InvalidOptions, "presplitHashedZones needs zones and an empty collection: %s", j.req.NS)
	case !j.empty || k.HashedIndex() != 0 || len(j.fallback) == 0:
		return []placed{{k.GlobalMin(), k.GlobalMax(), j.db.Primary}}, nil
	}
	if n <= 0 {
		n = len(j.fallback)
	}
	return j.cut(k.GlobalMin(), k.GlobalMax(), n, j.fallback), nil
}

// layoutUnsplittable creates the only chunk of a collection that is not sharded.
func (j *shardJob) layoutUnsplittable(ctx context.Context) ([]placed, error) {
	on := cmp.Or(j.req.DataShard, j.db.Primary)
	s, err := j.m.registry.Listed(ctx, on)
	switch {
	case err != nil:
		return nil, err
	case s.Draining && on != j.db.Primary:
		return nil, mongoerr.Newf(mongoerr.IllegalOperation, "Shard %s is currently draining", on)
	case !j.empty && on != j.db.Primary:
		return nil, mongoerr.Newf(mongoerr.AlreadyInitialized, "collection %s exists on shard %s", j.req.NS, j.db.Primary)
	}
	return []placed{{j.pattern.GlobalMin(), j.pattern.GlobalMax(), on}}, nil
}

// cut divides a range, whose lower bound has MinKey in the key's hashed field and those after it, into n chunks by the hash, and distributes
// them over shards in equal runs.
func (j *shardJob) cut(lo, max []byte, n int, over []string) (out []placed) {
	k := j.pattern
	points := hashedPoints(n)
	vals := value.Values(lo)
	for i := range n {
		hi := max
		if i < len(points) {
			vals[k.HashedIndex()] = value.NewInt64(points[i])
			hi = k.KeyDoc(vals)
		}
		out = append(out, placed{lo, hi, over[i*len(over)/n]})
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

// layoutZones creates a chunk for each zone's range, on a shard of the zone, and for each gap between them; with presplitHashedZones it creates
// several for each zone's range, on all of its shards.
func (j *shardJob) layoutZones(ctx context.Context) (out []placed, err error) {
	k := j.pattern
	all, err := j.m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	next := map[string]int{}
	of := func(zone string) []string {
		if in := cluster.Receiving(all, zone); len(in) > 0 {
			return in
		}
		return j.fallback
	}
	pick := func(zone string) string {
		in := of(zone)
		next[zone]++
		return in[(next[zone]-1)%len(in)]
	}
	lo := k.GlobalMin()
	for _, z := range j.zones {
		if cluster.CompareKeys(value.Values(lo), value.Values(z.min)) != 0 {
			out = append(out, placed{lo, z.min, pick("")})
		} else {
			z.min = lo // the bounds of adjacent zones may have different numeric types
		}
		if j.req.Presplit {
			cut, err := j.cutZone(z, of(z.zone))
			if err != nil {
				return nil, err
			}
			out = append(out, cut...)
		} else {
			out = append(out, placed{z.min, z.max, pick(z.zone)})
		}
		lo = z.max
	}
	if cluster.CompareKeys(value.Values(lo), value.Values(k.GlobalMax())) != 0 {
		out = append(out, placed{lo, k.GlobalMax(), pick("")})
	}
	return out, nil
}

// cutZone divides a zone's range, whose bounds must lie between two values of the fields before the key's hashed field.
func (j *shardJob) cutZone(z zoneRange, over []string) ([]placed, error) {
	k := j.pattern
	all := func(bound []byte, t value.Type, from int) bool {
		for _, v := range value.Values(bound)[from:] {
			if v.T != t {
				return false
			}
		}
		return true
	}
	if h := k.HashedIndex(); !all(z.min, value.MinKey, h) || !all(z.max, value.MaxKey, 0) && (h == 0 || !all(z.max, value.MinKey, h)) {
		return nil, mongoerr.Newf(mongoerr.InvalidOptions, "One or more zones are not defined in a manner that supports hashed pre-splitting: zone %s", z.zone)
	}
	n := max(len(over), (int(j.req.Chunks)+len(j.zones)-1)/len(j.zones))
	return j.cut(z.min, z.max, n, over), nil
}

// chunkDoc returns an entry of config.chunks.
func chunkDoc(id [12]byte, uuid [16]byte, c placed, v cluster.ChunkVersion, history []cluster.Owner) value.Value {
	return doc(
		fld("_id", value.NewObjectID(id)), fld("uuid", value.NewBinary(4, uuid[:])),
		fld("min", value.NewDocument(c.min)), fld("max", value.NewDocument(c.max)), fld("shard", str(c.shard)),
		fld("lastmod", value.NewTimestampU64(v.Combined())), fld("onCurrentShardSince", value.NewTimestampU64(history[0].ValidAfter)),
		fld("history", cluster.HistoryValue(history)))
}
