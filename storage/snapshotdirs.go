package storage

import (
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SnapshotFiles manages the directories of snapshots, made here or received. They are kept beside the store's own
// files until they are removed.
type SnapshotFiles struct {
	fs   vfs.FS
	root string
}

// Files returns access to the directories of snapshots.
func (e *Engine) Files() SnapshotFiles {
	return SnapshotFiles{e.opts.FS, e.opts.FS.PathJoin(e.opts.Dir, "snapshots")}
}

func (s SnapshotFiles) path(dir string) string { return s.fs.PathJoin(s.root, dir) }

// ReadAt reads from a file; at the end of the file the error is io.EOF.
func (s SnapshotFiles) ReadAt(dir, name string, p []byte, offset int64) (int, error) {
	f, err := s.fs.Open(s.fs.PathJoin(s.path(dir), name))
	if err != nil {
		return 0, err
	}
	defer closeQuietly(f)
	n, err := f.ReadAt(p, offset)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// Append writes at the end of a file, creating it if necessary.
func (s SnapshotFiles) Append(dir, name string, p []byte) error {
	path := s.fs.PathJoin(s.path(dir), name)
	f, err := s.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		if err := s.fs.MkdirAll(s.path(dir), 0o755); err != nil {
			return err
		}
		if f, err = s.fs.Create(path, vfs.WriteCategoryUnspecified); err != nil {
			return err
		}
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(p, info.Size())
	}
	if err == nil { // written to disk continuously: doing it all at the end would delay the syncs of logs
		_, err = f.SyncTo(info.Size() + int64(len(p)))
	}
	return errorsJoin(err, f.Close())
}

// Sizes returns the sizes of a directory's files by name; none if there is no such directory.
func (s SnapshotFiles) Sizes(dir string) (map[string]int64, error) {
	out := map[string]int64{}
	names, err := s.list(s.path(dir))
	for _, n := range names {
		info, err := s.fs.Stat(s.fs.PathJoin(s.path(dir), n))
		if err != nil {
			return nil, err
		}
		out[n] = info.Size()
	}
	return out, err
}

// Remove removes a directory and its content.
func (s SnapshotFiles) Remove(dir string) error { return s.fs.RemoveAll(s.path(dir)) }

// List names the directories.
func (s SnapshotFiles) List() ([]string, error) { return s.list(s.root) }

func (s SnapshotFiles) list(path string) ([]string, error) {
	if _, err := s.fs.Stat(path); err != nil {
		return nil, nil
	}
	return s.fs.List(path)
}
