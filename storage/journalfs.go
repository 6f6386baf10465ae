package storage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// journalFS reserves disk space for journals as they grow. Pebble would reserve the space of a
// whole journal at its first write: 70 MB, which an empty server would use for each of its stores.
//
// It also tracks the existing journals: pebble keeps up to five obsolete ones, to be overwritten by later ones,
// and trim empties those when the space is needed.
type journalFS struct {
	vfs.FS
	mu struct {
		sync.Mutex
		names map[string]struct{} // of the journals
		moved uint64              // how many were begun in place of another
		begun uint64              // how many of those pebble no longer counts among the ones that it keeps
	}
}

// journalStep is the space that is first reserved for a journal. The second step reserves four times as much, the
// third all that pebble asks for: ext4 keeps four extents of a file in its inode, three steps and the border between what is
// written and what is not. With one more, each sync that moves the border writes another block (steps of 4 MB all the
// way cost 0.2 requests to the disk a sync).
const journalStep = 4 << 20

func newJournalFS(fs vfs.FS, dir string) (*journalFS, error) {
	j := &journalFS{FS: fs}
	j.mu.names = map[string]struct{}{}
	if _, err := fs.Stat(dir); err != nil {
		return j, nil // pebble creates it
	}
	list, err := fs.List(dir)
	for _, name := range list {
		if isJournal(name) {
			j.mu.names[fs.PathJoin(dir, name)] = struct{}{}
		}
	}
	return j, err
}

func isJournal(name string) bool { return strings.HasSuffix(name, ".log") }

// Unwrap implements vfs.FS.
func (j *journalFS) Unwrap() vfs.FS { return j.FS }

// Create implements vfs.FS.
func (j *journalFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := j.FS.Create(name, category)
	if err != nil || !isJournal(name) {
		return f, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.names[name] = struct{}{}
	return &journalFile{File: f}, nil
}

// ReuseForWrite implements vfs.FS.
func (j *journalFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !isJournal(name) {
		return j.FS.ReuseForWrite(old, name, category)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	f, err := j.FS.ReuseForWrite(old, name, category)
	if err != nil {
		return nil, err
	}
	j.mu.moved++
	delete(j.mu.names, old)
	j.mu.names[name] = struct{}{}
	return &journalFile{File: f}, nil
}

// Remove implements vfs.FS.
func (j *journalFS) Remove(name string) error {
	if !isJournal(name) {
		return j.FS.Remove(name)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.FS.Remove(name)
	if err == nil {
		delete(j.mu.names, name)
	}
	return err
}

// created records each journal that is begun, in place of another or not.
func (j *journalFS) created(i pebble.WALCreateInfo) {
	if i.RecycledFileNum == 0 {
		return
	}
	j.mu.Lock()
	j.mu.begun++
	j.mu.Unlock()
}

// trim empties the obsolete journals that pebble keeps to be overwritten. obsolete returns how many there are.
// There may be more that are about to be removed; all are older than the journals in use, and only a journal begun
// in place of another changes the count.
func (j *journalFS) trim(obsolete func() int) error {
	j.mu.Lock()
	moved, settled := j.mu.moved, j.mu.moved == j.mu.begun
	j.mu.Unlock()
	if !settled {
		return nil
	}
	n := obsolete()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.moved != moved {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(j.mu.names), byNumber)
	for _, name := range names[:min(n, len(names))] {
		if st, err := j.FS.Stat(name); err != nil || st.Size() == 0 {
			continue
		}
		f, err := j.FS.Create(name, "pebble-wal")
		if err = errorsJoin(err, closeCreated(f)); err != nil {
			return err
		}
	}
	return nil
}

// byNumber orders journals by age. Their numbers have six digits or more.
func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func closeCreated(f vfs.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// journalFile is written by one goroutine, at its end only.
type journalFile struct {
	vfs.File
	written, reserved, asked int64
}

// Preallocate records the requested space; Write reserves it.
func (f *journalFile) Preallocate(offset, length int64) error {
	f.asked = max(f.asked, offset+length)
	return nil
}

func (f *journalFile) Write(p []byte) (int, error) {
	if end := f.written + int64(len(p)); end > f.reserved && f.reserved < f.asked {
		next := int64(journalStep)
		switch {
		case f.reserved >= 4*journalStep:
			next = f.asked
		case f.reserved > 0:
			next = 4 * journalStep
		}
		step := min(max(next, end), f.asked) - f.reserved
		if f.File.Preallocate(f.reserved, step) == nil { // otherwise the write reports whether there is room
			f.reserved += step
		}
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}
