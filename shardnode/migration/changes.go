package migration

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Changes are the documents of a database that were written to, read from the oplog.
type Changes struct {
	DB    string
	After storage.Timestamp // entries up to it have been read
	Limit int               // how many documents are enough
	More  bool              // there may be later entries

	docs map[string]*change // by collection and _id
	n    int                // operations
}

// change is a document that was written to.
type change struct {
	ns      string
	id      value.Value
	deleted bool // it was deleted, and perhaps inserted again
	order   int  // of its last insert, or of its first mention
}

// Changed is a document of one collection that was written to.
type Changed struct {
	ID      value.Value
	Deleted bool // it was deleted, and may have been inserted again
}

// Read continues to read the oplog of a snapshot. check returns an error to stop.
func (c *Changes) Read(check func() error, s *storage.Snapshot) error {
	oplog := s.Catalog().Lookup("local.oplog.rs")
	if oplog == nil {
		return mongoerr.New(mongoerr.InternalError, "this shard has no oplog")
	}
	c.docs, c.More = make(map[string]*change), false
	cur := s.Scan(oplog, storage.ScanOptions{From: storage.NewRecordID(int64(c.After) + 1)})
	defer cur.Close()
	for read := 0; cur.Next(); {
		e := cur.Doc()
		if value.Lookup(e, "op").Str() == "c" {
			if err := operations(s, e, func(op []byte) { read++; c.note(op) }); err != nil {
				return err
			}
		} else {
			c.note(e)
		}
		c.After = storage.Timestamp(value.Lookup(e, "ts").TimestampU64())
		if read++; len(c.docs) > c.Limit || read >= operationsAtOnce {
			c.More = true
			return nil
		}
		if err := check(); err != nil {
			return err
		}
	}
	return cur.Err()
}

func (c *Changes) note(e []byte) {
	kind := value.Lookup(e, "op").Str()
	key := e
	switch kind {
	case "i", "d":
		key = withKey(e, "o")
	case "u":
		key = withKey(e, "o2")
	default:
		return
	}
	ns := value.Lookup(e, "ns").Str()
	if key == nil || catalog.DBOf(ns) != c.DB {
		return
	}
	c.n++
	id := value.Lookup(key, "_id")
	at := string(value.AppendGroupKey([]byte(ns+"\x00"), id, nil))
	d := c.docs[at]
	if d == nil {
		d = &change{ns: ns, id: id, order: c.n}
		c.docs[at] = d
	}
	if kind == "i" {
		d.order = c.n
	}
	d.deleted = d.deleted || kind == "d"
}

// Len returns the number of documents.
func (c *Changes) Len() int { return len(c.docs) }

// Of returns the documents of a collection. Those that were inserted are in the order of their last inserts.
func (c *Changes) Of(ns string) []Changed {
	var list []*change
	for _, d := range c.docs {
		if d.ns == ns {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *change) int { return a.order - b.order })
	out := make([]Changed, len(list))
	for i, d := range list {
		out[i] = Changed{d.id, d.deleted}
	}
	return out
}
