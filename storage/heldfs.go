package storage

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// heldFS wraps the store's file system so that changes can be paused: the files then stay in a state that a crash could
// have left, while they are being copied. Flushes, compactions, the journal and with it the replicated log wait
// wherever they are. Reads continue.
type heldFS struct {
	vfs.FS
	gate *fileGate
}

// fileGate admits changes of files, or makes them wait.
type fileGate struct {
	sync.RWMutex
	hold    sync.Mutex
	held    bool
	waiting atomic.Int64 // changes that wait or are in progress
}

// enter returns when a change may be made; the caller runs the returned function when it is done.
func (g *fileGate) enter() func() {
	g.waiting.Add(1)
	g.RLock()
	return g.leave
}

func (g *fileGate) leave() {
	g.RUnlock()
	g.waiting.Add(-1)
}

// close waits for the changes in progress; no other starts before open.
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

// HoldFiles keeps the store's files unchanged until ReleaseFiles. A caller that needs certain writes in them syncs
// first. In memory there is nothing to hold.
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

// heldFile is a file opened for writing.
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
