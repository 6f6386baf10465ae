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

// reshardPlan is what a resharding finds and decides before anything is changed.
type reshardPlan struct {
	m       *Manager
	ns      string
	want    *msg.Reshard
	key     *cluster.ShardKeyPattern
	db      *cluster.DatabaseInfo
	info    *cluster.CollectionInfo
	entry   []byte // of the catalog, nil where there is none
	uuid    [16]byte
	options []byte
	indexes [][]byte
	zones   []zoneRange
}

// idKey is the key of collections that are not sharded and have an entry in the catalog.
var idKey = value.Doc(value.F("_id", value.NewInt32(1)))

// planReshard looks at the collection and refuses what cannot be done. same is true where there is nothing to do.
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
	_, coll := cluster.SplitNS(p.ns)
	j := p.job()
	found, err := j.findOnPrimary(ctx, fld("listCollections", value.NewInt32(1)), fld("filter", doc(fld("name", str(coll)))))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found: %s", p.ns)
	}
	p.options = value.Lookup(found[0], "options").Doc()
	switch value.Lookup(found[0], "type").Str() {
	case "view":
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", p.ns)
	case "timeseries":
		return mongoerr.Newf(mongoerr.NotImplemented, "%s of a time-series collection is not implemented", p.want.Provenance)
	}
	if value.Lookup(p.options, "capped").Truthy() {
		return mongoerr.Newf(mongoerr.NotImplemented, "%s of a capped collection is not implemented", p.want.Provenance)
	}
	if enc := value.Lookup(p.options, "encryptedFields"); enc.T == value.Document {
		return mongoerr.Newf(mongoerr.NotImplemented, "%s of a collection with encrypted fields is not supported", p.want.Provenance)
	}
	copy(p.uuid[:], value.Lookup(value.Lookup(found[0], "info").Doc(), "uuid").Bytes())
	p.indexes, err = j.findOnPrimary(ctx, fld("listIndexes", str(coll)))
	return err
}

// job borrows the checks of shardCollection, on a shard that has documents of the collection.
func (p *reshardPlan) job() *shardJob {
	return &shardJob{m: p.m, req: &msg.ShardCollection{NS: p.ns, Collation: p.want.Collation}, pattern: p.key,
		db: &cluster.DatabaseInfo{Name: p.db.Name, Primary: p.info.Shards()[0]}, uuid: p.uuid, options: p.options}
}

// checkReshard looks at the new key.
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
	j := p.job()
	served := false
	for _, s := range p.indexes {
		if value.Lookup(s, "unique").Truthy() && !p.key.UniqueIndexAllowed(value.Lookup(s, "key").Doc()) {
			return false, mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key. Uniqueness can't be maintained unless shard key is a prefix",
				p.ns, value.Lookup(s, "name").Str())
		}
		served = served || servesShardKey(p.key, s)
	}
	if !served {
		spec := []value.Field{fld("v", value.NewInt32(2)), fld("key", value.NewDocument(p.key.Doc())), fld("name", str(indexName(p.key)))}
		if _, ok := j.collation(); ok {
			spec = append(spec, fld("collation", doc(fld("locale", str("simple")))))
		}
		p.indexes = append(p.indexes, value.Doc(spec...))
	}
	return false, p.checkZones(ctx)
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

// indexName names the index that a shard key gets.
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

// checkZones reads the zones of the new key: those that are given, or those that there are if the key stays.
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

// checkPlace looks at the shard that is to have the whole collection.
func (p *reshardPlan) checkPlace(ctx context.Context) (same bool, err error) {
	if p.key, err = cluster.ParseShardKey(idKey); err != nil {
		return false, err
	}
	if p.want.To == "" {
		if p.want.To, err = p.m.leastLoaded(ctx); err != nil {
			return false, err
		}
	}
	s, err := p.m.registry.Shard(ctx, p.want.To)
	if err != nil {
		return false, err
	}
	if s.Draining {
		return false, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s is currently draining", s.ID)
	}
	p.want.To = s.ID
	return !p.info.Sharded() && p.info.Home() == s.ID, nil
}

// defaultReshardChunks is how many chunks a resharded collection has at first, if it has as many keys.
const defaultReshardChunks = 90

// layout divides the new key's space.
func (p *reshardPlan) layout(ctx context.Context) ([]placed, error) {
	k := p.key
	if p.want.Provenance != msg.ReshardCollection {
		return []placed{{k.GlobalMin(), k.GlobalMax(), p.want.To}}, nil
	}
	j := p.job()
	var err error
	if j.fallback, err = j.recipients(ctx); err != nil {
		return nil, err
	}
	if len(j.fallback) == 0 {
		return nil, mongoerr.New(mongoerr.ShardNotFound, "No non-draining shards found")
	}
	n := int(p.want.Chunks)
	if n == 0 {
		n = defaultReshardChunks
	}
	points, err := p.splitPoints(ctx, n)
	if err != nil {
		return nil, err
	}
	if p.want.Chunks > 0 && len(points)+1 < n {
		return nil, mongoerr.Newf(4952606, "The shard key provided does not have enough cardinality to make the required number of chunks of %d, it can only make %d chunks", n, len(points)+1)
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

// samplesPerChunk is how many documents are looked at for each chunk.
const samplesPerChunk = 10

// sample returns the new keys of documents, sorted, of each shard in proportion to what it has.
func (p *reshardPlan) sample(ctx context.Context, n int) (keys [][]value.Value, err error) {
	_, coll := cluster.SplitNS(p.ns)
	shards := p.info.Shards()
	counts, total := make([]int64, len(shards)), int64(0)
	for i, id := range shards {
		reply, err := p.m.runOn(ctx, id, value.Doc(fld("count", str(coll)), fld("$db", str(p.db.Name))))
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
		size := max(1, int64(n*samplesPerChunk)*counts[i]/total)
		s, err := p.m.registry.Shard(ctx, id)
		if err != nil {
			return nil, err
		}
		docs, err := cluster.FindAll(ctx, s.Peer, p.db.Name, value.Doc(fld("aggregate", str(coll)),
			fld("pipeline", arr(doc(fld("$sample", doc(fld("size", value.NewInt64(size))))), doc(fld("$project", doc(project...))))),
			fld("cursor", doc()), fld("$db", str(p.db.Name))))
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			vals, err := p.key.FromDocument(d, nil)
			if err != nil {
				return nil, err
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

// place cuts the key space at the points and at the bounds of zones, and gives each shard an equal share of what is of its zone.
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
	all, err := p.m.registry.All(ctx)
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
