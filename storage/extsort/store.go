package extsort

import (
	"bytes"
	"io"
	"os"
)

// Store creates the files that runs are spilled to.
type Store interface {
	Create() (File, error)
}

// File is written once, then read from its start.
type File interface {
	io.Writer
	// Reader ends writing and starts reading.
	Reader() (io.Reader, error)
	// Remove closes the file and deletes it.
	Remove() error
}

// Dir spills to temporary files in a directory.
type Dir string

// Create creates a temporary file.
func (d Dir) Create() (File, error) {
	f, err := os.CreateTemp(string(d), "extsort-*")
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

type diskFile struct{ *os.File }

func (f diskFile) Reader() (io.Reader, error) {
	_, err := f.Seek(0, io.SeekStart)
	return f.File, err
}

func (f diskFile) Remove() error {
	err := f.Close()
	if e := os.Remove(f.Name()); err == nil {
		err = e
	}
	return err
}

// Memory keeps runs in memory: for tests, and for nodes without a disk.
type Memory struct{}

// Create returns an empty buffer.
func (Memory) Create() (File, error) { return &memFile{}, nil }

type memFile struct{ bytes.Buffer }

func (f *memFile) Reader() (io.Reader, error) { return bytes.NewReader(f.Bytes()), nil }
func (f *memFile) Remove() error              { f.Buffer = bytes.Buffer{}; return nil }
