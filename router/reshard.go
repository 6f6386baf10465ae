package router

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func (r *Router) reshardSpecs() []command.Spec {
	any, str := command.TAny, command.TString
	o, req := command.Opt, command.Req
	return []command.Spec{
		admin("reshardCollection", str, r.reshardCollection, req("key", command.TObject), o("unique", command.TSafeBool), o("numInitialChunks", command.TNumber),
			o("numSamplesPerChunk", command.TNumber), o("collation", command.TObject), o("zones", command.TArray), o("forceRedistribution", command.TSafeBool),
			o("shardDistribution", command.TArray), o("demoMode", command.TSafeBool)),
		admin("moveCollection", str, r.moveCollection, req("toShard", str)),
		admin("unshardCollection", str, r.unshardCollection, o("toShard", str)),
		admin("abortReshardCollection", str, r.endsReshard(false, aborts(""))),
		admin("abortMoveCollection", str, r.endsReshard(false, aborts(msg.MoveCollection))),
		admin("abortUnshardCollection", str, r.endsReshard(false, aborts(msg.UnshardCollection))),
		admin("commitReshardCollection", str, r.endsReshard(true, func(ns string, id *[16]byte) msg.Message { return &msg.CommitReshard{NS: ns, ID: id} })),
		admin("cleanupReshardCollection", any, r.cleanupReshard),
	}
}

// aborts makes the request that aborts an operation of a kind, of any without one.
func aborts(kind string) func(ns string, id *[16]byte) msg.Message {
	return func(ns string, id *[16]byte) msg.Message { return &msg.AbortReshard{NS: ns, ID: id, Provenance: kind} }
}

// cleanupReshard removes what is left of a resharding that the config server does not know.
func (r *Router) cleanupReshard(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	return r.configCommand(op, &msg.CleanupReshard{NS: ns}, dst)
}

// endsReshard returns a handler that has the config server commit or abort the resharding of a collection. A primary that steps down meanwhile takes the wish with it, so the next one is asked again. If that one finds
// no operation, the first may have ended it: the collection's UUID tells how.
func (r *Router) endsReshard(commit bool, m func(ns string, id *[16]byte) msg.Message) command.Handler {
	return func(op *command.Op, dst []byte) ([]byte, error) {
		ns, err := fullNS(op)
		if err != nil {
			return dst, err
		}
		id, err := r.reshardingOf(op, ns)
		if err != nil {
			return dst, err
		}
		for try, began := 0, time.Now(); ; try++ {
			out, err := r.configCommand(op, m(ns, id), dst)
			switch {
			case err == nil || id == nil:
				return out, err
			case cluster.Retryable(err) && time.Since(began) < electedWithin && cluster.Backoff(op, try) == nil:
				continue
			case try > 0 && mongoerr.CodeOf(err) == mongoerr.NoSuchReshardCollection:
				committed, ferr := r.reshardedBy(op, ns, id)
				switch {
				case ferr != nil:
					return dst, ferr
				case committed == commit:
					return dst, nil
				case committed:
					return dst, mongoerr.Newf(mongoerr.ReshardCollectionCommitted, "Can't abort resharding operation after the decision to commit %s", ns)
				}
			}
			return dst, err
		}
	}
}

// reshardingOf returns the id of the resharding of a collection, or of a time series' buckets; nil if there is none.
func (r *Router) reshardingOf(op *command.Op, ns string) (*[16]byte, error) {
	docs, err := r.ofCollection(op, "config.reshardingOperations", "ns", ns)
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	id, ok := catalog.UUIDFrom(value.Lookup(docs[0], "_id"))
	if !ok {
		return nil, nil
	}
	return (*[16]byte)(&id), nil
}

// reshardedBy reports whether a resharding has been committed: its id is the new UUID of the collection.
func (r *Router) reshardedBy(op *command.Op, ns string, id *[16]byte) (bool, error) {
	docs, err := r.ofCollection(op, "config.collections", "_id", ns)
	if err != nil || len(docs) == 0 {
		return false, err
	}
	has, ok := catalog.UUIDFrom(value.Lookup(docs[0], "uuid"))
	return ok && has == *id, nil
}

// ofCollection returns the documents of the config server about a collection, or a time series' buckets.
func (r *Router) ofCollection(op *command.Op, from, field, ns string) ([][]byte, error) {
	in := value.NewArray(value.ArrayOf(value.NewString(ns), value.NewString(timeseries.BucketsOf(ns))))
	return cluster.Find{NS: from, Filter: value.Doc(value.F(field, value.NewDocument(value.Doc(value.F("$in", in)))))}.All(op, r.config)
}

// reshardCollection gives a sharded collection another key.
func (r *Router) reshardCollection(op *command.Op, dst []byte) ([]byte, error) {
	if op.Bool("unique") {
		return dst, mongoerr.New(mongoerr.BadValue, "reshardCollection does not support a unique shard key: the only value of unique is false")
	}
	want := msg.Reshard{
		Provenance: msg.ReshardCollection, Key: op.Req.Doc("key"), Chunks: op.Req.Int("numInitialChunks", 0), Collation: op.Req.Doc("collation"),
		Samples: op.Req.Int("numSamplesPerChunk", 0), Force: op.Bool("forceRedistribution"),
	}
	if v := op.Arg("numSamplesPerChunk"); !v.IsNullish() && want.Samples < 1 {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'numSamplesPerChunk' value must be >= 1, actual value '%d'", want.Samples)
	}
	if v := op.Arg("numInitialChunks"); !v.IsNullish() && (want.Chunks < 1 || want.Chunks > 10000) {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'numInitialChunks' value must be >= 1 and <= 10000, actual value '%d'", want.Chunks)
	}
	var err error
	if want.Zones, err = parseZones(op); err != nil {
		return dst, err
	}
	if want.Distribution, err = parseDistribution(op); err != nil {
		return dst, err
	}
	return r.reshard(op, want, dst)
}

// zoneFields are the fields of an element of zones. A range without a zone is of none.
var zoneFields = []command.Field{command.Opt("zone", command.TString), command.Req("min", command.TObject), command.Req("max", command.TObject)}

// parseZones reads the ranges of zones; nil if they are not given.
func parseZones(op *command.Op) (out [][]byte, err error) {
	v := op.Arg("zones")
	if v.IsNullish() {
		return nil, nil
	}
	out = [][]byte{}
	for _, z := range value.Values(v.Doc()) {
		if z.T != value.Document {
			return nil, command.WrongType("reshardCollection.zones", z.T, command.TObject)
		}
		if _, err := command.ParseFields("reshardCollection.zones", z.Doc(), zoneFields); err != nil {
			return nil, err
		}
		out = append(out, z.Doc())
	}
	return out, nil
}

// parseDistribution reads the shards, and possibly the ranges, of shardDistribution; nil if it is not given.
func parseDistribution(op *command.Op) (out [][]byte, err error) {
	v := op.Arg("shardDistribution")
	if v.IsNullish() {
		return nil, nil
	}
	out = [][]byte{}
	for _, d := range value.Values(v.Doc()) {
		if d.T != value.Document {
			return nil, command.WrongType("reshardCollection.shardDistribution", d.T, command.TObject)
		}
		for k, f := range value.Elements(d.Doc()) {
			switch {
			case k == "shard" && f.T != value.String:
				return nil, command.WrongType("reshardCollection.shardDistribution.shard", f.T, command.TString)
			case (k == "min" || k == "max") && f.T != value.Document:
				return nil, command.WrongType("reshardCollection.shardDistribution."+k, f.T, command.TObject)
			case k != "shard" && k != "min" && k != "max":
				return nil, command.UnknownField("reshardCollection.shardDistribution." + k)
			}
		}
		if value.Lookup(d.Doc(), "shard").IsMissing() {
			return nil, mongoerr.MissingField("reshardCollection.shardDistribution.shard")
		}
		out = append(out, d.Doc())
	}
	return out, nil
}

// moveCollection moves an unsharded collection to another shard.
func (r *Router) moveCollection(op *command.Op, dst []byte) ([]byte, error) {
	return r.reshard(op, msg.Reshard{Provenance: msg.MoveCollection, To: op.Req.Str("toShard")}, dst)
}

// unshardCollection moves a sharded collection to one shard.
func (r *Router) unshardCollection(op *command.Op, dst []byte) ([]byte, error) {
	return r.reshard(op, msg.Reshard{Provenance: msg.UnshardCollection, To: op.Req.Str("toShard")}, dst)
}

// reshard makes the primary shard of the database coordinate the operation.
func (r *Router) reshard(op *command.Op, want msg.Reshard, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	if err := command.CheckClientWrite(op, ns); err != nil {
		return dst, err
	}
	if err := checkTrackable(want.Provenance, ns); err != nil {
		return dst, err
	}
	if err := r.checkRecipients(op, want.To, want.Distribution); err != nil {
		return dst, err
	}
	from := len(dst)
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = r.coordinated(op, info, &msg.ShardReshard{NS: ns, Reshard: want}, dst[:from])
		return err
	})
	r.Catalog.InvalidateCollection(ns)
	r.Catalog.InvalidateCollection(timeseries.BucketsOf(ns))
	return dst, err
}

// checkRecipients refuses a request that names a shard which does not exist, after reading config.shards once. A shard's answer that another one is missing may be
// due to a registry that is out of date, and is retried for seconds.
func (r *Router) checkRecipients(op *command.Op, to string, distribution [][]byte) error {
	names := make([]string, 0, 1+len(distribution))
	if to != "" {
		names = append(names, to)
	}
	for _, d := range distribution {
		names = append(names, value.Lookup(d, "shard").Str())
	}
	for _, name := range names {
		if _, err := r.Registry.Listed(op, name); err != nil {
			return err
		}
	}
	return nil
}
