package storage

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// Snapshot is a view of the store at one timestamp, with the catalog of that moment. One goroutine uses it at a time.
// It holds no locks; what it pins is history, so it must be released.
type Snapshot struct{}

// Release ends the snapshot. Its cursors must be closed before.
func (s *Snapshot) Release() {}

// Timestamp is the moment of the view.
func (s *Snapshot) Timestamp() Timestamp { return 0 }

// Catalog is the catalog of the same moment.
func (s *Snapshot) Catalog() *catalog.Snapshot { return nil }

// Save gives back what the snapshot holds of the store between two uses (getMore); it works on afterwards as before.
func (s *Snapshot) Save() {}

// Get reads a record. doc is borrowed until the next call on the snapshot.
func (s *Snapshot) Get(c *catalog.Collection, rid RecordID) (doc []byte, ok bool, err error) {
	return nil, false, nyi("get")
}

// FindByID reads the record with the given _id. rid and doc are borrowed until the next call on the snapshot.
func (s *Snapshot) FindByID(c *catalog.Collection, id value.Value) (rid RecordID, doc []byte, ok bool, err error) {
	return nil, nil, false, nyi("find by id")
}

// Scan reads records in order of RecordId. The cursor must be closed.
func (s *Snapshot) Scan(c *catalog.Collection, o ScanOptions) *RecordCursor { return nil }

// IndexScan reads an index in key order. The cursor starts before the first key (behind the last, in reverse) and must
// be closed.
func (s *Snapshot) IndexScan(c *catalog.Collection, idx *catalog.Index, reverse bool) *IndexCursor {
	return nil
}

// RecordCursor walks records. Save and Restore bracket pauses: a saved cursor holds nothing of the store.
type RecordCursor struct{}

// Next moves on; false at the end or on error.
func (c *RecordCursor) Next() bool { return false }

// RecordID is the current record's place, borrowed until Next.
func (c *RecordCursor) RecordID() RecordID { return nil }

// Doc is the current document, borrowed until Next.
func (c *RecordCursor) Doc() []byte { return nil }

// SeekTo makes the next Next return the first record at or after rid (at or before, in reverse).
func (c *RecordCursor) SeekTo(rid RecordID) {}

// Save lets go of the store; the position is kept. Borrowed bytes are no longer valid.
func (c *RecordCursor) Save() {}

// Restore continues after the position that Save kept. Next also does it.
func (c *RecordCursor) Restore() error { return nil }

// Err is the error that ended the walk.
func (c *RecordCursor) Err() error { return nil }

// Close ends the cursor.
func (c *RecordCursor) Close() {}

// IndexCursor walks index entries.
type IndexCursor struct{}

// Seek makes the next Next return the first entry whose key is at or above ks (in reverse: the last entry below ks).
// ks is any prefix or bound made with package keystring; end of ranges are half-open, as there.
func (c *IndexCursor) Seek(ks []byte) {}

// Next moves on; false at the end or on error.
func (c *IndexCursor) Next() bool { return false }

// Key is the keystring without the RecordId, borrowed until Next.
func (c *IndexCursor) Key() []byte { return nil }

// TypeBits belong to Key, borrowed until Next.
func (c *IndexCursor) TypeBits() []byte { return nil }

// RecordID is the place of the record, borrowed until Next.
func (c *IndexCursor) RecordID() RecordID { return nil }

// Save lets go of the store; the position is kept.
func (c *IndexCursor) Save() {}

// Restore continues after the position that Save kept. Next also does it.
func (c *IndexCursor) Restore() error { return nil }

// Err is the error that ended the walk.
func (c *IndexCursor) Err() error { return nil }

// Close ends the cursor.
func (c *IndexCursor) Close() {}
