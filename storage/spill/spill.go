package spill

import (
	"io"
	"os"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/storage/extsort"
)

// Dir creates temporary files in a directory, which is created with the first of them; "" is the system's own directory.
type Dir string

// Create implements extsort.Store.
func (d Dir) Create() (extsort.File, error) {
	if d != "" {
		if err := os.MkdirAll(string(d), 0o700); err != nil {
			return nil, err
		}
	}
	return extsort.Dir(d).Create()
}

// Pipelines provides the stages of pipelines with files of a store.
type Pipelines struct{ Store extsort.Store }

// Create implements agg.Spiller.
func (p Pipelines) Create() (agg.SpillFile, error) {
	f, err := p.Store.Create()
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

type file struct{ extsort.File }

// Reader implements agg.SpillFile.
func (f file) Reader() (io.ReadCloser, error) {
	r, err := f.File.Reader()
	return io.NopCloser(r), err
}

// Close implements agg.SpillFile.
func (f file) Close() error { return f.Remove() }
