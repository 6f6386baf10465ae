package storage

import (
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// bufferedFS writes tables in steps of tableBuffer bytes. Pebble writes block by block, of 16 KB and more, through a buffer of 4 KB: each block became two
// system calls, which began and ended amid pages. Those calls took up to three times the processor time of aligned ones of this size.
//
// An error is reported by the call that writes, which may be a later one: at the latest by Sync, without which no table becomes part of the store.
type bufferedFS struct{ vfs.FS }

// tableBuffer is also the step between two pauses of throttledFile.
const tableBuffer = throttleStep

var tableBuffers = sync.Pool{New: func() any { return new([tableBuffer]byte) }}

// Unwrap implements vfs.FS.
func (b bufferedFS) Unwrap() vfs.FS { return b.FS }

// Create implements vfs.FS.
func (b bufferedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := b.FS.Create(name, category)
	if err != nil || !strings.HasSuffix(name, ".sst") {
		return f, err
	}
	return &bufferedFile{File: f}, nil
}

// bufferedFile is a table that one goroutine writes, at its end only.
type bufferedFile struct {
	vfs.File
	buf  *[tableBuffer]byte // nil while nothing is in it
	n    int                // bytes in buf
	sent int64              // bytes written to File
	err  error              // of the first write that failed

	closed bool // because of err
}

// Write implements vfs.File.
func (f *bufferedFile) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	for rest := p; len(rest) > 0; {
		if f.buf == nil {
			f.buf = tableBuffers.Get().(*[tableBuffer]byte)
		}
		n := copy(f.buf[f.n:], rest)
		f.n += n
		rest = rest[n:]
		if f.n == tableBuffer {
			if err := f.flush(); err != nil {
				return len(p) - len(rest), err
			}
		}
	}
	return len(p), nil
}

// flush writes what is in the buffer. After an error nothing more is written: the file has a gap. It is closed at once: pebble does not close a file whose last sync
// fails, and an open file keeps the room of a full disk that its removal should give back.
func (f *bufferedFile) flush() error {
	if f.buf == nil {
		return f.err
	}
	if f.err == nil {
		var n int
		n, f.err = f.File.Write(f.buf[:f.n])
		f.sent += int64(n)
		if f.err != nil {
			f.closed = true
			_ = f.File.Close()
		}
	}
	tableBuffers.Put(f.buf)
	f.buf, f.n = nil, 0
	return f.err
}

// Sync implements vfs.File.
func (f *bufferedFile) Sync() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Sync()
}

// SyncData implements vfs.File.
func (f *bufferedFile) SyncData() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.SyncData()
}

// SyncTo implements vfs.File.
func (f *bufferedFile) SyncTo(length int64) (full bool, err error) {
	if length > f.sent {
		err = f.flush()
	}
	if err != nil {
		return false, err
	}
	full, err = f.File.SyncTo(length)
	return full && f.n == 0, err
}

// Close implements vfs.File.
func (f *bufferedFile) Close() error {
	err := f.flush()
	if f.closed {
		return err
	}
	return errorsJoin(err, f.File.Close())
}
