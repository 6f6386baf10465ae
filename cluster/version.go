package cluster

import (
	"github.com/shoaldb/shoal/cluster/version"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The types of package version, which the messages between nodes use too.
type (
	// Order is the outcome of comparing two versions.
	Order = version.Order
	// Epoch identifies one incarnation of a sharded collection.
	Epoch = version.Epoch
	// ChunkVersion identifies one state of a collection's routing table.
	ChunkVersion = version.Chunk
	// DatabaseVersion identifies one state of a database's placement.
	DatabaseVersion = version.Database
)

// The outcomes of a comparison.
const (
	Older        = version.Older
	Same         = version.Same
	Newer        = version.Newer
	Incomparable = version.Incomparable
)

// Unsharded is the version of a collection that has no routing table; Ignored asks a shard not to check the version of a request.
var (
	Unsharded = version.Unsharded
	Ignored   = version.Ignored
)

// ParseChunkVersion reads {e, t, v}.
func ParseChunkVersion(v value.Value) (ChunkVersion, error) { return version.ParseChunk(v) }

// ParseDatabaseVersion reads {uuid, timestamp, lastMod}.
func ParseDatabaseVersion(v value.Value) (DatabaseVersion, error) { return version.ParseDatabase(v) }

// AppendShardVersion adds the shardVersion element to a command being built.
func AppendShardVersion(dst []byte, v ChunkVersion) []byte {
	return value.Append(dst, "shardVersion", value.NewDocument(v.Doc()))
}

// StaleConfig returns the error of a shard that disagrees with the sender about a collection. wanted is nil if the
// shard does not know the collection's placement and must find out first.
func StaleConfig(ns string, received ChunkVersion, wanted *ChunkVersion, shard string, why string) *mongoerr.Error {
	fields := []value.Field{
		value.F("ns", value.NewString(ns)),
		value.F("vReceived", value.NewDocument(received.Doc())),
	}
	if wanted != nil {
		fields = append(fields, value.F("vWanted", value.NewDocument(wanted.Doc())))
	}
	fields = append(fields, value.F("shardId", value.NewString(shard)))
	return mongoerr.Newf(mongoerr.StaleConfig, "%s for collection %s", why, ns).WithDetails(value.Doc(fields...))
}

// StaleInfo is the content of a StaleConfig or StaleDbVersion reply.
type StaleInfo struct {
	Ns        string
	Shard     string
	Received  ChunkVersion
	Wanted    ChunkVersion
	HasWanted bool
	DB        string // StaleDbVersion: the database
	Blocked   bool   // see Blocked
}

// Blocked returns the stale error of a statement of a transaction that has waited for a critical section for as long as it may.
func Blocked(e *mongoerr.Error) *mongoerr.Error {
	dst, at := value.Begin(nil)
	for k, v := range value.Elements(e.Details) {
		dst = value.Append(dst, k, v)
	}
	return e.WithDetails(value.End(value.Append(dst, blocked, value.NewBool(true)), at))
}

// blocked is the field of a stale error by which routers, and they alone, are told of that.
const blocked = "blocked"

// ForClients returns an error as clients see it: without what shards tell routers alone.
func ForClients(e *mongoerr.Error) *mongoerr.Error {
	if !e.Code.IsStaleRouting() || value.Lookup(e.Details, blocked).IsMissing() {
		return e
	}
	dst, at := value.Begin(nil)
	for k, v := range value.Elements(e.Details) {
		if k != blocked {
			dst = value.Append(dst, k, v)
		}
	}
	return e.WithDetails(value.End(dst, at))
}

// ParseStaleInfo reads the extra fields of a stale reply (or write error); ok is false if they are not there.
func ParseStaleInfo(doc []byte) (info StaleInfo, ok bool) {
	if ns := value.Lookup(doc, "ns"); ns.T == value.String {
		info.Ns, ok = ns.Str(), true
	}
	if db := value.Lookup(doc, "db"); db.T == value.String {
		info.DB, ok = db.Str(), true
	}
	info.Shard, info.Blocked = value.Lookup(doc, "shardId").Str(), value.Lookup(doc, blocked).Truthy()
	if v, err := ParseChunkVersion(value.Lookup(doc, "vReceived")); err == nil {
		info.Received = v
	}
	if v, err := ParseChunkVersion(value.Lookup(doc, "vWanted")); err == nil {
		info.Wanted, info.HasWanted = v, true
	}
	return info, ok
}

// CheckShardVersion is a shard's admission check: received is the version in the request, wanted the shard's own.
func CheckShardVersion(ns string, received, wanted ChunkVersion, shard string) error {
	if received.IsIgnored() || received == wanted {
		return nil
	}
	why := "version mismatch detected"
	switch {
	case received.IsSharded() != wanted.IsSharded():
		why = "timestamp mismatch detected"
	case !received.SameGeneration(wanted):
		why = "epoch mismatch detected"
	case received.Major == 0 && wanted.Major != 0:
		why = "this shard contains chunks, but the client expects unsharded collection"
	case received.Major != 0 && wanted.Major == 0:
		why = "shard no longer contains chunks"
	case received.Major == wanted.Major:
		return nil // a split or merge moved nothing: the sender's targeting is still correct
	}
	return StaleConfig(ns, received, &wanted, shard, why)
}

// CheckPlacement is CheckShardVersion against a placement; nil is that of a collection without an entry. asOf is the time as of which the sender has read
// its placement from the catalog's history (PlacementTime), at the cluster time at which the request reads.
//
// A placement that is no longer in force is right only if both sides have read it as of that very time. A sender that has read it as of another time may lack
// an earlier move, and would not ask its recipient.
func CheckPlacement(info *CollectionInfo, ns string, received ChunkVersion, shard string, asOf, at uint64) error {
	wanted := info.ShardVersion(shard)
	past := info != nil && info.Past() && info.Map != nil
	switch {
	case !past && asOf == 0:
		return CheckShardVersion(ns, received, wanted, shard)
	case past && asOf == at && received.SameGeneration(wanted):
		return nil
	}
	return StaleConfig(ns, received, &wanted, shard, "the collection has undergone a catalog change since the time of the read")
}

// placementTime is the field of a shardVersion with the time as of which the sender has read the placement, if that is not the current one.
const placementTime = "asOf"

var placementTimeField = value.NewFieldName(placementTime)

// PlacementTime returns the time as of which the sender of a shardVersion has read its placement from the catalog's history; 0 for the current one.
func PlacementTime(shardVersion []byte) uint64 {
	if v := placementTimeField.Lookup(shardVersion); v.T == value.Timestamp {
		return v.TimestampU64()
	}
	return 0
}

// AppendDatabaseVersion adds the databaseVersion element to a command being built.
func AppendDatabaseVersion(dst []byte, v DatabaseVersion) []byte {
	return value.Append(dst, "databaseVersion", value.NewDocument(v.Doc()))
}

// StaleDbVersion returns the error of a shard that is not, or does not know that it is, the primary shard that
// the sender considers it. wanted is nil if the shard has no version.
func StaleDbVersion(db string, received DatabaseVersion, wanted *DatabaseVersion) *mongoerr.Error {
	fields := []value.Field{
		value.F("db", value.NewString(db)),
		value.F("vReceived", value.NewDocument(received.Doc())),
	}
	if wanted != nil {
		fields = append(fields, value.F("vWanted", value.NewDocument(wanted.Doc())))
	}
	return mongoerr.Newf(mongoerr.StaleDbVersion, "Version mismatch for the database %s", db).WithDetails(value.Doc(fields...))
}
