package storage

import (
	"bytes"
	"context"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
)

// Expired gives f the records whose date, by a TTL index (or by the _id of a clustered collection, idx nil), is at or
// before the limit, until f says no. What f gets is borrowed. Only dates expire: other types are not looked at. A record
// with an array of dates is given once for each of them that has passed; deleting it twice is the caller's to avoid.
func (s *Snapshot) Expired(ctx context.Context, c *catalog.Collection, idx *catalog.Index, limit time.Time, f func(rid RecordID, doc []byte) bool) error {
	first := value.NewDateTime(-1 << 63)
	last := value.NewDateTime(limit.UnixMilli())
	if idx == nil {
		cur := s.Scan(c, ScanOptions{From: RecordID(keystring.AppendKey(nil, first, false, nil)), To: RecordID(keystring.AppendKey(nil, last, false, nil))})
		defer cur.Close()
		for cur.Next() {
			if ctx.Err() != nil || !f(cur.RecordID(), cur.Doc()) {
				return context.Cause(ctx)
			}
		}
		return cur.Err()
	}
	// A descending index holds the dates the other way round.
	desc := idx.Spec.Ordering().Descending(0)
	if desc {
		first, last = last, first
	}
	from, to := keystring.AppendKey(nil, first, desc, nil), keystring.After(keystring.AppendKey(nil, last, desc, nil))
	cur := s.IndexScan(c, idx, false)
	defer cur.Close()
	for cur.Seek(from); cur.Next() && bytes.Compare(cur.Key(), to) < 0; {
		doc, ok, err := s.Get(c, cur.RecordID())
		if err != nil {
			return err
		}
		if ctx.Err() != nil || ok && !f(cur.RecordID(), doc) {
			return context.Cause(ctx)
		}
	}
	return cur.Err()
}
