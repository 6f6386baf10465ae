package write

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/extsort"
)

// listMemory is the default of Config.ListMemory: about a hundred thousand records.
const listMemory = 1 << 20

// foundList is the list of records that a statement changes, for one that must find all of them before it changes the first. It
// consists of units, and beyond limit bytes is kept in a temporary file. A list that cannot be written to a file stays in memory: on
// a full disk documents can still be deleted.
//
//	unit = number of records uvarint | (length uvarint, RecordID)*
type foundList struct {
	store   extsort.Store
	limit   int
	memory  []byte // the units that are not in the file
	file    extsort.File
	written int64 // size of the units in the file
	stuck   bool  // writing to the file has failed
	from    *bufio.Reader
}

// add appends a unit. It must not be called after next.
func (l *foundList) add(rids []storage.RecordID) {
	if len(rids) == 0 {
		return
	}
	l.memory = binary.AppendUvarint(l.memory, uint64(len(rids)))
	for _, rid := range rids {
		l.memory = append(binary.AppendUvarint(l.memory, uint64(len(rid))), rid...)
	}
	if len(l.memory) >= l.limit && !l.stuck {
		l.stuck = l.spill() != nil
	}
}

// spill moves the units in memory to the file.
func (l *foundList) spill() error {
	if l.file == nil {
		f, err := l.store.Create()
		if err != nil {
			return err
		}
		l.file = f
	}
	if _, err := l.file.Write(l.memory); err != nil {
		return err
	}
	l.written += int64(len(l.memory))
	l.memory = l.memory[:0]
	return nil
}

// next returns the records of the next unit, none at the end.
func (l *foundList) next() ([]storage.RecordID, error) {
	if l.from == nil {
		var all io.Reader = bytes.NewReader(l.memory)
		if l.file != nil {
			r, err := l.file.Reader()
			if err != nil {
				return nil, err
			}
			all = io.MultiReader(io.LimitReader(r, l.written), all)
		}
		l.from = bufio.NewReaderSize(all, 32<<10)
	}
	n, err := binary.ReadUvarint(l.from)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	rids := make([]storage.RecordID, n)
	for i := range rids {
		if err != nil {
			break
		}
		var size uint64
		if size, err = binary.ReadUvarint(l.from); err == nil {
			rids[i] = make(storage.RecordID, size)
			_, err = io.ReadFull(l.from, rids[i])
		}
	}
	return rids, err
}

// close removes the file.
func (l *foundList) close() {
	if l.file != nil {
		_ = l.file.Remove()
	}
}
