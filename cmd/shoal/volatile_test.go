package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/shoaldb/shoal/storage"
)

// asVolatile as the value of asShoal makes the test binary behave as the real server on a disk in memory, whose power is cut by cutPower.
// What is on it then is there again when the server starts anew.
const asVolatile = "volatile"

// cutPower is a signal that nothing else sends.
const cutPower = syscall.SIGWINCH

// startVolatile is start on a disk that loses what was not synced.
func startVolatile(c *config, h *host) (*roles, error) {
	if c.Program != isMongod { // routers have no disk
		return start(c, h)
	}
	const dir = "data"
	kept := c.DBPath + ".disk"
	disk := &volatileDisk{FS: vfs.NewCrashableMem()}
	if _, err := vfs.Clone(vfs.Default, disk.FS, kept, dir, vfs.CloneSync); err != nil {
		return nil, err
	}
	if root, err := disk.FS.OpenDir("/"); err != nil || root.Sync() != nil {
		return nil, os.ErrInvalid
	}
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, cutPower)
	go func() {
		<-ch
		disk.off.Lock() // for ever: nothing is synced any more, so nothing more is acknowledged
		left := disk.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rand.IntN(101), RNG: rand.New(rand.NewPCG(rand.Uint64(), 0))})
		_, err := vfs.Clone(left, vfs.Default, dir, kept+".next")
		if err == nil {
			err = errors.Join(os.RemoveAll(kept), os.Rename(kept+".next", kept))
		}
		if err != nil {
			panic(err)
		}
		os.Exit(exitAbrupt)
	}()
	h.store = func(o *storage.Options) { o.Dir, o.FS, o.MinFreeDisk = dir, disk, 1 }
	return start(c, h)
}

// volatileDisk lets nothing be synced once its power is off.
type volatileDisk struct {
	vfs.FS
	off sync.RWMutex
}

// Unwrap implements vfs.FS.
func (d *volatileDisk) Unwrap() vfs.FS { return d.FS }

func (d *volatileDisk) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return volatileFile{f, d}, nil
}

// Create implements vfs.FS.
func (d *volatileDisk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(d.FS.Create(name, category))
}

// OpenReadWrite implements vfs.FS.
func (d *volatileDisk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file(d.FS.OpenReadWrite(name, category, opts...))
}

// OpenDir implements vfs.FS.
func (d *volatileDisk) OpenDir(name string) (vfs.File, error) { return d.file(d.FS.OpenDir(name)) }

// ReuseForWrite implements vfs.FS.
func (d *volatileDisk) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(d.FS.ReuseForWrite(old, name, category))
}

type volatileFile struct {
	vfs.File
	disk *volatileDisk
}

func (f volatileFile) Sync() error {
	f.disk.off.RLock()
	defer f.disk.off.RUnlock()
	return f.File.Sync()
}

func (f volatileFile) SyncData() error {
	f.disk.off.RLock()
	defer f.disk.off.RUnlock()
	return f.File.SyncData()
}

func (f volatileFile) SyncTo(length int64) (bool, error) {
	f.disk.off.RLock()
	defer f.disk.off.RUnlock()
	return f.File.SyncTo(length)
}
