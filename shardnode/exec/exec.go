package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexscan"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Row is one result that passes up an execution tree. Its contents are borrowed from the node that made it,
// until that node's next Next.
type Row struct {
	RID storage.RecordID
	Doc []byte // nil until fetched

	key      []byte // the index key it came from, nil for collection scans
	typeBits []byte
	index    *catalog.Index
	sortKey  []byte             // the values it was sorted by, for merging sorted streams
	fields   []plan.FieldBounds // of key
	Covered  bool               // Doc was made from key
	peeked   bool               // Doc was read for sorting, before any stage that fetches
}

// Node is one stage of an execution tree. Next fills r and returns true, or false at the end. Save releases the
// store between two batches; a saved node restores itself in the following Next.
type Node interface {
	Next(op *command.Op, r *Row) (bool, error)
	Save()
	Close()
	stats() *nodeStats
}

// nodeStats are a stage's statistics for explain.
type nodeStats struct {
	advanced              int64
	eof                   bool
	keys, docs            int64
	seeks                 int64
	memory                int64
	spills                int64
	spilled, spilledBytes int64   // by a sort
	rejected              int64   // fetched or read, but not owned by this shard or not matching
	again                 int64   // already fetched by a stage below
	failed                []int64 // of an intersection, for each input
}

// collScan reads a collection in order of RecordId, or backwards.
type collScan struct {
	st      nodeStats
	snap    *storage.Snapshot
	coll    *catalog.Collection
	opts    storage.ScanOptions
	matcher *match.Matcher
	pace    *pace
	cur     *storage.RecordCursor
	last    storage.RecordID // the last record returned, set by Save; with follow, the last record read
	follow  bool             // last is updated for each record
	resumed bool             // the scan continues after last
}

func (c *collScan) Next(op *command.Op, r *Row) (bool, error) {
	if c.cur == nil {
		c.coll.Counters.Scans.Add(1)
		op.Stats.CollScans++
		c.cur = c.snap.Scan(c.coll, c.opts)
	}
	if c.resumed && c.coll.Oplog && !c.opts.Reverse && !c.st.eof && c.last != nil { // snapshots do not keep the oplog's entries
		if err := stillThere(c.snap, c.coll, c.last); err != nil {
			return false, err
		}
	}
	c.resumed = false
	for {
		if c.pace != nil {
			if err := c.pace.step(); err != nil {
				return false, err
			}
		}
		if !c.cur.Next() {
			break
		}
		c.st.docs++
		op.Stats.DocsExamined++
		if err := op.Check(); err != nil {
			return false, err
		}
		doc := c.cur.Doc()
		if c.follow {
			c.last = append(c.last[:0], c.cur.RecordID()...)
		}
		if c.matcher != nil {
			ok, err := c.matcher.Match(doc)
			if err != nil {
				return false, err
			}
			if !ok {
				continue
			}
		}
		r.RID, r.Doc, r.key, r.index = c.cur.RecordID(), doc, nil, nil
		c.st.advanced++
		return true, nil
	}
	c.st.eof = true
	return false, c.cur.Err()
}

func (c *collScan) Save() {
	if c.cur != nil {
		if c.st.docs > 0 && !c.st.eof && !c.follow {
			c.last = append(c.last[:0], c.cur.RecordID()...)
		}
		c.cur.Save()
		c.resumed = true
	}
}

func (c *collScan) Close() {
	if c.cur != nil {
		c.cur.Close()
		c.cur = nil
	}
}

func (c *collScan) stats() *nodeStats { return &c.st }

// mayAdvance reports whether a saved scan can continue in a newer snapshot.
func (c *collScan) mayAdvance() bool { return !c.opts.Reverse && c.cur != nil && len(c.last) > 0 }

// advance moves a saved scan to a newer snapshot, after the record that it returned last.
func (c *collScan) advance(s *storage.Snapshot, coll *catalog.Collection) {
	c.Close()
	c.snap, c.coll, c.opts.From = s, coll, after(c.last)
}

// idLookup is the express path: it reads the one document with an _id.
type idLookup struct {
	st      nodeStats
	snap    *storage.Snapshot
	coll    *catalog.Collection
	id      value.Value
	matcher *match.Matcher // the rest of the filter, nil for none
	done    bool
}

func (l *idLookup) Next(op *command.Op, r *Row) (bool, error) {
	if l.done {
		l.st.eof = true
		return false, nil
	}
	l.done = true
	rid, doc, ok, err := l.snap.FindByID(l.coll, l.id)
	if err != nil || !ok {
		l.st.eof = true
		return false, err
	}
	l.st.keys++
	l.st.docs++
	op.Stats.KeysExamined++
	op.Stats.DocsExamined++
	if used := op.Stats.IndexesUsed; used != nil && !l.coll.Clustered {
		used["_id_"] = true
	}
	if l.matcher != nil {
		if ok, err := l.matcher.Match(doc); err != nil || !ok {
			return false, err
		}
	}
	l.st.advanced++
	r.RID, r.Doc, r.key, r.index = rid, doc, nil, nil
	return true, nil
}

func (l *idLookup) Save()             {}
func (l *idLookup) Close()            {}
func (l *idLookup) stats() *nodeStats { return &l.st }

// eofNode has no results: the collection does not exist, or the filter matches nothing.
type eofNode struct{ st nodeStats }

func (e *eofNode) Next(*command.Op, *Row) (bool, error) {
	e.st.eof = true
	return false, nil
}
func (e *eofNode) Save()             {}
func (e *eofNode) Close()            {}
func (e *eofNode) stats() *nodeStats { return &e.st }

// filterNode passes on the rows for which keep returns true: it is the filter above a fetch, or the shard filter.
type filterNode struct {
	st   nodeStats
	in   Node
	keep func(doc []byte) (bool, error)
	keys *indexscan.KeyDoc // makes what keep reads from index keys; nil where rows have documents
}

func (f *filterNode) Next(op *command.Op, r *Row) (bool, error) {
	for {
		ok, err := f.in.Next(op, r)
		if err != nil || !ok {
			f.st.eof = err == nil && !ok
			return false, err
		}
		doc := r.Doc
		if f.keys != nil {
			if doc, ok = f.keys.Doc(r.key, r.typeBits); !ok {
				return false, mongoerr.New(mongoerr.DataCorruptionDetected, "an index key cannot be read")
			}
		}
		if ok, err = f.keep(doc); err != nil {
			return false, err
		}
		if ok {
			f.st.advanced++
			return true, nil
		}
		f.st.rejected++
		if err := op.Check(); err != nil {
			return false, err
		}
	}
}

func (f *filterNode) Save()             { f.in.Save() }
func (f *filterNode) Close()            { f.in.Close() }
func (f *filterNode) stats() *nodeStats { return &f.st }

// skipLimit drops the first skip results and ends after limit.
type skipLimit struct {
	st          nodeStats
	in          Node
	skip, limit int64 // limit < 0: none
}

func (s *skipLimit) Next(op *command.Op, r *Row) (bool, error) {
	for {
		if s.limit == 0 {
			s.st.eof = true
			return false, nil
		}
		ok, err := s.in.Next(op, r)
		if err != nil || !ok {
			s.st.eof = err == nil && !ok
			return false, err
		}
		if s.skip > 0 {
			s.skip--
			continue
		}
		if s.limit > 0 {
			s.limit--
		}
		s.st.advanced++
		return true, nil
	}
}

func (s *skipLimit) Save()             { s.in.Save() }
func (s *skipLimit) Close()            { s.in.Close() }
func (s *skipLimit) stats() *nodeStats { return &s.st }
