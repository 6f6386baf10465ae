package storage

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// LocalTable is a table of this node alone with plain keys and values: no versions, no collection. It is neither
// replicated nor part of a snapshot.
type LocalTable uint8

// The tables that replication keeps in the store. They share the write-ahead log with the data, in order with it:
// once the removal of an entry from TableRaftLog is durable, so are the entry's effects.
const (
	TableRaftLog  LocalTable = 1 // index → entry
	TableRaftMeta LocalTable = 2 // hard state, members, configuration
)

func (t LocalTable) ident() catalog.Ident { return identLocal + catalog.Ident(t) }

func (t LocalTable) key(dst, key []byte) []byte {
	return appendUnversioned(append(appendIdent(dst, t.ident()), key...))
}

// LocalGet returns a copy of one value, or nil if there is none.
func (e *Engine) LocalGet(t LocalTable, key []byte) ([]byte, error) {
	return e.getMeta(t.key(nil, key))
}

// LocalScan calls f with the keys in [from, to) (to nil: to the end) in order, until f returns false. key and val
// are borrowed.
func (e *Engine) LocalScan(t LocalTable, from, to []byte, f func(key, val []byte) bool) error {
	lower, upper := t.bounds(from, to)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		k := it.Key()
		if !f(k[identLen:len(k)-1], val) {
			break
		}
	}
	return it.Error()
}

// LocalLast returns copies of the highest key of a table and its value; nil if the table is empty.
func (e *Engine) LocalLast(t LocalTable) (key, val []byte, err error) {
	lower, upper := t.bounds(nil, nil)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, nil, err
	}
	defer closeQuietly(it)
	if !it.Last() {
		return nil, nil, it.Error()
	}
	v, err := it.ValueAndErr()
	k := it.Key()
	return append([]byte(nil), k[identLen:len(k)-1]...), append([]byte(nil), v...), err
}

func (t LocalTable) bounds(from, to []byte) (lower, upper []byte) {
	_, upper = identRange(t.ident())
	if to != nil {
		upper = t.key(nil, to)
	}
	return t.key(nil, from), upper
}

// LocalBatch is a set of writes to local tables that are applied atomically.
type LocalBatch struct {
	e *Engine
	b *pebble.Batch
	k []byte
}

// NewLocalBatch starts a batch, which ends with Commit or Close.
func (e *Engine) NewLocalBatch() *LocalBatch { return &LocalBatch{e: e, b: e.db.NewBatch()} }

// Set writes a value. Key and value are copied. All keys of a table must have the same length; otherwise they are
// not ordered bytewise.
func (b *LocalBatch) Set(t LocalTable, key []byte, val ...[]byte) {
	n := 0
	for _, v := range val {
		n += len(v)
	}
	op := b.b.SetDeferred(identLen+len(key)+1, n)
	b.k = t.key(b.k[:0], key)
	copy(op.Key, b.k)
	at := 0
	for _, v := range val {
		at += copy(op.Value[at:], v)
	}
	_ = op.Finish()
}

// Delete removes a key.
func (b *LocalBatch) Delete(t LocalTable, key []byte) {
	b.k = t.key(b.k[:0], key)
	_ = b.b.Delete(b.k, nil)
}

// DeleteRange removes the keys in [from, to) (to nil: to the end).
func (b *LocalBatch) DeleteRange(t LocalTable, from, to []byte) {
	lower, upper := t.bounds(from, to)
	_ = b.b.DeleteRange(lower, upper, nil)
}

// Len returns the size of the batch in bytes.
func (b *LocalBatch) Len() int { return b.b.Len() }

// Commit applies the batch and ends it. With sync, the batch and everything written before it are durable when
// Commit returns.
func (b *LocalBatch) Commit(sync bool) error {
	defer b.Close()
	if err := b.e.failure(); err != nil {
		return err
	}
	o, began := pebble.NoSync, time.Time{}
	if sync && !b.e.opts.Memory {
		o, began = pebble.Sync, noteDurable()
	}
	err := b.e.guard(func() error { return b.e.db.Apply(b.b, o) })
	if o.Sync {
		b.e.journal.waited(time.Since(began))
	}
	b.e.fail(err)
	return err
}

// Close discards the batch. After Commit it does nothing.
func (b *LocalBatch) Close() {
	if b.b != nil {
		closeQuietly(b.b)
		b.b = nil
	}
}
