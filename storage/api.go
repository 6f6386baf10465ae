package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Timestamp is a position in the oplog: seconds of the epoch in the upper half, an increment in the lower. Zero
// means none.
type Timestamp uint64

// MaxTimestamp is later than every commit.
const MaxTimestamp Timestamp = 1<<64 - 1

// TimestampOf composes a timestamp from its two halves.
func TimestampOf(seconds, increment uint32) Timestamp {
	return Timestamp(seconds)<<32 | Timestamp(increment)
}

// Seconds returns the upper half.
func (t Timestamp) Seconds() uint32 { return uint32(t >> 32) }

// Increment returns the lower half.
func (t Timestamp) Increment() uint32 { return uint32(t) }

// Value returns t as a BSON timestamp.
func (t Timestamp) Value() value.Value { return value.NewTimestampU64(uint64(t)) }

// OpTime is the position of an oplog entry: its timestamp, and the term of the primary that wrote it.
type OpTime struct {
	TS   Timestamp
	Term int64
}

// NoOpTime is the position before the first entry.
var NoOpTime = OpTime{Term: -1}

// Value returns o as a BSON document.
func (o OpTime) Value() value.Value {
	return value.NewDocument(value.Doc(value.F("ts", o.TS.Value()), value.F("t", value.NewInt64(o.Term))))
}

func (t Timestamp) String() string {
	return fmt.Sprintf("Timestamp(%d, %d)", t.Seconds(), t.Increment())
}

// RecordID identifies a record within its collection. RecordIDs are ordered bytewise. In ordinary collections and
// the oplog a RecordID is 8 bytes (a big-endian number; in the oplog, the entry's timestamp); in clustered
// collections it is the keystring of the _id.
type RecordID []byte

// NewRecordID returns the RecordID of an ordinary collection.
func NewRecordID(n int64) RecordID {
	return binary.BigEndian.AppendUint64(nil, uint64(n))
}

// Int64 returns the number of a RecordId of an ordinary collection; ok is false for the RecordIds of clustered
// ones.
func (r RecordID) Int64() (n int64, ok bool) {
	if len(r) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(r)), true
}

// Compare orders two RecordIds of one collection.
func (r RecordID) Compare(o RecordID) int { return bytes.Compare(r, o) }

// Clone returns a copy of a borrowed RecordID.
func (r RecordID) Clone() RecordID { return append(RecordID(nil), r...) }

// ScanOptions bound a scan over records. A nil bound is open; both bounds are inclusive.
type ScanOptions struct {
	Reverse bool
	From    RecordID // the lowest RecordId, whatever the direction
	To      RecordID // the highest

	// CopiesOf leaves out entries of the oplog that are known to be copies of other collections' documents (ReferToVersions), without
	// reading these documents.
	CopiesOf *catalog.Collection
}

// OpInfo describes a write for the oplog. The zero value suits plain writes.
type OpInfo struct {
	// O is the entry's `o`: for updates the diff or the new document (nil: the new document), for deletes the document
	// key (nil: {_id}). Inserts log the document itself.
	O []byte
	// O2 is the document key of an update (nil: {_id}).
	O2 []byte
	// Key returns the document key of the document before the write, where O or O2 do not give it; nil for {_id}.
	Key func(doc []byte) []byte
	// StmtID is the statement's number within a retryable write; -1 where there is none. See UnitOfWork.SetSession.
	StmtID int32
	// Extra holds additional fields of the entry, as a raw document (needsRetryImage, preImageOpTime,
	// destinedRecipient…).
	Extra []byte
	// Vectored lets the documents of InsertMany share entries, as those of an insert command do.
	Vectored bool
}

// key returns the document key of doc.
func (i *OpInfo) key(doc []byte) []byte {
	if i.Key != nil {
		return i.Key(doc)
	}
	return idDocument(doc)
}

// NoInfo is OpInfo for writes outside sessions.
var NoInfo = OpInfo{StmtID: -1}

// OplogEntry is an entry that the caller composes itself: a noop, or a command.
type OplogEntry struct {
	Op     byte // 'n', 'c', or 'i', 'u', 'd' for entries that stand for writes made elsewhere
	NS     string
	UUID   catalog.UUID // zero: none
	O      []byte
	O2     []byte
	StmtID int32 // -1: none
	Extra  []byte

	// table and record say where O is stored, in entries that refer to it; table is 0 in others.
	table  catalog.Ident
	record uint64
}

// CollectionSpec describes a collection to be created.
type CollectionSpec struct {
	NS      string
	UUID    catalog.UUID // zero: the engine makes one
	Options []byte       // raw document, as given to create (capped, size, max, clusteredIndex, collation, validator, temp, …); nil for none
	// IDIndexSpec is the raw spec of the _id index; nil for the default {v: 2, key: {_id: 1}, name: "_id_"}.
	IDIndexSpec []byte
	// NoIDIndex omits the _id index (autoIndexId: false on local collections).
	NoIDIndex bool
	// Unreplicated keeps the collection's writes, and its creation, out of the oplog. Those whose names say so (catalog.Unreplicated)
	// are always unreplicated.
	Unreplicated bool
	// Shared is set for collections that several units may create when they need them: if another unit was faster, the commit fails with WriteConflict, and
	// the retry has a snapshot with the collection.
	Shared bool
}

// errConflict is the error of a unit of work that lost against another; callers retry.
var errConflict = mongoerr.New(mongoerr.WriteConflict,
	"Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction.")

// ErrConflict reports whether err is a WriteConflict, which callers retry.
func ErrConflict(err error) bool { return mongoerr.CodeOf(err) == mongoerr.WriteConflict }
