package storage

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// TableHash describes the content of one replicated table at a timestamp.
type TableHash struct {
	NS    string
	Index string // empty for the records
	Keys  int64
	Sum   [sha256.Size]byte
}

// ContentHash hashes every replicated table as readers see it at ts: catalog, records, indexes and oplog. Members
// of a replica set agree at the same ts. Counters are included if ts is the visible timestamp.
func (e *Engine) ContentHash(ctx context.Context, ts Timestamp) ([]TableHash, error) {
	s, err := e.SnapshotAt(ts)
	if err != nil {
		return nil, err
	}
	defer s.Release()
	it, err := e.db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(it)
	h := contentHasher{e: e, it: it, ts: ts, hidden: s.hidden, h: sha256.New(), counters: e.Visible() == ts}
	for _, c := range s.cat.All() {
		if isLocal(c.Ident) {
			continue
		}
		if err := h.collection(ctx, c); err != nil {
			return nil, err
		}
	}
	return h.out, nil
}

type contentHasher struct {
	e        *Engine
	it       *pebble.Iterator
	ts       Timestamp
	hidden   timestamps
	h        hash.Hash
	counters bool
	v        versions
	out      []TableHash
}

func (h *contentHasher) collection(ctx context.Context, c *catalog.Collection) error {
	h.h.Reset()
	h.add(catalog.Encode(c))
	if h.counters {
		h.number(c.Counters.Records.Load())
		h.number(c.Counters.DataSize.Load())
	}
	if err := h.table(ctx, c.NS, "", c.Ident, c.Oplog); err != nil {
		return err
	}
	for _, idx := range c.Indexes {
		h.h.Reset()
		if err := h.table(ctx, c.NS, idx.Name, idx.Ident, false); err != nil {
			return err
		}
	}
	return nil
}

func (h *contentHasher) add(p []byte) {
	h.number(int64(len(p)))
	h.h.Write(p)
}

func (h *contentHasher) number(n int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	h.h.Write(b[:])
}

// table hashes a table's keys; those of the oplog have no versions.
func (h *contentHasher) table(ctx context.Context, ns, index string, id catalog.Ident, plain bool) error {
	lower, upper := identRange(id)
	h.it.SetBounds(lower, upper)
	out := TableHash{NS: ns, Index: index}
	var err error
	if plain {
		for ok := h.it.First(); ok && timeOf(h.it.Key()) <= h.ts; ok = h.it.Next() {
			val, verr := h.it.ValueAndErr()
			if verr != nil {
				return verr
			}
			if isRefs(val) {
				if val, verr = h.e.blockBytes(timeOf(h.it.Key()), val); verr != nil {
					return verr
				}
				val = storedBlock(val)
			}
			h.add(h.it.Key())
			h.add(val)
			out.Keys++
		}
		err = h.it.Error()
	} else {
		h.v.reset(h.it, h.ts, false)
		h.v.hidden = h.hidden
		for ok := h.v.seekGE(appendIdent(nil, id)); ok; ok = h.v.next() {
			h.add(h.v.user)
			h.number(int64(h.v.at))
			h.add(h.v.value)
			if out.Keys++; out.Keys%4096 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		err = h.v.err
	}
	h.h.Sum(out.Sum[:0])
	h.out = append(h.out, out)
	return err
}
