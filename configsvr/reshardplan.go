package configsvr

import (
	"context"
	"slices"
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// reshardPlan has the facts and decisions on which a resharding is based, collected before it changes anything.
type reshardPlan struct {
	m       *Manager
	ns      string
	want    *msg.Reshard
	key     *cluster.ShardKeyPattern
	db      *cluster.DatabaseInfo
	info    *cluster.CollectionInfo
	entry   []byte // of the catalog, nil if there is none
	uuid    [16]byte
	options []byte
	indexes [][]byte
	zones   []zoneRange

	distribution []shardRange // of the request's shardDistribution
}

// idKey is the key of collections that are not sharded and have an entry in the catalog.
var idKey = value.Doc(value.F("_id", value.NewInt32(1)))

// planReshard examines the collection and returns an error if the request cannot be executed. same is true if there is
// nothing to do.
func (m *Manager) planReshard(ctx context.Context, ns string, want *msg.Reshard) (p *reshardPlan, same bool, err error) {
	p = &reshardPlan{m: m, ns: ns, want: want}
	c := cluster.NewCatalog(m.local)
	if p.info, err = c.Collection(ctx, ns); err != nil {
		return nil, false, err
	}
	p.db = p.info.DB
	if p.entry, _, err = m.entry(ctx, ns); err != nil {
		return nil, false, err
	}
	if err := p.look(ctx); err != nil {
		return nil, false, err
	}
	switch want.Provenance {
	case msg.ReshardCollection:
		same, err = p.checkReshard(ctx)
	case msg.MoveCollection:
		if p.info.Sharded() {
			return nil, false, mongoerr.Newf(mongoerr.NamespaceNotFound, "MoveCollection can only be called on an unsharded collection: %s is sharded", ns)
		}
		same, err = p.checkPlace(ctx)
	case msg.UnshardCollection:
		if !p.info.Sharded() {
			return nil, false, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Namespace %s is not sharded", ns)
		}
		_, err = p.checkPlace(ctx)
	default:
		err = mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'provenance' is not a valid value.", want.Provenance)
	}
	return p, same, err
}

// look reads the collection's options and indexes from a shard that has documents of it.
func (p *reshardPlan) look(ctx context.Context) error {
	j := p.job()
	found, err := j.listed(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found: %s", p.ns)
	}
	p.options = value.Lookup(found, "options").Doc()
	if value.Lookup(found, "type").Str() == "view" {
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", p.ns)
	}
	if enc := value.Lookup(p.options, "encryptedFields"); enc.T == value.Document {
		return mongoerr.Newf(mongoerr.NotImplemented, "%s of a collection with encrypted fields is not supported", p.want.Provenance)
	}
	copy(p.uuid[:], value.Lookup(value.Lookup(found, "info").Doc(), "uuid").Bytes())
	p.indexes, err = j.listIndexes(ctx)
	return err
}

// job returns a job that has the checks of shardCollection, on a shard that has documents of the collection.
func (p *reshardPlan) job() *shardJob {
	return &shardJob{m: p.m, req: &msg.ShardCollection{NS: p.ns, Collation: p.want.Collation}, pattern: p.key,
		db: &cluster.DatabaseInfo{Name: p.db.Name, Primary: p.info.Shards()[0]}, uuid: p.uuid, options: p.options}
}

// checkReshard checks the new key.
func (p *reshardPlan) checkReshard(ctx context.Context) (same bool, err error) {
	if !p.info.Sharded() {
		return false, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Namespace %s is not sharded", p.ns)
	}
	if p.key, err = cluster.ParseShardKey(p.want.Key); err != nil {
		return false, err
	}
	if p.want.Collation != nil && value.Lookup(p.want.Collation, "locale").Str() != "simple" {
		return false, mongoerr.Newf(mongoerr.BadValue, "The collation for reshardCollection must be {locale: 'simple'}, but found: %s", value.ShowDoc(p.want.Collation))
	}
	if c := value.Lookup(p.options, "collation"); c.T == value.Document && value.Lookup(c.Doc(), "locale").Str() != "simple" {
		if p.want.Collation == nil || value.Lookup(p.want.Collation, "locale").Str() != "simple" {
			return false, mongoerr.New(mongoerr.BadValue, "Collection has default collation, must specify collation {locale: \"simple\"} to reshard it")
		}
	}
	if !p.want.Force && value.CompareDocs(p.key.Doc(), p.info.Map.Key.Doc(), nil) == 0 {
		return true, nil
	}
	served := false
	for _, s := range p.indexes {
		if !p.key.AdmitsIndex(s) {
			return false, mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key. Uniqueness can't be maintained unless shard key is a prefix",
				p.ns, value.Lookup(s, "name").Str())
		}
		served = served || servesShardKey(p.key, s)
	}
	if !served {
		p.indexes = append(p.indexes, p.keyIndex())
	}
	if err := p.checkZones(ctx); err != nil {
		return false, err
	}
	return false, p.checkDistribution(ctx)
}

// keyIndex returns the specification of the index that the new key gets, as indexes are stored: without a collation it has the simple one, whatever the collection has.
// With {locale: "simple"} it would be another index to createIndexes.
func (p *reshardPlan) keyIndex() []byte {
	spec := []value.Field{fld("v", value.NewInt32(2)), fld("key", value.NewDocument(p.key.Doc())), fld("name", str(indexName(p.key)))}
	if p.want.Index != nil {
		spec = nil
		for k, v := range value.Elements(p.want.Index) {
			spec = append(spec, fld(k, v))
		}
	}
	return value.Doc(spec...)
}

// servesShardKey reports whether an index can serve a shard key: it must begin with it and omit no document.
func servesShardKey(k *cluster.ShardKeyPattern, spec []byte) bool {
	for _, bad := range []string{"sparse", "partialFilterExpression", "hidden"} {
		if value.Lookup(spec, bad).Truthy() {
			return false
		}
	}
	if c := value.Lookup(spec, "collation"); c.T == value.Document && value.Lookup(c.Doc(), "locale").Str() != "simple" {
		return false
	}
	return k.IsPrefixOfIndex(value.Lookup(spec, "key").Doc())
}

// indexName returns the name of a shard key's index.
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

// checkZones reads the zones of the new key: those of the request, or the existing ones if the key stays the same.
func (p *reshardPlan) checkZones(ctx context.Context) error {
	old, err := p.m.zonesOf(ctx, p.ns)
	if err != nil {
		return err
	}
	if p.want.Zones == nil {
		if len(old) == 0 {
			return nil
		}
		if value.CompareDocs(p.key.Doc(), p.info.Map.Key.Doc(), nil) != 0 {
			return mongoerr.New(mongoerr.BadValue, "Must specify value for zones field")
		}
		p.zones = old
		return normalizeZones(p.zones, p.key)
	}
	for _, z := range p.want.Zones {
		r := zoneRange{zone: value.Lookup(z, "zone").Str()}
		if r.min, err = p.key.NormalizeBound(value.LookupDoc(z, "min")); err != nil {
			return err
		}
		if r.max, err = p.key.NormalizeBound(value.LookupDoc(z, "max")); err != nil {
			return err
		}
		if r.zone == "" {
			continue // of no zone
		}
		if cluster.CompareKeys(value.Values(r.min), value.Values(r.max)) >= 0 {
			return mongoerr.Newf(mongoerr.BadValue, "the range of zone %s is empty", r.zone)
		}
		p.zones = append(p.zones, r)
	}
	sort.Slice(p.zones, func(i, j int) bool {
		return cluster.CompareKeys(value.Values(p.zones[i].min), value.Values(p.zones[j].min)) < 0
	})
	for i := 1; i < len(p.zones); i++ {
		if cluster.CompareKeys(value.Values(p.zones[i-1].max), value.Values(p.zones[i].min)) > 0 {
			return mongoerr.New(mongoerr.BadValue, "Zones' ranges overlap")
		}
	}
	return nil
}

// checkPlace checks the shard that is to receive the whole collection.
func (p *reshardPlan) checkPlace(ctx context.Context) (same bool, err error) {
	if p.key, err = cluster.ParseShardKey(idKey); err != nil {
		return false, err
	}
	if p.want.To == "" {
		if p.want.To, err = p.m.leastLoaded(ctx); err != nil {
			return false, err
		}
	}
	s, err := p.m.registry.Listed(ctx, p.want.To)
	if err != nil {
		return false, err
	}
	if s.Draining {
		return false, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s is currently draining", s.ID)
	}
	p.want.To = s.ID
	return !p.info.Sharded() && p.info.Home() == s.ID, nil
}

// defaultReshardChunks is the initial number of a resharded collection's chunks, if it has as many keys.
const defaultReshardChunks = 90

// layout divides the new key's space.
func (p *reshardPlan) layout(ctx context.Context) ([]placed, error) {
	k := p.key
	if p.want.Provenance != msg.ReshardCollection {
		return []placed{{k.GlobalMin(), k.GlobalMax(), p.want.To}}, nil
	}
	j := p.job()
	var err error
	if j.fallback = p.named(); j.fallback == nil {
		if j.fallback, err = j.recipients(ctx); err != nil {
			return nil, err
		}
	}
	if len(j.fallback) == 0 {
		return nil, mongoerr.New(mongoerr.ShardNotFound, "No non-draining shards found")
	}
	n := int(p.want.Chunks)
	if err := j.checkNumber(n); err != nil {
		return nil, err
	}
	switch {
	case n > 0:
	case p.ranged():
		return p.cutRanges(nil), nil
	default:
		n = defaultReshardChunks
	}
	points, err := p.splitPoints(ctx, n)
	if err != nil {
		return nil, err
	}
	if p.want.Chunks > 0 && len(points)+1 < n {
		return nil, mongoerr.Newf(4952606, "The shard key provided does not have enough cardinality to make the required number of chunks of %d, it can only make %d chunks", n, len(points)+1)
	}
	if p.ranged() {
		return p.cutRanges(points), nil
	}
	return p.place(ctx, j, points)
}

// splitPoints returns full keys that divide the documents into about equal parts.
func (p *reshardPlan) splitPoints(ctx context.Context, n int) (points [][]byte, err error) {
	k := p.key
	if k.HashedIndex() == 0 {
		for _, h := range hashedPoints(n) {
			vals := make([]value.Value, len(k.Parts))
			for i := range vals {
				vals[i] = value.NewMinKey()
			}
			vals[0] = value.NewInt64(h)
			points = append(points, k.KeyDoc(vals))
		}
		return points, nil
	}
	keys, err := p.sample(ctx, n)
	if err != nil {
		return nil, err
	}
	for i := 1; i < n; i++ {
		at := len(keys) * i / n
		if at == 0 || at >= len(keys) {
			continue
		}
		key := k.KeyDoc(keys[at])
		if cluster.CompareKeys(keys[at], keys[0]) > 0 && (len(points) == 0 || cluster.CompareKeys(value.Values(points[len(points)-1]), keys[at]) < 0) {
			points = append(points, key)
		}
	}
	return points, nil
}

// defaultSamplesPerChunk is the number of documents that are sampled for each chunk.
const defaultSamplesPerChunk = 10

// maxSamples limits the number of documents that are sampled for all chunks together, whatever was requested: their keys are
// in memory.
const maxSamples = 1_000_000

// samples returns the number of documents that are sampled to find n chunks.
func (p *reshardPlan) samples(n int) int64 {
	each := p.want.Samples
	if each == 0 {
		each = defaultSamplesPerChunk
	}
	return min(min(each, maxSamples)*int64(n), maxSamples)
}

// sample returns the sorted new keys of sampled documents, from each shard in proportion to its number of documents, without those that cannot be bounds of chunks.
func (p *reshardPlan) sample(ctx context.Context, n int) (keys [][]value.Value, err error) {
	_, coll := cluster.SplitNS(p.ns)
	shards := p.info.Shards()
	counts, total := make([]int64, len(shards)), int64(0)
	for i, id := range shards {
		reply, err := p.m.runOn(ctx, id, msg.Doc(&msg.Count{DB: p.db.Name, Coll: coll}))
		if err != nil {
			return nil, err
		}
		counts[i], _ = value.Lookup(reply, "n").AsInt64()
		total += counts[i]
	}
	var project []value.Field
	for _, part := range p.key.Parts {
		project = append(project, fld(part.Path, value.NewInt32(1)))
	}
	if p.key.Index("_id") < 0 {
		project = append(project, fld("_id", value.NewInt32(0)))
	}
	for i, id := range shards {
		if counts[i] == 0 {
			continue
		}
		size := max(1, p.samples(n)*counts[i]/total)
		s, err := p.m.registry.Shard(ctx, id)
		if err != nil {
			return nil, err
		}
		docs, err := cluster.FindAll(ctx, s.Peer, p.db.Name, msg.Doc(&msg.Aggregate{
			DB: p.db.Name, On: str(coll), Cursor: new(msg.Cursor),
			Pipeline: value.ArrayOf(doc(fld("$sample", doc(fld("size", value.NewInt64(size))))), doc(fld("$project", doc(project...)))),
		}))
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			vals, err := p.key.FromDocument(d, nil)
			if err != nil {
				return nil, err
			}
			if cluster.CheckKeyValues(vals) != nil { // it is no bound for a client's command
				continue
			}
			for i := range vals {
				vals[i] = vals[i].Clone()
			}
			keys = append(keys, vals)
		}
	}
	slices.SortFunc(keys, cluster.CompareKeys)
	return keys, nil
}

// place divides the key space at the points and at the bounds of zones, and assigns each shard an equal share of its zones' ranges.
func (p *reshardPlan) place(ctx context.Context, j *shardJob, points [][]byte) ([]placed, error) {
	for _, z := range p.zones {
		points = append(points, z.min, z.max)
	}
	lowest, highest := value.Values(p.key.GlobalMin()), value.Values(p.key.GlobalMax())
	slices.SortFunc(points, func(a, b []byte) int { return cluster.CompareKeys(value.Values(a), value.Values(b)) })
	var cuts [][]byte
	last := lowest
	for _, b := range points {
		if vals := value.Values(b); cluster.CompareKeys(vals, last) > 0 && cluster.CompareKeys(vals, highest) < 0 {
			cuts, last = append(cuts, b), vals
		}
	}
	all, err := p.m.listedShards(ctx) // not those of the registry, whose zones may be older
	if err != nil {
		return nil, err
	}
	of := func(min []byte) string {
		for _, z := range p.zones {
			if v := value.Values(min); cluster.CompareKeys(value.Values(z.min), v) <= 0 && cluster.CompareKeys(v, value.Values(z.max)) < 0 {
				return z.zone
			}
		}
		return ""
	}
	var out []placed
	group := map[string][]int{} // the chunks of each zone
	lo := p.key.GlobalMin()
	for i := 0; i <= len(cuts); i++ {
		hi := p.key.GlobalMax()
		if i < len(cuts) {
			hi = cuts[i]
		}
		zone := of(lo)
		group[zone] = append(group[zone], len(out))
		out = append(out, placed{min: lo, max: hi})
		lo = hi
	}
	for zone, chunks := range group {
		in := j.fallback
		if zone != "" {
			if in = cluster.Receiving(all, zone); len(in) == 0 {
				return nil, mongoerr.Newf(mongoerr.CannotCreateChunkDistribution, "no shard that is not draining is in zone %s", zone)
			}
		}
		for n, at := range chunks {
			out[at].shard = in[n*len(in)/len(chunks)]
		}
	}
	return out, nil
}
