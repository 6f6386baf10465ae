package storage

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// formatVersion is the version of what a store contains: the keys that doc.go draws, their values, and the entries
// of the replicated log. It is incremented with every change that an older binary would misread. Stores without a
// stored version are of version 1.
//
//	2  blocks of the oplog may refer to documents, see oplogrefs.go
//	3  entries of the oplog may have several operations, see oplog.go
//	4  versions may have come with tables, see tablecopy.go
const formatVersion = 4

// checkFormat refuses a store written by a newer binary before reading anything else of it, and records the
// version in a store that has none or an older one. The record precedes all later writes in the journal, so it needs no sync of
// its own.
func (e *Engine) checkFormat() error {
	key := metaKeyIn(identLocalMeta, metaFormat)
	p, err := e.getMeta(key)
	if err != nil {
		return err
	}
	if p == nil || len(p) == 4 && binary.BigEndian.Uint32(p) < formatVersion {
		return e.guard(func() error { return e.db.Set(key, binary.BigEndian.AppendUint32(nil, formatVersion), pebble.NoSync) })
	}
	if len(p) != 4 {
		return corrupt("the store's format version has %d bytes", len(p))
	}
	if v := binary.BigEndian.Uint32(p); v > formatVersion {
		return mongoerr.Newf(mongoerr.MustUpgrade,
			"The data files were written in format %d, and this version of shoal reads up to format %d: start a newer version on them", v, formatVersion)
	}
	return nil
}
