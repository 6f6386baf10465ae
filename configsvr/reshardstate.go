package configsvr

import (
	"bytes"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// reshardingOps is the collection of the state documents.
const reshardingOps = "reshardingOperations"

// States of a resharding, in their order. Until reshardCommitting it can be undone.
const (
	reshardInitializing = "initializing"
	reshardPreparing    = "preparing-to-donate"
	reshardCloning      = "cloning"
	reshardApplying     = "applying"
	reshardBlocking     = "blocking-writes"
	reshardCommitting   = "committing"
	reshardDone         = "done"
	reshardAborting     = "aborting"
	reshardQuiesced     = "quiesced" // it has ended, but its caller may not know yet
)

// reshardSize is the estimated amount of data to copy.
type reshardSize struct{ docs, bytes int64 }

// reshardShards are the shards that take part.
type reshardShards struct {
	donors, recipients []string
	idle               []string // those that are neither and have kept an empty copy, from when they had chunks
}

// reshardMarks are what has been asked or done within a state.
type reshardMarks struct {
	force    bool // writes are to be blocked without waiting for recipients to catch up
	notified bool // change streams have been notified
	// finishing is set, and stored, before the first recipient is sent ReshardFinish: from then on writes stay blocked until the end.
	finishing bool
}

// reshardState is the state document of a resharding.
type reshardState struct {
	id, uuid  [16]byte // of the operation and the collection as it will be; of the collection as it is
	ns, temp  string
	primary   string // shard of the database
	tracked   bool   // the collection has an entry in the catalog
	want      msg.Reshard
	key       []byte
	oldKey    []byte // nil of a collection that is not sharded
	collation []byte // the default one; nil for none
	series    []byte // the options of a time series whose buckets the collection has; nil for others
	state     string
	started   int64 // milliseconds since the epoch
	reshardShards
	cloneAt uint64
	reshardSize
	reshardMarks
	failed *mongoerr.Error
	// term is that of the primary that drives the operation. Each has a later one than those before it, even if the terms of the set began anew, and stores it
	// before it sends anything.
	term int64
}

// takenOver gives the operation the term of a primary that begins to drive it.
func (d *reshardState) takenOver(term int64) { d.term = max(d.term+1, term) }

func (d *reshardState) doc() []byte {
	f := []value.Field{
		fld("_id", value.NewBinary(4, d.id[:])), fld("ns", str(d.ns)), fld("ui", value.NewBinary(4, d.uuid[:])), fld("tempNs", str(d.temp)),
		fld("state", str(d.state)), fld("startTime", value.NewDateTime(d.started)), fld("primaryShard", str(d.primary)), fld("tracked", value.NewBool(d.tracked)),
		fld("provenance", str(d.want.Provenance)), fld("command", value.NewDocument(msg.Doc(&msg.ConfigReshard{NS: d.ns, ID: d.id, Reshard: d.want}))),
		fld("reshardingKey", value.NewDocument(d.key)),
		fld("donorShards", shardList(d.donors)), fld("recipientShards", shardList(d.recipients)), fld("idleShards", shardList(d.idle)),
		fld("approxDocumentsToCopy", value.NewInt64(d.docs)), fld("approxBytesToCopy", value.NewInt64(d.bytes)),
		fld("forcedCommit", value.NewBool(d.force)), fld("notified", value.NewBool(d.notified)), fld("recipientsFinish", value.NewBool(d.finishing)), fld("coordinatorTerm", value.NewInt64(d.term)),
	}
	if len(d.oldKey) > 0 {
		f = append(f, fld("oldShardKey", value.NewDocument(d.oldKey)))
	}
	if len(d.collation) > 0 {
		f = append(f, fld("defaultCollation", value.NewDocument(d.collation)))
	}
	if len(d.series) > 0 {
		f = append(f, fld("timeseriesFields", value.NewDocument(d.series)))
	}
	if d.cloneAt != 0 {
		f = append(f, fld("cloneTimestamp", value.NewTimestampU64(d.cloneAt)))
	}
	if d.failed != nil {
		f = append(f, fld("abortReason", doc(fld("code", value.NewInt32(int32(d.failed.Code))), fld("errmsg", str(d.failed.Message)))))
	}
	return value.Doc(f...)
}

// named reports whether a client's name refers to the collection: the buckets of a time series are also referred to by the
// name of the series.
func (d *reshardState) named(ns string) bool {
	series, ok := timeseries.SeriesOf(d.ns)
	return d.ns == ns || ok && series == ns
}

// command is the client's command as currentOp shows it.
func (d *reshardState) command() []byte {
	collation := d.collation
	if len(collation) == 0 {
		collation = value.Doc(fld("locale", str("simple")))
	}
	return value.Doc(fld("reshardCollection", str(d.ns)), fld("key", value.NewDocument(d.key)), fld("unique", value.NewBool(false)), fld("collation", value.NewDocument(collation)),
		fld("provenance", str(d.want.Provenance)))
}

func shardList(ids []string) value.Value {
	out := make([]value.Value, len(ids))
	for i, id := range ids {
		out[i] = doc(fld("id", str(id)))
	}
	return arr(out...)
}

func readReshardState(raw []byte) (*reshardState, error) {
	raw = bytes.Clone(raw)
	var req msg.ConfigReshard
	if err := msg.Parse(value.LookupDoc(raw, "command"), &req); err != nil {
		return nil, err
	}
	d := &reshardState{
		id: req.ID, ns: req.NS, want: req.Reshard, temp: value.Lookup(raw, "tempNs").Str(), state: value.Lookup(raw, "state").Str(),
		primary: value.Lookup(raw, "primaryShard").Str(), tracked: value.Lookup(raw, "tracked").Truthy(), key: value.LookupDoc(raw, "reshardingKey"), collation: value.LookupDoc(raw, "defaultCollation"), series: value.LookupDoc(raw, "timeseriesFields"), oldKey: value.LookupDoc(raw, "oldShardKey"),
		started: value.Lookup(raw, "startTime").DateTime(), cloneAt: value.Lookup(raw, "cloneTimestamp").TimestampU64(),
		reshardSize:  reshardSize{value.SafeInt64(value.Lookup(raw, "approxDocumentsToCopy")), value.SafeInt64(value.Lookup(raw, "approxBytesToCopy"))},
		reshardMarks: reshardMarks{force: value.Lookup(raw, "forcedCommit").Truthy(), notified: value.Lookup(raw, "notified").Truthy()}, term: value.SafeInt64(value.Lookup(raw, "coordinatorTerm")),
	}
	finishing := value.Lookup(raw, "recipientsFinish")
	d.finishing = finishing.Truthy() || finishing.IsMissing() && d.state == reshardBlocking // an earlier version did not store it
	copy(d.uuid[:], value.Lookup(raw, "ui").Bytes())
	for name, list := range map[string]*[]string{"donorShards": &d.donors, "recipientShards": &d.recipients, "idleShards": &d.idle} {
		if v := value.Lookup(raw, name); v.T == value.Array {
			for _, s := range value.Values(v.Doc()) {
				*list = append(*list, value.Lookup(s.Doc(), "id").Str())
			}
		}
	}
	if why := value.LookupDoc(raw, "abortReason"); len(why) > 0 {
		d.failed = mongoerr.New(mongoerr.Code(value.SafeInt64(value.Lookup(why, "code"))), value.Lookup(why, "errmsg").Str())
	}
	if d.ns == "" || d.temp == "" {
		return nil, mongoerr.New(mongoerr.BadValue, "it has no collection")
	}
	if d.failed == nil && d.state != reshardInitializing && (len(d.donors) == 0 || len(d.recipients) == 0) {
		return nil, mongoerr.New(mongoerr.BadValue, "it has no donors or no recipients")
	}
	return d, nil
}
