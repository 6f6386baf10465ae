package shardnode

import (
	"io"
	"os"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/storage/extsort"
)

// spillDir makes temporary files in a directory that is made with the first of them.
type spillDir string

// Create implements extsort.Store.
func (d spillDir) Create() (extsort.File, error) {
	if d != "" {
		if err := os.MkdirAll(string(d), 0o700); err != nil {
			return nil, err
		}
	}
	return extsort.Dir(d).Create()
}

// spillStore is where operations of this node put what outgrows their memory.
func (n *Node) spillStore() extsort.Store { return spillDir(n.TempDir) }

// spiller gives pipelines the same files.
type spiller struct{ store extsort.Store }

// Create implements agg.Spiller.
func (s spiller) Create() (agg.SpillFile, error) {
	f, err := s.store.Create()
	if err != nil {
		return nil, err
	}
	return spillFile{f}, nil
}

type spillFile struct{ extsort.File }

// Reader implements agg.SpillFile.
func (f spillFile) Reader() (io.ReadCloser, error) {
	r, err := f.File.Reader()
	return io.NopCloser(r), err
}

// Close implements agg.SpillFile.
func (f spillFile) Close() error { return f.Remove() }
