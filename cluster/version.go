package cluster

import (
	"encoding/hex"
	"fmt"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Order is the outcome of comparing two versions.
type Order int

// Versions of different incarnations of a collection, or of which one is unsharded, are Incomparable: neither side
// can tell which is older, so both refresh.
const (
	Older        Order = -1
	Same         Order = 0
	Newer        Order = 1
	Incomparable Order = 2
)

// Epoch identifies one incarnation of a sharded collection.
type Epoch [12]byte

// ChunkVersion identifies one state of a collection's routing table: ⟨major, minor⟩ within ⟨epoch, timestamp⟩. A move
// raises major, a split or merge raises minor. The zero ChunkVersion means "not sharded".
type ChunkVersion struct {
	Major, Minor uint32
	Epoch        Epoch
	Timestamp    uint64
}

// Unsharded is the version of a collection that has no routing table.
var Unsharded = ChunkVersion{}

// Ignored asks a shard not to check the chunk version of this request (but still to filter orphans).
var Ignored = ChunkVersion{
	Epoch:     Epoch{0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF},
	Timestamp: ^uint64(0),
}

// Combined returns major and minor as one number, in the order of config.chunks.lastmod.
func (v ChunkVersion) Combined() uint64 { return uint64(v.Major)<<32 | uint64(v.Minor) }

// WithCombined returns a version of v's incarnation with another major and minor.
func (v ChunkVersion) WithCombined(c uint64) ChunkVersion {
	v.Major, v.Minor = uint32(c>>32), uint32(c)
	return v
}

// IncMajor returns the version of a moved chunk in a collection whose version is v.
func (v ChunkVersion) IncMajor() ChunkVersion { v.Major, v.Minor = v.Major+1, 0; return v }

// IncMinor returns the next minor version.
func (v ChunkVersion) IncMinor() ChunkVersion { v.Minor++; return v }

// IsSharded reports whether v belongs to a sharded collection (a shard that owns no chunk of it has major 0 within
// its epoch).
func (v ChunkVersion) IsSharded() bool { return v.Timestamp != 0 && !v.IsIgnored() }

// IsIgnored reports whether the request asked for no check.
func (v ChunkVersion) IsIgnored() bool { return v.Timestamp == ^uint64(0) }

// SameGeneration reports whether two versions belong to the same incarnation of a collection.
func (v ChunkVersion) SameGeneration(w ChunkVersion) bool {
	return v.Epoch == w.Epoch && v.Timestamp == w.Timestamp
}

// Compare returns whether v is older or newer than w.
func (v ChunkVersion) Compare(w ChunkVersion) Order {
	if v.SameGeneration(w) {
		return order(v.Combined(), w.Combined())
	}
	if !v.IsSharded() || !w.IsSharded() || v.Timestamp == w.Timestamp {
		return Incomparable
	}
	return order(v.Timestamp, w.Timestamp)
}

func order(a, b uint64) Order {
	switch {
	case a < b:
		return Older
	case a > b:
		return Newer
	}
	return Same
}

// String prints a version as the server's messages do: 2|1||epoch||Timestamp(s, i).
func (v ChunkVersion) String() string {
	return fmt.Sprintf("%d|%d||%s||Timestamp(%d, %d)", v.Major, v.Minor, hex.EncodeToString(v.Epoch[:]), v.Timestamp>>32, uint32(v.Timestamp))
}

// Doc returns the version as in commands: {e, t, v}.
func (v ChunkVersion) Doc() []byte {
	dst, m := value.Begin(make([]byte, 0, 48))
	dst = append(dst, byte(value.ObjectID), 'e', 0)
	dst = append(dst, v.Epoch[:]...)
	dst = value.Append(dst, "t", value.NewTimestampU64(v.Timestamp))
	dst = value.Append(dst, "v", value.NewTimestampU64(v.Combined()))
	return value.End(dst, m)
}

// AppendShardVersion adds the shardVersion element to a command being built.
func AppendShardVersion(dst []byte, v ChunkVersion) []byte {
	return value.Append(dst, "shardVersion", value.NewDocument(v.Doc()))
}

// ParseChunkVersion reads {e, t, v}.
func ParseChunkVersion(v value.Value) (ChunkVersion, error) {
	if v.T != value.Document {
		return ChunkVersion{}, mongoerr.Newf(mongoerr.TypeMismatch, "shardVersion must be an object, found %s", v.T.Name())
	}
	e, t, m := value.Lookup(v.Doc(), "e"), value.Lookup(v.Doc(), "t"), value.Lookup(v.Doc(), "v")
	if e.T != value.ObjectID || t.T != value.Timestamp || m.T != value.Timestamp {
		return ChunkVersion{}, mongoerr.New(mongoerr.FailedToParse, "shardVersion must hold the fields e, t and v")
	}
	out := ChunkVersion{Epoch: e.ObjectID(), Timestamp: t.TimestampU64()}
	return out.WithCombined(m.TimestampU64()), nil
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
}

// ParseStaleInfo reads the extra fields of a stale reply (or write error); ok is false if they are not there.
func ParseStaleInfo(doc []byte) (info StaleInfo, ok bool) {
	if ns := value.Lookup(doc, "ns"); ns.T == value.String {
		info.Ns, ok = ns.Str(), true
	}
	if db := value.Lookup(doc, "db"); db.T == value.String {
		info.DB, ok = db.Str(), true
	}
	info.Shard = value.Lookup(doc, "shardId").Str()
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

// DatabaseVersion identifies one state of a database's placement: uuid and timestamp distinguish incarnations,
// LastMod grows with each change of the primary shard.
type DatabaseVersion struct {
	UUID      [16]byte
	Timestamp uint64
	LastMod   int32
}

// IsFixed reports whether the database is admin or config, which never move and are not checked.
func (v DatabaseVersion) IsFixed() bool { return v.LastMod == 0 }

// Compare returns whether v is older or newer than w.
func (v DatabaseVersion) Compare(w DatabaseVersion) Order {
	if v.Timestamp == w.Timestamp {
		if v.UUID != w.UUID {
			return Incomparable
		}
		return order(uint64(v.LastMod), uint64(w.LastMod))
	}
	return order(v.Timestamp, w.Timestamp)
}

// Doc returns the version as in commands and in config.databases: {uuid, timestamp, lastMod}.
func (v DatabaseVersion) Doc() []byte {
	return value.Doc(
		value.F("uuid", value.NewBinary(4, v.UUID[:])),
		value.F("timestamp", value.NewTimestampU64(v.Timestamp)),
		value.F("lastMod", value.NewInt32(v.LastMod)))
}

// AppendDatabaseVersion adds the databaseVersion element to a command being built.
func AppendDatabaseVersion(dst []byte, v DatabaseVersion) []byte {
	return value.Append(dst, "databaseVersion", value.NewDocument(v.Doc()))
}

// ParseDatabaseVersion reads {uuid, timestamp, lastMod}.
func ParseDatabaseVersion(v value.Value) (DatabaseVersion, error) {
	if v.T != value.Document {
		return DatabaseVersion{}, mongoerr.Newf(mongoerr.TypeMismatch, "databaseVersion must be an object, found %s", v.T.Name())
	}
	u, t, m := value.Lookup(v.Doc(), "uuid"), value.Lookup(v.Doc(), "timestamp"), value.Lookup(v.Doc(), "lastMod")
	n, ok := m.AsInt64()
	if u.T != value.Binary || len(u.Bytes()) != 16 || !ok {
		return DatabaseVersion{}, mongoerr.New(mongoerr.FailedToParse, "databaseVersion must hold the fields uuid, timestamp and lastMod")
	}
	out := DatabaseVersion{Timestamp: t.TimestampU64(), LastMod: int32(n)}
	copy(out.UUID[:], u.Bytes())
	return out, nil
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
