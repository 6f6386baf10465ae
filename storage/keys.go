package storage

import (
	"bytes"
	"encoding/binary"

	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
)

// The system tables of every store. doc.go draws them all.
const (
	identMeta       catalog.Ident = 1
	identCatalog    catalog.Ident = 2
	identSuperseded catalog.Ident = 3
	identOplog      catalog.Ident = 4
	identStaging    catalog.Ident = 5
	identFirst      catalog.Ident = 16 // the first ident for collections and indexes

	// Tables from here on belong to this node alone: they are not replicated, and not part of snapshots.
	identLocal           catalog.Ident = 0x8000_0000
	identLocalMeta       catalog.Ident = identLocal + 3 // see LocalTable for the preceding ones
	identLocalCatalog    catalog.Ident = identLocal + 4
	identLocalSuperseded catalog.Ident = identLocal + 5
	identLocalFirst      catalog.Ident = identLocal + 16
)

// The first byte of keys in the meta table.
const (
	metaApplied  = 'a' // → index and term of the newest entry of the replicated log that is applied, its timestamp
	metaCounters = 'c' // ident → records, data size
	metaDrop     = 'd' // timestamp, ident → nothing: a table to be deleted
	metaFormat   = 'f' // → format version, in the local meta table: it belongs to the store itself
	metaOplogCut = 'l' // → the time up to which entries of the oplog have been truncated
	metaAgreed   = 'm' // timestamp → the time from which a commit is visible that several shards agreed upon
	metaNext     = 'n' // → the next ident and catalog id
	metaOldest   = 'o' // → the timestamp before which history is gone
	metaPrepared = 'p' // timestamp of a prepared transaction's vote → that of its first entry, coordinator; see prepared.go
	metaTop      = 't' // → the timestamp of the newest commit, if the oplog alone does not show it
)

const (
	identLen = 4
	// suffixLen is the length of a versioned key after its sentinel: eight bytes of timestamp and their length.
	suffixLen = 9
)

// pending stands for the timestamp of an uncommitted unit. It sorts before every real version.
const pending = uint64(MaxTimestamp)

func appendIdent(dst []byte, id catalog.Ident) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(id))
}

func identOf(key []byte) catalog.Ident {
	if len(key) < identLen {
		return 0
	}
	return catalog.Ident(binary.BigEndian.Uint32(key))
}

// appendVersion terminates a key with its version.
func appendVersion(dst []byte, ts uint64) []byte {
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, ts)
	return append(dst, suffixLen)
}

// appendUnversioned terminates a key that has no versions.
func appendUnversioned(dst []byte) []byte { return append(dst, 0) }

// splitVersion splits a versioned key; ok is false for other keys.
func splitVersion(key []byte) (user []byte, ts uint64, ok bool) {
	n := len(key)
	if n < identLen+1+suffixLen || key[n-1] != suffixLen {
		return nil, 0, false
	}
	return key[: n-suffixLen-1 : n-suffixLen-1], binary.BigEndian.Uint64(key[n-suffixLen:]), true
}

// identRange returns the range of all keys of a table.
func identRange(id catalog.Ident) (lower, upper []byte) {
	return appendUnversioned(appendIdent(nil, id)), appendUnversioned(appendIdent(nil, id+1))
}

// metaKey returns a key of the replicated line's meta table.
func metaKey(kind byte, rest ...byte) []byte { return metaKeyIn(identMeta, kind, rest...) }

func metaKeyIn(table catalog.Ident, kind byte, rest ...byte) []byte {
	k := append(appendIdent(nil, table), kind)
	return appendUnversioned(append(k, rest...))
}

func countersKey(dst []byte, id catalog.Ident) []byte {
	k := append(appendIdent(dst[:0], metaTableOf(id)), metaCounters)
	return appendUnversioned(appendIdent(k, id))
}

func dropKey(ts Timestamp, id catalog.Ident) []byte {
	k := binary.BigEndian.AppendUint64(nil, uint64(ts))
	return metaKeyIn(metaTableOf(id), metaDrop, appendIdent(k, id)...)
}

// metaTableOf returns the meta table responsible for a table.
func metaTableOf(id catalog.Ident) catalog.Ident {
	if isLocal(id) {
		return identLocalMeta
	}
	return identMeta
}

func timeKey(dst []byte, table catalog.Ident, ts Timestamp) []byte {
	return appendUnversioned(binary.BigEndian.AppendUint64(appendIdent(dst[:0], table), uint64(ts)))
}

// timeOf reads the timestamp of a key made by timeKey.
func timeOf(key []byte) Timestamp {
	if len(key) < identLen+8 {
		return 0
	}
	return Timestamp(binary.BigEndian.Uint64(key[identLen:]))
}

// appendIndexKey appends the keystring and RecordID of an entry of an index other than _id.
func appendIndexKey(dst []byte, idx *catalog.Index, ks []byte, rid RecordID) []byte {
	dst = append(dst, ks...)
	if idx.Clustered {
		return keystring.AppendRecordIDBytes(dst, rid)
	}
	n, _ := rid.Int64()
	return keystring.AppendRecordID(dst, n)
}

// splitIndexKey is the reverse of appendIndexKey, on a key without its ident. ridBuf holds the RecordId.
func splitIndexKey(idx *catalog.Index, key []byte, ridBuf *[8]byte) (ks []byte, rid RecordID, ok bool) {
	if idx.Clustered {
		ks, id, ok := keystring.SplitRecordIDBytes(key)
		return ks, RecordID(id), ok
	}
	ks, n, ok := keystring.SplitRecordID(key)
	binary.BigEndian.PutUint64(ridBuf[:], uint64(n))
	return ks, ridBuf[:], ok
}

func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) }
