package storage

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableFiles writes sorted tables of about loadFileSize beside those of the store, which then ingests them. They are synced once they are closed.
type tableFiles struct {
	e        *Engine
	name     string // of the files, without their number
	category vfs.DiskWriteCategory
	w        *sstable.Writer
	size     int // of the table that is being written
	paths    []string
}

const loadFileSize = 64 << 20

// add appends a key. Keys are in ascending order.
func (s *tableFiles) add(key, val []byte) error {
	if s.w != nil && s.size > loadFileSize {
		if err := s.close(); err != nil {
			return err
		}
	}
	if s.w == nil {
		fs := s.e.files
		path := fs.PathJoin(s.e.opts.Dir, fmt.Sprintf("%s-%d.sst", s.name, len(s.paths)))
		f, err := fs.Create(path, s.category)
		if err != nil {
			return err
		}
		s.paths = append(s.paths, path)
		o := s.e.pebbleOptions()
		o.EnsureDefaults()
		// The disk begins to write while the table grows: what is left for the sync at its end is a megabyte or two.
		f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{NoSyncOnClose: true, BytesPerSync: o.BytesPerSync})
		s.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), o.MakeWriterOptions(6, s.e.db.TableFormat()))
		s.size = 0
	}
	s.size += len(key) + len(val)
	return s.w.Set(key, val)
}

// close completes the table that is being written.
func (s *tableFiles) close() error {
	if s.w == nil {
		return nil
	}
	err := s.w.Close()
	s.w = nil
	return err
}

// abandon removes the tables.
func (s *tableFiles) abandon() {
	_ = s.close()
	for _, p := range s.paths {
		_ = s.e.files.Remove(p)
	}
	s.paths = nil
}
