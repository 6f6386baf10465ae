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

// journalFS reserves disk space for journals in small steps, as they grow. Pebble reserves that of a whole one at its first
// write, 70 MB, which an empty server would take up for each of its stores.
//
// It also knows which journals there are: pebble keeps those that it needs no more, up to five, to write the next ones in
// their place, and trim empties them where the room is wanted.
type journalFS struct {
	vfs.FS
	mu struct {
		sync.Mutex
		names map[string]struct{} // of the journals
		moved uint64              // how many were begun in the place of another
		begun uint64              // of those, how many pebble counts no more among the ones that it keeps
	}
}

// journalStep is how far a journal's space goes beyond what is written: enough that few syncs have to write metadata.
const journalStep = 4 << 20

func newJournalFS(fs vfs.FS, dir string) (*journalFS, error) {
	j := &journalFS{FS: fs}
	j.mu.names = map[string]struct{}{}
	if _, err := fs.Stat(dir); err != nil {
		return j, nil // pebble makes it
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

// created is told of each journal that was begun, in the place of another or not.
func (j *journalFS) created(i pebble.WALCreateInfo) {
	if i.RecycledFileNum == 0 {
		return
	}
	j.mu.Lock()
	j.mu.begun++
	j.mu.Unlock()
}

// trim empties the journals that pebble keeps to write others in their place. obsolete tells how many those are. There may be
// more, that are about to be removed; all are older than the journals in use, and only one that is begun in their place changes
// what is counted.
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

// byNumber orders journals by when they were begun. Their numbers have six digits, or more.
func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func closeCreated(f vfs.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// journalFile is written at its end alone, by one goroutine.
type journalFile struct {
	vfs.File
	written, reserved, asked int64
}

// Preallocate notes what is asked for; Write does it.
func (f *journalFile) Preallocate(offset, length int64) error {
	f.asked = max(f.asked, offset+length)
	return nil
}

func (f *journalFile) Write(p []byte) (int, error) {
	if end := f.written + int64(len(p)); end > f.reserved && f.reserved < f.asked {
		step := min(max(journalStep, end-f.reserved), f.asked-f.reserved)
		if f.File.Preallocate(f.reserved, step) == nil { // else the write says whether there is room
			f.reserved += step
		}
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}
