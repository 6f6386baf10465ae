package router

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fullNS returns the namespace that is the value of a sharding command.
func fullNS(op *command.Op) (string, error) {
	ns := op.Req.Cmd.Str()
	db, coll := cluster.SplitNS(ns)
	if op.Req.Cmd.T != value.String || db == "" || coll == "" || command.CheckDBName(db) != nil {
		return "", mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return ns, nil
}

// forConfig builds the message that makes the config server execute a client's command.
type forConfig func(op *command.Op) msg.Message

// configCommand makes the config server run a command, with the request's generic arguments, and relays the
// reply.
func (r *Router) configCommand(op *command.Op, m msg.Message, dst []byte) ([]byte, error) {
	reply, err := r.runOnConfig(op, rebuild(msg.Doc(m), nil, genericArguments(op)))
	if err != nil {
		return dst, err
	}
	return append(dst, rebuildElements(reply, replyTrailer)...), nil
}

// genericArguments returns a command's generic arguments, except those in but.
func genericArguments(op *command.Op, but ...string) (generic []byte) {
	for it := value.Walk(op.Req.Body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return generic
		}
		if msg.Generic(k) && string(k) != "$db" && string(k) != "$clusterTime" && !slices.Contains(but, string(k)) {
			generic = append(generic, raw...)
		}
	}
}

// asks returns a handler that only calls configCommand.
func (r *Router) asks(m forConfig) command.Handler {
	return func(op *command.Op, dst []byte) ([]byte, error) { return r.configCommand(op, m(op), dst) }
}

// balancerCollectionStatus builds the config server's command from the client's.

func balancerCollectionStatus(op *command.Op) msg.Message {
	return &msg.BalancerCollectionStatus{NS: op.Req.Cmd.Str()}
}

// configureBalancing sets a collection's chunk size and whether the balancer and the auto-merger process it.
func (r *Router) configureBalancing(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	m := &msg.ConfigureBalancing{NS: ns}
	if v := op.Arg("chunkSize"); !v.IsMissing() {
		mb, whole := v.AsInt64()
		if !whole {
			return dst, mongoerr.New(mongoerr.InvalidOptions, "chunkSize must be a whole number of megabytes")
		}
		m.ChunkMB = &mb
	}
	flag := func(name string) *bool {
		if v := op.Arg(name); !v.IsMissing() {
			b := v.Truthy()
			return &b
		}
		return nil
	}
	m.Balance, m.AutoMerge, m.Defragment = flag("enableBalancing"), flag("enableAutoMerger"), flag("defragmentCollection")
	if no := flag("noBalance"); no != nil {
		if m.Balance != nil {
			return dst, mongoerr.New(mongoerr.InvalidOptions, "enableBalancing and noBalance cannot be given together")
		}
		yes := !*no
		m.Balance = &yes
	}
	return r.configCommand(op, m, dst)
}

func addShardToZone(op *command.Op) msg.Message {
	return &msg.AddShardToZone{Shard: op.Req.Cmd.Str(), Zone: op.Req.Str("zone")}
}

func removeShardFromZone(op *command.Op) msg.Message {
	return &msg.RemoveShardFromZone{Shard: op.Req.Cmd.Str(), Zone: op.Req.Str("zone")}
}

// updateZoneKeyRange assigns a range to a zone; a zone of null, and nothing else, removes it from its zone.
func (r *Router) updateZoneKeyRange(op *command.Op, dst []byte) ([]byte, error) {
	zone := op.Arg("zone")
	switch {
	case zone.T != value.String && zone.T != value.Null:
		return dst, mongoerr.Newf(mongoerr.TypeMismatch, "\"zone\" had the wrong type. Expected string, found %s", zone.T.Name())
	case zone.T == value.String && zone.Str() == "":
		return dst, mongoerr.New(mongoerr.ZoneNotFound, "zone  does not exist")
	}
	bounds := msg.Range{Min: op.Req.Doc("min"), Max: op.Req.Doc("max")}
	return r.configCommand(op, &msg.UpdateZoneKeyRange{NS: op.Req.Cmd.Str(), Range: bounds, Zone: op.Req.Str("zone")}, dst)
}

// enableSharding creates a database, on a chosen primary if one is named.
func (r *Router) enableSharding(op *command.Op, dst []byte) ([]byte, error) {
	db := op.Req.Cmd.Str()
	if err := command.CheckDBName(db); err != nil || op.Req.Cmd.T != value.String {
		return dst, mongoerr.Newf(mongoerr.InvalidNamespace, "invalid db name specified: %s", db)
	}
	if cluster.FixedDatabase(db) || db == "local" {
		return dst, mongoerr.Newf(mongoerr.InvalidOptions, "can't shard %s database", db)
	}
	return dst, r.createDatabase(op, db, op.Req.Str("primaryShard"))
}

// shardCollection has the primary shard of the database coordinate the command.
func (r *Router) shardCollection(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	if err := checkTrackable("shard", ns); err != nil {
		return dst, err
	}
	if op.Bool("presplitHashedZones") {
		if err := r.checkPresplit(op, ns); err != nil {
			return dst, err
		}
	}
	if n := op.Req.Int("numInitialChunks", 0); n < 0 {
		return dst, mongoerr.Newf(mongoerr.InvalidOptions, "numInitialChunks cannot be negative: %d", n)
	}
	m := &msg.ShardShardCollection{ShardCollection: msg.ShardCollection{
		NS: ns, Key: op.Req.Doc("key"), Unique: op.Bool("unique"), Chunks: op.Req.Int("numInitialChunks", 0),
		Collation: op.Req.Doc("collation"), ImplicitIndex: op.BoolOr("implicitlyCreateIndex", true),
		Enforce: op.BoolOr("enforceUniquenessCheck", true), Presplit: op.Bool("presplitHashedZones"), TimeSeries: op.Req.Doc("timeseries"),
	}}
	return r.track(op, ns, m, dst)
}

// checkTrackable refuses the collections that the catalog has no entries of: each node has its own (system.profile), or the primary shard of the database has them, and
// others look for them there.
func checkTrackable(doing, ns string) error {
	db, coll := cluster.SplitNS(ns)
	if cluster.FixedDatabase(db) || strings.HasPrefix(coll, "system.") && !strings.HasPrefix(coll, "system.buckets.") {
		return mongoerr.Newf(mongoerr.IllegalOperation, "can't %s %s: it is a collection of the server's own", doing, ns)
	}
	return nil
}

// track has the primary shard of the database create a collection's entry in the catalog.
func (r *Router) track(op *command.Op, ns string, m *msg.ShardShardCollection, dst []byte) ([]byte, error) {
	from := len(dst)
	err := r.routed(op, ns, true, func(info *cluster.CollectionInfo) (err error) {
		dst, err = r.coordinated(op, info, m, dst[:from])
		return err
	})
	r.Catalog.InvalidateCollection(ns)
	return dst, err
}

// refineCollectionShardKey has the primary shard of the database add fields to a shard key.
func (r *Router) refineCollectionShardKey(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	if db, _ := cluster.SplitNS(ns); cluster.FixedDatabase(db) {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "the shard key of %s cannot be refined", ns)
	}
	m := &msg.ShardRefine{NS: ns, Key: op.Req.Doc("key"), Enforce: op.BoolOr("enforceUniquenessCheck", true)}
	from := len(dst)
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = r.coordinated(op, info, m, dst[:from])
		return err
	})
	r.Catalog.InvalidateCollection(ns)
	r.Catalog.InvalidateCollection(timeseries.BucketsOf(ns))
	return dst, err
}

// checkPresplit refuses presplitHashedZones for a key without a hashed field, and if there are no zones to split
// by.
func (r *Router) checkPresplit(op *command.Op, ns string) error {
	hashed := false
	for _, v := range value.Elements(op.Req.Doc("key")) {
		hashed = hashed || v.Str() == "hashed"
	}
	if !hashed {
		return mongoerr.New(mongoerr.InvalidOptions, "presplitHashedZones is only supported for hashed shard keys")
	}
	zones, err := cluster.FindConfig(op, r.config, cluster.Find{NS: "config.tags", Filter: value.Doc(value.F("ns", value.NewString(ns))), Limit: 1}.Doc())
	if err == nil && len(zones) == 0 {
		err = mongoerr.Newf(mongoerr.InvalidOptions, "presplitHashedZones needs zones, and none are defined for collection %s", ns)
	}
	return err
}

// clearJumboFlag clears the jumbo flag of a chunk, which is identified by a key in it or by its bounds.
func (r *Router) clearJumboFlag(op *command.Op, dst []byte) ([]byte, error) {
	m := &msg.ClearJumboFlag{NS: op.Req.Cmd.Str(), Find: op.Req.Doc("find")}
	for _, b := range value.Values(op.Req.Doc("bounds")) {
		if b.T != value.Document {
			return dst, mongoerr.New(mongoerr.BadValue, "no valid shard key bounds found")
		}
		m.Bounds = append(m.Bounds, b.Doc())
	}
	return r.configCommand(op, m, dst)
}

// setAllowMigrations forbids or allows migrations of a sharded collection.
func (r *Router) setAllowMigrations(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	return r.configCommand(op, &msg.AllowMigrations{NS: ns, Allow: op.Bool("allowMigrations")}, dst)
}

// untrack removes the catalog entry of a collection that is not sharded.
func (r *Router) untrack(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	op.Stats.NS = ns
	from := len(dst)
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		switch {
		case cluster.FixedDatabase(info.DB.Name):
			return mongoerr.Newf(mongoerr.IllegalOperation, "collections of the database %s cannot be untracked", info.DB.Name)
		case info.DB.Version.IsFixed(): // r.collection has found none
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "database %s not found", info.DB.Name)
		}
		dst, err = r.coordinated(op, info, &msg.ShardUntrack{NS: ns}, dst[:from])
		return err
	})
	r.Catalog.InvalidateCollection(ns)
	r.Catalog.InvalidateCollection(timeseries.BucketsOf(ns))
	return dst, err
}

// profile relays the command to the primary shard of the database. A router has no profiler to switch on.
func (r *Router) profile(op *command.Op, dst []byte) ([]byte, error) {
	if level := op.Req.Cmd.AsFloat64(); level == 1 || level == 2 {
		return dst, mongoerr.New(mongoerr.BadValue, "Profiling is not supported on mongos: the profile command may only be sent with level 0 or -1")
	}
	return r.toPrimaryRead(op, dst)
}

// shardedNS returns the sharded collection that a command names.
func (r *Router) shardedNS(op *command.Op) (ns string, info *cluster.CollectionInfo, err error) {
	if ns, err = fullNS(op); err == nil {
		info, err = r.shardedInfo(op, ns)
	}
	return ns, info, err
}

// shardedInfo returns the placement of a collection that must be sharded.
func (r *Router) shardedInfo(op *command.Op, ns string) (*cluster.CollectionInfo, error) {
	r.Catalog.InvalidateCollection(ns)
	info, err := r.collection(op, ns)
	if err == nil && !info.Sharded() {
		err = mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	return info, err
}

// chunkOf finds the chunk that find, bounds or middle refer to.
func (r *Router) chunkOf(op *command.Op, info *cluster.CollectionInfo) (*cluster.Chunk, []value.Value, error) {
	key := info.Map.Key
	if b := op.Req.Doc("bounds"); b != nil {
		ends := value.Values(b)
		if len(ends) != 2 || ends[0].T != value.Document || ends[1].T != value.Document {
			return nil, nil, mongoerr.New(mongoerr.BadValue, "no valid shard key bounds found")
		}
		lo, err := key.NormalizeBound(ends[0].Doc())
		if err != nil {
			return nil, nil, err
		}
		hi, err := key.NormalizeBound(ends[1].Doc())
		if err != nil {
			return nil, nil, err
		}
		c := info.Map.Find(value.Values(lo))
		if min, max := c.Bounds(); cluster.CompareKeys(min, value.Values(lo)) != 0 || cluster.CompareKeys(max, value.Values(hi)) != 0 {
			return nil, nil, mongoerr.Newf(mongoerr.BadValue, "no chunk found with the shard key bounds")
		}
		return c, nil, nil
	}
	if m := op.Req.Shared("middle").Doc(); m != nil { // of split
		full, err := key.NormalizeBound(m)
		if err != nil {
			return nil, nil, err
		}
		vals := value.Values(full)
		return info.Map.Find(vals), vals, nil
	}
	f := op.Req.Doc("find")
	vals, ok := targeting.ExactKey(key, f, false)
	if f == nil || !ok {
		return nil, nil, mongoerr.New(mongoerr.ShardKeyNotFound, "no shard key found in chunk query")
	}
	return info.Map.Find(vals), nil, nil
}

// split splits a chunk: at a given key, or at its median.
func (r *Router) split(op *command.Op, dst []byte) ([]byte, error) {
	ns, info, err := r.shardedNS(op)
	if err != nil {
		return dst, err
	}
	given := 0
	for _, f := range []string{"find", "bounds", "middle"} {
		if !op.Arg(f).IsMissing() {
			given++
		}
	}
	if given != 1 {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "must specify exactly one of: find, middle or bounds")
	}
	c, middle, err := r.chunkOf(op, info)
	if err != nil {
		return dst, err
	}
	at := info.Map.Key.KeyDoc
	var point []byte
	if middle != nil {
		if min, _ := c.Bounds(); cluster.CompareKeys(min, middle) == 0 {
			return dst, mongoerr.New(mongoerr.CannotSplit, "new split key is a boundary key of existing chunk")
		}
		point = at(middle)
	} else if point, err = r.median(op, info, c); err != nil {
		return dst, err
	}
	_, err = r.onConfig(op, &msg.CommitChunkSplit{NS: ns, Range: msg.Range{Min: c.Min, Max: c.Max}, Points: [][]byte{point}})
	r.Catalog.InvalidateCollection(ns)
	return dst, err
}

// median asks the owning shard for the key in the middle of a chunk.
func (r *Router) median(op *command.Op, info *cluster.CollectionInfo, c *cluster.Chunk) ([]byte, error) {
	db, _ := cluster.SplitNS(info.NS)
	reply, err := r.call(op, c.Shard, msg.Doc(&msg.SplitVector{DB: db, NS: info.NS, Key: info.Map.Key.Doc(), Range: msg.Range{Min: c.Min, Max: c.Max}, Force: true}), nil)
	var found msg.SplitVectorReply
	if err == nil {
		err = msg.Parse(reply, &found)
	}
	if err != nil {
		return nil, err
	}
	if len(found.Keys) == 0 {
		return nil, mongoerr.New(mongoerr.CannotSplit, "cannot split chunk: it holds too few documents")
	}
	return found.Keys[0], nil
}

// splitVector asks the shard of an unsharded collection. Sharded ones are refused: each shard has only a part.
func (r *Router) splitVector(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	info, err := r.collection(op, ns)
	if err != nil {
		return dst, err
	}
	if info.Sharded() {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "can't do command: splitVector on sharded collection")
	}
	return r.relay(op, info.Home(), nil, nil, dst)
}

// moveChunk implements moveChunk and moveRange: the config server, which serialises migrations, moves the range.
func (r *Router) moveChunk(op *command.Op, dst []byte) ([]byte, error) {
	ns, info, err := r.shardedNS(op)
	if err != nil {
		return dst, err
	}
	name := op.Req.Str("toShard")
	if to := op.Req.Shared("to"); to.T == value.String && to.Str() != "" { // of moveChunk
		name = to.Str()
	}
	to, err := r.Registry.Listed(op, name)
	if err != nil {
		return dst, mongoerr.Newf(mongoerr.ShardNotFound, "Could not move chunk in '%s' to shard '%s' because that shard does not exist", ns, name)
	}
	var lo, hi []byte
	if op.Req.Spec.Name == "moveChunk" {
		if (value.Count(op.Req.Doc("find")) == 0) == (value.Count(op.Req.Doc("bounds")) == 0) {
			return dst, mongoerr.New(mongoerr.InvalidOptions, "need to specify either a find query, or both lower and upper bounds")
		}
		c, _, err := r.chunkOf(op, info)
		if err != nil {
			return dst, err
		}
		lo, hi = c.Min, c.Max
	} else if lo, hi = op.Req.Doc("min"), op.Req.Doc("max"); lo == nil && hi == nil {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "moveRange requires 'min' or 'max'")
	}
	m := &msg.MoveRange{Move: msg.Move{
		NS: ns, To: to.ID, Min: lo, Max: hi, ForceJumbo: op.Bool("forceJumbo"), WaitForDelete: op.Bool("waitForDelete") || op.Bool("_waitForDelete"),
	}}
	if m.Transfer.Throttle = op.Bool("secondaryThrottle") || op.Bool("_secondaryThrottle"); m.Transfer.Throttle {
		m.Transfer.Concern = op.Req.AskedConcern().Doc
	}
	reply, err := r.onConfig(op, m)
	for try := 0; mongoerr.CodeOf(err) == mongoerr.ConflictingOperationInProgress && try < maxStaleTries && r.foundElsewhere(op, ns, m); try++ {
		reply, err = r.onConfig(op, m)
	}
	r.Catalog.InvalidateCollection(ns)
	if err != nil {
		return dst, err
	}
	if op.Req.Spec.Name == "moveChunk" {
		dst = value.Append(dst, "millis", value.NewInt32(int32(op.Elapsed().Milliseconds())))
	}
	return append(dst, rebuildElements(reply, replyTrailer)...), nil
}

// foundElsewhere looks again for the chunk with the key that a moveChunk names by find, and reports whether it has other bounds than the refused move: it was split or
// merged meanwhile.
func (r *Router) foundElsewhere(op *command.Op, ns string, m *msg.MoveRange) bool {
	if op.Req.Spec.Name != "moveChunk" || value.Count(op.Req.Doc("bounds")) > 0 {
		return false
	}
	info, err := r.shardedInfo(op, ns)
	if err != nil {
		return false
	}
	c, _, err := r.chunkOf(op, info)
	if err != nil || bytes.Equal(c.Min, m.Min) && bytes.Equal(c.Max, m.Max) {
		return false
	}
	m.Min, m.Max = c.Min, c.Max
	return true
}

// mergeChunks merges the chunks between two bounds, which one shard must own.
func (r *Router) mergeChunks(op *command.Op, dst []byte) ([]byte, error) {
	ns, info, err := r.shardedNS(op)
	if err != nil {
		return dst, err
	}
	ends := value.Values(op.Req.Doc("bounds"))
	if len(ends) != 2 || ends[0].T != value.Document || ends[1].T != value.Document {
		return dst, mongoerr.New(mongoerr.BadValue, "The bounds of the merge must be an array of two documents")
	}
	lo, err := info.Map.Key.NormalizeBound(ends[0].Doc())
	if err != nil {
		return dst, err
	}
	hi, err := info.Map.Key.NormalizeBound(ends[1].Doc())
	if err != nil {
		return dst, err
	}
	_, err = r.onConfig(op, &msg.CommitChunksMerge{NS: ns, Range: msg.Range{Min: lo, Max: hi}})
	r.Catalog.InvalidateCollection(ns)
	return dst, err
}

// mergeAllChunksOnShard has the config server merge all mergeable chunks of a collection on one shard.
func (r *Router) mergeAllChunksOnShard(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	m := &msg.MergeAllChunksOnShard{NS: ns, Shard: op.Req.Str("shard")}
	for name, to := range map[string]**int64{"maxNumberOfChunksToMerge": &m.MaxChunks, "maxTimeProcessingChunksMS": &m.MaxTimeMS} {
		if v := op.Arg(name); !v.IsMissing() {
			n, whole := v.AsInt64()
			if !whole || n < 0 {
				return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' must be a whole number, not %s", name, value.Show(v))
			}
			*to = &n
		}
	}
	dst, err = r.configCommand(op, m, dst)
	r.Catalog.InvalidateCollection(ns)
	return dst, err
}

// listShards shows config.shards.
func (r *Router) listShards(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.Registry.Reload(op); err != nil {
		return dst, err
	}
	all, err := r.Registry.All(op)
	if err != nil {
		return dst, err
	}
	dst, m := value.BeginKey(dst, value.Array, "shards")
	for i, s := range all {
		dst = value.AppendIndex(dst, i, value.NewDocument(s.Doc))
	}
	return value.End(dst, m), nil
}

// addShard and removeShard change the set of shards.
func (r *Router) addShard(op *command.Op, dst []byte) ([]byte, error) {
	if !op.Arg("maxSize").IsMissing() { // removed in 6.2 (manual: addShard)
		return dst, mongoerr.New(mongoerr.InvalidOptions, "maxSize is not supported any more: the size of a shard cannot be limited")
	}
	dst, err := r.configCommand(op, &msg.AddShard{Connection: op.Req.Cmd.Str(), Name: op.Req.Str("name")}, dst)
	if err == nil {
		err = r.Registry.Reload(op)
	}
	return dst, err
}

func (r *Router) removeShard(op *command.Op, dst []byte) ([]byte, error) {
	id := op.Req.Cmd.Str()
	return r.removal(op, id, func(starts bool) msg.Message { return &msg.RemoveShard{Shard: id, Starts: starts} }, dst)
}

// transitionToShard makes the config server a shard.
func (r *Router) transitionToShard(op *command.Op, dst []byte) ([]byte, error) {
	dst, err := r.configCommand(op, &msg.TransitionFromDedicated{}, dst)
	if err == nil {
		err = r.Registry.Reload(op)
	}
	return dst, err
}

// transitionToDedicated reverses transitionToShard.
func (r *Router) transitionToDedicated(op *command.Op, dst []byte) ([]byte, error) {
	return r.removal(op, cluster.ConfigShardID, func(starts bool) msg.Message { return &msg.TransitionToDedicated{Starts: starts} }, dst)
}

// removal sends the config server a request to remove a shard, or to report the progress of that, again if the primary steps down at work, and has it answered as the
// first one would have been. If the shard was not draining before, the request starts that and does no more (starts). Else it goes on from where an earlier one was;
// if it finds that the shard is gone, an earlier one has removed it.
func (r *Router) removal(op *command.Op, id string, m func(starts bool) msg.Message, dst []byte) ([]byte, error) {
	known, starts, from := false, false, len(dst)
	current := r.Registry.Reload(op) == nil // another router may have added it
	if s, err := r.Registry.Shard(op, id); err == nil && s.Doc != nil {
		known, starts, id = true, current && !s.Draining, s.ID
	}
	for try := 0; ; try++ {
		dst, err := r.configCommand(op, m(starts && try > 0), dst[:from])
		if try > 0 && known && mongoerr.CodeOf(err) == mongoerr.ShardNotFound {
			dst, err = appendRemoved(dst[:from], id), nil
		}
		if err == nil {
			_ = r.Registry.Reload(op) // the removal stands, whether this router has heard of it or not
			return dst, nil
		}
		if !cluster.Retryable(err) || try == coordinatedAgain || cluster.Sleep(op, 20*time.Millisecond<<(2*try)) != nil {
			return dst, err
		}
	}
}

// appendRemoved appends the config server's reply to the request that completes the removal of a shard.
func appendRemoved(dst []byte, id string) []byte {
	dst = value.Append(dst, "msg", value.NewString("removeshard completed successfully"))
	dst = value.Append(dst, "state", value.NewString("completed"))
	return value.Append(dst, "shard", value.NewString(id))
}

// getShardMap shows the connection strings and hosts of the shards.
func (r *Router) getShardMap(op *command.Op, dst []byte) ([]byte, error) {
	return r.Registry.AppendShardMap(op, dst)
}

// getShardVersion returns the router's cached version of a collection or database.
func (r *Router) getShardVersion(op *command.Op, dst []byte) ([]byte, error) {
	name := op.Req.Cmd.Str()
	if _, coll := cluster.SplitNS(name); coll == "" {
		db, err := r.Catalog.Database(op, name)
		if err != nil {
			return dst, err
		}
		dst = value.Append(dst, "primaryShard", value.NewString(db.Primary))
		return value.Append(dst, "version", value.NewDocument(db.Version.Doc())), nil
	}
	info, err := r.Catalog.Collection(op, name)
	if err != nil {
		return dst, err
	}
	if !info.Sharded() {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", name)
	}
	v := info.Map.Version()
	dst = value.Append(dst, "version", value.NewTimestampU64(v.Combined()))
	dst = value.Append(dst, "versionEpoch", value.NewObjectID(v.Epoch))
	dst = value.Append(dst, "versionTimestamp", value.NewTimestampU64(v.Timestamp))
	if op.Bool("fullMetadata") {
		var m int
		dst, m = value.BeginKey(dst, value.Array, "chunks")
		for i := 0; i < info.Map.Len(); i++ {
			c := info.Map.Chunk(i)
			dst = value.AppendIndex(dst, i, value.NewArray(value.ArrayOf(value.NewDocument(c.Min), value.NewDocument(c.Max))))
		}
		dst = value.End(dst, m)
	}
	return dst, nil
}

// flushRouterConfig drops the cached placement of a collection, of a database, or of everything.
func (r *Router) flushRouterConfig(op *command.Op, dst []byte) ([]byte, error) {
	dst = value.Append(dst, "flushed", value.NewBool(true))
	name := op.Req.Cmd.Str()
	switch _, coll := cluster.SplitNS(name); {
	case op.Req.Cmd.T != value.String:
		r.Catalog.Clear()
	case coll == "":
		r.Catalog.PurgeDatabase(name)
	default:
		r.Catalog.InvalidateCollection(name)
	}
	return dst, nil
}

func (r *Router) isdbgrid(_ *command.Op, dst []byte) ([]byte, error) {
	dst = value.Append(dst, "isdbgrid", value.NewInt32(1))
	return value.Append(dst, "hostname", value.NewString(r.Service.Host)), nil
}

func (r *Router) netstat(op *command.Op, dst []byte) ([]byte, error) {
	dst = value.Append(dst, "configserver", value.NewString(r.configString(op)))
	return value.Append(dst, "isdbgrid", value.NewInt32(1)), nil
}

// configString returns the config server's connection string, or "" if it is not known.
func (r *Router) configString(op *command.Op) string {
	reply, err := r.runOnConfig(op, msg.Doc(new(msg.Hello)))
	if err != nil {
		return ""
	}
	out := value.Lookup(reply, "setName").Str() + "/"
	for i, h := range value.Values(value.Lookup(reply, "hosts").Doc()) {
		if i > 0 {
			out += ","
		}
		out += h.Str()
	}
	return out
}

// askAllShards sends the request unchanged to every shard, and returns their replies, or the first error.
func (r *Router) askAllShards(op *command.Op) ([]shardReply, error) {
	ids, err := r.allShards(op)
	if err != nil {
		return nil, err
	}
	replies := r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return op.Req.Body, nil })
	return replies, firstError(replies)
}

// onAllShards sends the request unchanged to every shard; the reply is the first shard's, with all of them in the
// field `all`.
func (r *Router) onAllShards(op *command.Op, dst []byte) ([]byte, error) {
	replies, err := r.askAllShards(op)
	if err != nil {
		return dst, err
	}
	if len(replies) > 0 {
		dst = append(dst, rebuildElements(replies[0].body, replyTrailer)...)
	}
	dst, m := value.BeginKey(dst, value.Document, "all")
	for i := range replies {
		dst = value.Append(dst, replies[i].shard, value.NewDocument(rebuild(replies[i].body, map[string]bool{"$clusterTime": true, "operationTime": true})))
	}
	return value.End(dst, m), nil
}

// toConfig relays a command about the whole cluster to the config server.
func (r *Router) toConfig(op *command.Op, dst []byte) ([]byte, error) {
	return r.relay(op, cluster.ConfigShardID, nil, nil, dst)
}

// everywhere relays a cluster-wide setting to the config server, whose reply is returned, and to all shards.
func (r *Router) everywhere(op *command.Op, dst []byte) ([]byte, error) {
	out, err := r.toConfig(op, dst)
	if err != nil {
		return out, err
	}
	if err := r.Registry.Reload(op); err != nil { // a shard that joins now takes over what the config server has
		return dst, err
	}
	ids, err := r.allShards(op)
	if err != nil {
		return dst, err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == cluster.ConfigShardID }) // it has replied
	replies := r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return op.Req.Body, nil })
	return out, firstError(replies)
}

// oplogNote makes every shard write the note, and reports their replies under raw.
func (r *Router) oplogNote(op *command.Op, dst []byte) ([]byte, error) {
	replies, err := r.askAllShards(op)
	if err != nil {
		return dst, err
	}
	collectWriteConcernErrors(op, replies)
	return r.rawReplies(nil, replies, dst)
}

// validateDBMetadata collects the shards' findings.
func (r *Router) validateDBMetadata(op *command.Op, dst []byte) ([]byte, error) {
	replies, err := r.askAllShards(op)
	if err != nil {
		return dst, err
	}
	var found []value.Value
	for i := range replies {
		found = append(found, value.Values(value.Lookup(replies[i].body, "apiVersionErrors").Doc())...)
	}
	return value.Append(dst, "apiVersionErrors", value.NewArray(value.ArrayOf(found...))), nil
}
