package witness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Name is the name of the witness file in the store's directory.
const Name = "WITNESS"

// A slot is the record of one file:
//
//	checksum of what follows u32 | length u64 | checksum of so much of the file u32 | length of the name u8 | name, zeros
const (
	slotSize = 128
	slotHead = 4 + 8 + 4 + 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Damage is the error of a file that differs from what was made durable.
type Damage struct{ Path, Why string }

func (d *Damage) Error() string { return fmt.Sprintf("file %s %s", d.Path, d.Why) }

// extent is a prefix of a file: its length and its checksum.
type extent struct {
	size int64
	sum  uint32
}

// record has the recorded properties of a file.
type record struct {
	name   string
	slot   int  // its index in the witness, -1 for none
	linked bool // the name is durable
	synced extent
}

// FS is a file system that keeps the witness of one directory.
type FS struct {
	vfs.FS
	dir    string
	failed func(error)

	mu struct {
		sync.Mutex
		file   vfs.File // nil until there is something to write
		byName map[string]*record
		slots  []*record // nil for a free slot
	}
}

// Open compares the files in dir with the witness. The error is a Damage if a file has changed; ignored counts the
// witness's own records that cannot be read. failed is called when a log cannot be written, before pebble learns
// of it, which may only be able to end the process.
func Open(fs vfs.FS, dir string, failed func(error)) (w *FS, ignored int, err error) {
	w = &FS{FS: fs, dir: fs.PathDir(fs.PathJoin(dir, Name)), failed: failed}
	w.mu.byName = map[string]*record{}
	raw, err := w.read()
	if err != nil {
		return nil, 0, err
	}
	for at := 0; at < len(raw); at += slotSize {
		r, ok := parseSlot(raw[at:min(at+slotSize, len(raw))])
		if !ok {
			ignored++
		}
		w.mu.slots = append(w.mu.slots, r)
		if r == nil {
			continue
		}
		r.slot = at / slotSize
		w.mu.byName[r.name] = r
		if err := w.compare(r); err != nil {
			return nil, ignored, err
		}
	}
	return w, ignored, nil
}

// Close closes the witness.
func (w *FS) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.file == nil {
		return nil
	}
	return errors.Join(w.mu.file.Sync(), w.mu.file.Close())
}

// Unwrap implements vfs.FS.
func (w *FS) Unwrap() vfs.FS { return w.FS }

// read returns the witness's content, nil if there is none.
func (w *FS) read() ([]byte, error) {
	f, err := w.FS.Open(w.path(Name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	raw, err := io.ReadAll(f)
	return raw, errors.Join(err, f.Close())
}

func (w *FS) path(name string) string { return w.FS.PathJoin(w.dir, name) }

// parseSlot reads a record; it returns nil for a free slot, and ok is false if the slot cannot be read.
func parseSlot(b []byte) (r *record, ok bool) {
	free := true
	for _, c := range b {
		free = free && c == 0
	}
	if free {
		return nil, true
	}
	if len(b) < slotSize || binary.BigEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) || slotHead+int(b[16]) > slotSize {
		return nil, false
	}
	return &record{name: string(b[slotHead : slotHead+int(b[16])]), linked: true,
		synced: extent{int64(binary.BigEndian.Uint64(b[4:])), binary.BigEndian.Uint32(b[12:])}}, true
}

func (r *record) encode(b *[slotSize]byte) {
	clear(b[:])
	binary.BigEndian.PutUint64(b[4:], uint64(r.synced.size))
	binary.BigEndian.PutUint32(b[12:], r.synced.sum)
	b[16] = byte(copy(b[slotHead:], r.name))
	binary.BigEndian.PutUint32(b[:], crc32.Checksum(b[4:], castagnoli))
}

// compare returns an error if a file no longer begins with what was made durable.
func (w *FS) compare(r *record) error {
	path := w.path(r.name)
	f, err := w.FS.Open(path, vfs.SequentialReadsOption)
	if errors.Is(err, os.ErrNotExist) {
		return &Damage{path, "is missing"}
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, io.LimitReader(f, r.synced.size))
	switch {
	case err != nil:
		return err
	case n < r.synced.size:
		return &Damage{path, fmt.Sprintf("has %d bytes left of at least %d that were written", n, r.synced.size)}
	case sum.Sum32() != r.synced.sum:
		return &Damage{path, fmt.Sprintf("has other content than was written (in its first %d bytes)", n)}
	}
	return nil
}

// kept reports whether a file is recorded, and noted whether it may become one that is: pebble renames temporary
// files.
func kept(name string) bool {
	return strings.HasSuffix(name, ".log") || strings.HasPrefix(name, "MANIFEST-") || strings.HasPrefix(name, "OPTIONS-") ||
		strings.HasPrefix(name, "marker.")
}

func (w *FS) noted(path string) (name string, ok bool) {
	name = w.FS.PathBase(path)
	return name, w.FS.PathDir(path) == w.dir && (kept(name) || strings.HasSuffix(name, ".dbtmp"))
}

// reported passes on to w.failed an error that keeps a log from being written, and returns it.
func (w *FS) reported(name string, err error) error {
	if err != nil && strings.HasSuffix(name, ".log") {
		w.failed(err)
	}
	return err
}

// write writes a record. mu must be held.
func (w *FS) write(r *record) error {
	if !r.linked || !kept(r.name) || slotHead+len(r.name) > slotSize {
		return nil
	}
	if r.slot < 0 {
		for r.slot = 0; r.slot < len(w.mu.slots) && w.mu.slots[r.slot] != nil; r.slot++ {
		}
		if r.slot == len(w.mu.slots) {
			w.mu.slots = append(w.mu.slots, nil)
		}
		w.mu.slots[r.slot] = r
	}
	var b [slotSize]byte
	r.encode(&b)
	return w.put(r.slot, &b)
}

func (w *FS) put(slot int, b *[slotSize]byte) error {
	if w.mu.file == nil {
		f, err := w.FS.OpenReadWrite(w.path(Name), "pebble-wal")
		if err != nil {
			return err
		}
		w.mu.file = f
	}
	_, err := w.mu.file.WriteAt(b[:], int64(slot)*slotSize)
	return err
}

// forget withdraws the record of a file, durably, because the file is about to be removed.
func (w *FS) forget(name string) (*record, error) {
	w.mu.Lock()
	r := w.mu.byName[name]
	if r == nil {
		w.mu.Unlock()
		return nil, nil
	}
	delete(w.mu.byName, name)
	r.linked = false
	if r.slot < 0 {
		w.mu.Unlock()
		return r, nil
	}
	err := w.put(r.slot, &[slotSize]byte{})
	f := w.mu.file
	w.mu.slots[r.slot], r.slot = nil, -1
	w.mu.Unlock()
	if err == nil {
		err = f.Sync()
	}
	return r, err
}

// watch starts tracking a new file.
func (w *FS) watch(name string, f vfs.File) vfs.File {
	r := &record{name: name, slot: -1}
	w.mu.Lock()
	w.mu.byName[name] = r
	w.mu.Unlock()
	return &file{File: f, w: w, r: r}
}

// Create implements vfs.FS.
func (w *FS) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	name, ok := w.noted(path)
	if !ok {
		return w.FS.Create(path, category)
	}
	if _, err := w.forget(name); err != nil {
		return nil, w.reported(name, err)
	}
	f, err := w.FS.Create(path, category)
	if err != nil {
		return nil, w.reported(name, err)
	}
	return w.watch(name, f), nil
}

// ReuseForWrite implements vfs.FS.
func (w *FS) ReuseForWrite(old, path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if name, ok := w.noted(old); ok {
		if _, err := w.forget(name); err != nil {
			return nil, w.reported(name, err)
		}
	}
	f, err := w.FS.ReuseForWrite(old, path, category)
	name, ok := w.noted(path)
	if err != nil || !ok {
		return f, w.reported(name, err)
	}
	return w.watch(name, f), nil
}

// Remove implements vfs.FS.
func (w *FS) Remove(path string) error {
	if name, ok := w.noted(path); ok {
		if _, err := w.forget(name); err != nil {
			return err
		}
	}
	return w.FS.Remove(path)
}

// Rename implements vfs.FS.
func (w *FS) Rename(old, path string) error {
	var moved *record
	for _, p := range []string{path, old} {
		moved = nil // the record of the file that is replaced is not the new one's
		name, ok := w.noted(p)
		if !ok {
			continue
		}
		var err error
		if moved, err = w.forget(name); err != nil {
			return err
		}
	}
	if err := w.FS.Rename(old, path); err != nil {
		return err
	}
	if name, ok := w.noted(path); ok && moved != nil {
		w.mu.Lock()
		moved.name = name
		w.mu.byName[name] = moved
		w.mu.Unlock()
	}
	return nil
}

// OpenDir implements vfs.FS.
func (w *FS) OpenDir(path string) (vfs.File, error) {
	f, err := w.FS.OpenDir(path)
	if err != nil || w.FS.PathDir(w.FS.PathJoin(path, Name)) != w.dir {
		return f, err
	}
	return &directory{f, w}, nil
}

// directory is the store's directory: after its sync, names are durable.
type directory struct {
	vfs.File
	w *FS
}

func (d *directory) Sync() error {
	w := d.w
	fresh := map[string]*record{}
	w.mu.Lock()
	for name, r := range w.mu.byName {
		if !r.linked {
			fresh[name] = r
		}
	}
	w.mu.Unlock()
	if err := d.File.Sync(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, r := range fresh {
		if w.mu.byName[name] != r {
			continue
		}
		r.linked = true
		if err := w.write(r); err != nil {
			return err
		}
	}
	return nil
}

// file is a file whose durable prefix is recorded. It is only appended to.
type file struct {
	vfs.File
	w       *FS
	r       *record
	written extent
	lost    bool // the file's content is no longer known
}

func (f *file) Write(p []byte) (int, error) {
	next := extent{f.written.size + int64(len(p)), crc32.Update(f.written.sum, castagnoli, p)} // before Write, which may change p
	n, err := f.File.Write(p)
	if err != nil || n < len(p) {
		f.lost = true
	}
	f.written = next
	return n, f.reported(err)
}

func (f *file) WriteAt(p []byte, at int64) (int, error) {
	f.lost = true
	return f.File.WriteAt(p, at)
}

func (f *file) Sync() error     { return f.synced(f.File.Sync) }
func (f *file) SyncData() error { return f.synced(f.File.SyncData) }

func (f *file) SyncTo(length int64) (full bool, err error) {
	at := f.written
	if full, err = f.File.SyncTo(length); full && err == nil {
		err = f.durable(at)
	}
	return full, f.reported(err)
}

// synced performs a sync and records what it made durable.
func (f *file) synced(sync func() error) error {
	at := f.written
	err := sync()
	if err == nil {
		err = f.durable(at)
	}
	return f.reported(err)
}

func (f *file) reported(err error) error { return f.w.reported(f.r.name, err) }

// durable records that a prefix is durable.
func (f *file) durable(at extent) error {
	if f.lost {
		return nil
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.r.synced.size == at.size {
		return nil
	}
	f.r.synced = at
	return f.w.write(f.r)
}
