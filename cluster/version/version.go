package version

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

// Chunk identifies one state of a collection's routing table: ⟨major, minor⟩ within ⟨epoch, timestamp⟩. A move
// raises major, a split or merge raises minor. The zero Chunk means "not sharded".
type Chunk struct {
	Major, Minor uint32
	Epoch        Epoch
	Timestamp    uint64
}

// Unsharded is the version of a collection that has no routing table.
var Unsharded = Chunk{}

// Ignored asks a shard not to check the chunk version of this request (but still to filter orphans).
var Ignored = Chunk{
	Epoch:     Epoch{0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF},
	Timestamp: ^uint64(0),
}

// Combined returns major and minor as one number, in the order of config.chunks.lastmod.
func (v Chunk) Combined() uint64 { return uint64(v.Major)<<32 | uint64(v.Minor) }

// WithCombined returns a version of v's incarnation with another major and minor.
func (v Chunk) WithCombined(c uint64) Chunk {
	v.Major, v.Minor = uint32(c>>32), uint32(c)
	return v
}

// IncMajor returns the version of a moved chunk in a collection whose version is v.
func (v Chunk) IncMajor() Chunk { v.Major, v.Minor = v.Major+1, 0; return v }

// IncMinor returns the next minor version.
func (v Chunk) IncMinor() Chunk { v.Minor++; return v }

// IsSharded reports whether v belongs to a sharded collection (a shard that owns no chunk of it has major 0 within
// its epoch).
func (v Chunk) IsSharded() bool { return v.Timestamp != 0 && !v.IsIgnored() }

// IsIgnored reports whether the request asked for no check.
func (v Chunk) IsIgnored() bool { return v.Timestamp == ^uint64(0) }

// SameGeneration reports whether two versions belong to the same incarnation of a collection.
func (v Chunk) SameGeneration(w Chunk) bool {
	return v.Epoch == w.Epoch && v.Timestamp == w.Timestamp
}

// Compare returns whether v is older or newer than w.
func (v Chunk) Compare(w Chunk) Order {
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
func (v Chunk) String() string {
	return fmt.Sprintf("%d|%d||%s||Timestamp(%d, %d)", v.Major, v.Minor, hex.EncodeToString(v.Epoch[:]), v.Timestamp>>32, uint32(v.Timestamp))
}

// Doc returns the version as in commands: {e, t, v}.
func (v Chunk) Doc() []byte {
	dst, m := value.Begin(make([]byte, 0, 48))
	dst = append(dst, byte(value.ObjectID), 'e', 0)
	dst = append(dst, v.Epoch[:]...)
	dst = value.Append(dst, "t", value.NewTimestampU64(v.Timestamp))
	dst = value.Append(dst, "v", value.NewTimestampU64(v.Combined()))
	return value.End(dst, m)
}

// ParseChunk reads {e, t, v}.
func ParseChunk(v value.Value) (Chunk, error) {
	if v.T != value.Document {
		return Chunk{}, mongoerr.Newf(mongoerr.TypeMismatch, "shardVersion must be an object, found %s", v.T.Name())
	}
	var e, t, m value.Value
	for it := value.Walk(v.Doc()); ; {
		k, f, ok := it.Next()
		if !ok {
			break
		}
		if len(k) == 1 {
			switch k[0] {
			case 'e':
				e = f
			case 't':
				t = f
			case 'v':
				m = f
			}
		}
	}
	if e.T != value.ObjectID || t.T != value.Timestamp || m.T != value.Timestamp {
		return Chunk{}, mongoerr.New(mongoerr.FailedToParse, "shardVersion must hold the fields e, t and v")
	}
	out := Chunk{Epoch: e.ObjectID(), Timestamp: t.TimestampU64()}
	return out.WithCombined(m.TimestampU64()), nil
}

// Database identifies one state of a database's placement: uuid and timestamp distinguish incarnations,
// LastMod grows with each change of the primary shard.
type Database struct {
	UUID      [16]byte
	Timestamp uint64
	LastMod   int32
}

// IsFixed reports whether the database is admin or config, which never move and are not checked.
func (v Database) IsFixed() bool { return v.LastMod == 0 }

// Compare returns whether v is older or newer than w.
func (v Database) Compare(w Database) Order {
	if v.Timestamp == w.Timestamp {
		if v.UUID != w.UUID {
			return Incomparable
		}
		return order(uint64(v.LastMod), uint64(w.LastMod))
	}
	return order(v.Timestamp, w.Timestamp)
}

// Doc returns the version as in commands and in config.databases: {uuid, timestamp, lastMod}.
func (v Database) Doc() []byte {
	return value.Doc(
		value.F("uuid", value.NewBinary(4, v.UUID[:])),
		value.F("timestamp", value.NewTimestampU64(v.Timestamp)),
		value.F("lastMod", value.NewInt32(v.LastMod)))
}

// ParseDatabase reads {uuid, timestamp, lastMod}.
func ParseDatabase(v value.Value) (Database, error) {
	if v.T != value.Document {
		return Database{}, mongoerr.Newf(mongoerr.TypeMismatch, "databaseVersion must be an object, found %s", v.T.Name())
	}
	u, t, m := value.Lookup(v.Doc(), "uuid"), value.Lookup(v.Doc(), "timestamp"), value.Lookup(v.Doc(), "lastMod")
	n, ok := m.AsInt64()
	if u.T != value.Binary || len(u.Bytes()) != 16 || t.T != value.Timestamp || !ok || int64(int32(n)) != n {
		return Database{}, mongoerr.New(mongoerr.FailedToParse, "databaseVersion must hold the fields uuid, timestamp and lastMod")
	}
	out := Database{Timestamp: t.TimestampU64(), LastMod: int32(n)}
	copy(out.UUID[:], u.Bytes())
	return out, nil
}
