package storage

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// heldFS is the file system under the store, whose changes can be held up: then files are as a crash at that moment would
// leave them, and stay so, while somebody copies them. Flushes, merges of tables, the journal and with it the replicated log
// wait in the middle of what they do. Reads go on.
type heldFS struct {
	vfs.FS
	gate *fileGate
}

// fileGate lets changes of files pass, or not.
type fileGate struct {
	sync.RWMutex
	hold    sync.Mutex
	held    bool
	waiting atomic.Int64 // changes that wait, or are being made
}

// enter returns when a change may be made; the result ends it.
func (g *fileGate) enter() func() {
	g.waiting.Add(1)
	g.RLock()
	return g.leave
}

func (g *fileGate) leave() {
	g.RUnlock()
	g.waiting.Add(-1)
}

// close waits for the changes under way; no other begins before open.
func (g *fileGate) close() {
	g.hold.Lock()
	defer g.hold.Unlock()
	if !g.held {
		g.Lock()
		g.held = true
	}
}

func (g *fileGate) open() {
	g.hold.Lock()
	defer g.hold.Unlock()
	if g.held {
		g.held = false
		g.Unlock()
	}
}

// HoldFiles keeps the store's files as they are until ReleaseFiles. Who wants certain writes to be in them syncs before. In
// memory there is nothing to hold.
func (e *Engine) HoldFiles() { e.gate.close() }

// ReleaseFiles ends HoldFiles.
func (e *Engine) ReleaseFiles() { e.gate.open() }

// Unwrap implements vfs.FS.
func (h heldFS) Unwrap() vfs.FS { return h.FS }

func (h heldFS) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return heldFile{f, h.gate}, nil
}

// Create implements vfs.FS.
func (h heldFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	defer h.gate.enter()()
	return h.file(h.FS.Create(name, category))
}

// Link implements vfs.FS.
func (h heldFS) Link(oldname, newname string) error {
	defer h.gate.enter()()
	return h.FS.Link(oldname, newname)
}

// OpenReadWrite implements vfs.FS.
func (h heldFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	defer h.gate.enter()()
	return h.file(h.FS.OpenReadWrite(name, category, opts...))
}

// Remove implements vfs.FS.
func (h heldFS) Remove(name string) error {
	defer h.gate.enter()()
	return h.FS.Remove(name)
}

// RemoveAll implements vfs.FS.
func (h heldFS) RemoveAll(name string) error {
	defer h.gate.enter()()
	return h.FS.RemoveAll(name)
}

// Rename implements vfs.FS.
func (h heldFS) Rename(oldname, newname string) error {
	defer h.gate.enter()()
	return h.FS.Rename(oldname, newname)
}

// ReuseForWrite implements vfs.FS.
func (h heldFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	defer h.gate.enter()()
	return h.file(h.FS.ReuseForWrite(oldname, newname, category))
}

// MkdirAll implements vfs.FS.
func (h heldFS) MkdirAll(dir string, perm os.FileMode) error {
	defer h.gate.enter()()
	return h.FS.MkdirAll(dir, perm)
}

// heldFile is a file that is written.
type heldFile struct {
	vfs.File
	gate *fileGate
}

// Write implements vfs.File.
func (f heldFile) Write(p []byte) (int, error) {
	defer f.gate.enter()()
	return f.File.Write(p)
}

// WriteAt implements vfs.File.
func (f heldFile) WriteAt(p []byte, offset int64) (int, error) {
	defer f.gate.enter()()
	return f.File.WriteAt(p, offset)
}

// Preallocate implements vfs.File.
func (f heldFile) Preallocate(offset, length int64) error {
	defer f.gate.enter()()
	return f.File.Preallocate(offset, length)
}
