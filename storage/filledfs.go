package storage

import "github.com/cockroachdb/pebble/v2/vfs"

// filledFS writes zeros into a journal ahead of its records. A record that goes where nothing has been written changes
// the file's length and the state of its blocks, so its sync writes those too, wherever the file system keeps them: one
// more request to the disk, a fifth of the processor time of a sync. Over zeros the sync writes the record alone, as it
// does in a journal that overwrites an obsolete one.
//
// Recovery takes zeros for the end of a journal (pebble's record.Reader), and the witness, which lies above, does not
// see them. They are not synced by themselves: a sync of records covers whatever the file needs.
type filledFS struct{ vfs.FS }

// The number of zeros written at a time is the length of the journal so far, within these bounds. A journal that is
// written in large pieces gets none: its syncs write much anyway, and zeros would double that.
const (
	leastFilled = 32 << 10
	mostFilled  = 512 << 10
	smallRecord = 16 << 10
)

var zeros [mostFilled]byte

// Unwrap implements vfs.FS.
func (f filledFS) Unwrap() vfs.FS { return f.FS }

// Create implements vfs.FS.
func (f filledFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	if err != nil || !isJournal(name) {
		return file, err
	}
	return &filledFile{File: file, begun: true}, nil
}

// ReuseForWrite implements vfs.FS.
func (f filledFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(old, name, category)
	if err != nil || !isJournal(name) {
		return file, err
	}
	filled := &filledFile{File: file, begun: true}
	if st, err := file.Stat(); err == nil {
		filled.filled = st.Size()
	}
	return filled, nil
}

// filledFile is a journal, written by one goroutine, at its end only.
type filledFile struct {
	vfs.File
	written int64 // length of the records
	filled  int64 // bytes that the file has, records and what lies beyond them
	begun   bool  // nothing has been written since the last sync
	refused bool  // there was no room for zeros
}

func (f *filledFile) Write(p []byte) (int, error) {
	if f.begun && len(p) <= smallRecord && f.written+int64(len(p)) > f.filled && !f.refused {
		ahead := min(max(f.written, leastFilled), mostFilled)
		if _, err := f.File.WriteAt(zeros[:ahead], f.written); err == nil {
			f.filled = f.written + ahead
		} else {
			f.refused = true // if the disk is at fault, the record's own write or its sync reports that
		}
	}
	f.begun = false
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

func (f *filledFile) Sync() error {
	f.begun = true
	return f.File.Sync()
}

func (f *filledFile) SyncData() error {
	f.begun = true
	return f.File.SyncData()
}
