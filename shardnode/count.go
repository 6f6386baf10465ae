package shardnode

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/distinct"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func countSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "count", Roles: command.All, Kind: command.Read, Namespace: true, ReadConcern: true, API: true, Run: n.runCount,
		Fields: []command.Field{
			command.Opt("query", command.TObject), command.Opt("limit", command.TAny), command.Opt("skip", command.TNumber),
			command.Opt("hint", command.TAny), command.Opt("collation", command.TObject),
			command.Opt("fields", command.TAny), command.Opt("collectionUUID", command.TOther),
			command.Opt("encryptionInformation", command.TObject), command.Opt("querySettings", command.TObject),
		},
	}
}

func (n *Node) runCount(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	q, skip, limit, err := n.parseCount(op, ns)
	if err != nil {
		return dst, err
	}
	defer q.Snap.Release()
	if q.Coll == nil {
		if r, err := n.resolveFor(op, q.Snap, ns); err != nil {
			return dst, err
		} else if r != nil {
			return n.countView(op, dst, q.Snap, r, skip, limit)
		}
	}
	c, err := n.countQuery(op, q, skip, limit)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "n", value.NewInt(c)), nil
}

// parseCount reads and compiles a count command. The caller releases the query's snapshot.
func (n *Node) parseCount(op *command.Op, ns string) (q *exec.Query, skip, limit int64, err error) {
	if limit, err = countLimit(op.Arg("limit")); err != nil {
		return nil, 0, 0, err
	}
	if skip, err = nonNegative(op, "skip"); err != nil {
		return nil, 0, 0, err
	}
	if q, err = n.openQuery(op, ns); err != nil {
		return nil, 0, 0, err
	}
	q.Filter, q.Hint, q.Count = op.Req.Doc("query"), op.Arg("hint"), true
	if err = q.Compile(nil); err != nil {
		q.Snap.Release()
		return nil, 0, 0, err
	}
	return q, skip, limit, nil
}

// countLimit reads count's limit, whose sign is ignored.
func countLimit(v value.Value) (int64, error) {
	switch {
	case v.IsMissing():
		return 0, nil
	case !v.T.Numeric():
		return 0, mongoerr.New(mongoerr.BadValue, "limit value is not a valid number")
	}
	i, ok := v.AsInt64()
	if !ok {
		return 0, mongoerr.Newf(mongoerr.FailedToParse, "Expected an integer: limit: %s", value.Show(v))
	}
	if i < 0 {
		if i = -i; i < 0 {
			return 0, mongoerr.New(mongoerr.BadValue, "Limit value for count cannot be min long")
		}
	}
	return i, nil
}

// plainRead returns the readArgs of count and distinct.
func plainRead(op *command.Op) readArgs {
	return readArgs{collation: op.Arg("collation"), hint: op.Arg("hint"), allowDiskUse: value.NewBool(true)}
}

// openQuery prepares a query for a reading command that does not have one yet: snapshot, collection, language.
func (n *Node) openQuery(op *command.Op, ns string) (*exec.Query, error) {
	s, err := openRead(n, op, ns)
	if err != nil {
		return nil, err
	}
	q := &exec.Query{NS: ns, Snap: s, Coll: s.Catalog().Lookup(ns), AllowDiskUse: true}
	spec, err := n.metas.CollationOf(op.Arg("collation"), q.Coll)
	var l *exec.Lang
	if err == nil {
		l, err = n.exec.NewLang(op, spec, nil)
	}
	if err == nil {
		err = n.bindMetadata(op, q)
	}
	if err != nil {
		s.Release()
		return nil, err
	}
	q.Collation, q.Scope = spec, l.Scope
	l.Env.NoConstants = true // count and distinct have no $$NOW
	return q, nil
}

// noHint reports whether a hint is absent or empty.
func noHint(h value.Value) bool {
	return h.IsMissing() || h.T == value.Document && value.Count(h.Doc()) == 0
}

// countQuery counts the documents of a query. Without a filter it returns the collection's own count.
func (n *Node) countQuery(op *command.Op, q *exec.Query, skip, limit int64) (int64, error) {
	var c int64
	if q.Coll != nil && q.Matcher == nil && q.Owned == nil && noHint(q.Hint) {
		c = q.Coll.Counters.Records.Load()
	} else {
		root, err := n.exec.Plan(op, q)
		if err != nil {
			return 0, err
		}
		defer root.Close()
		stop := int64(-1)
		if limit > 0 {
			stop = limit + skip
		}
		var r exec.Row
		for c != stop {
			ok, err := root.Next(op, &r)
			if err != nil {
				return 0, err
			}
			if !ok {
				break
			}
			c++
		}
	}
	if c -= skip; c < 0 {
		c = 0
	}
	if limit > 0 && c > limit {
		c = limit
	}
	return c, nil
}

// countView counts through the view's pipeline.
func (n *Node) countView(op *command.Op, dst []byte, s *storage.Snapshot, r *namespace.Resolved, skip, limit int64) ([]byte, error) {
	stages := append(append([]value.Value(nil), r.Pipeline...), viewquery.Count(op.Req.Body, skip, limit)...)
	doc, err := aggregateOne(&aggregation{n: n, op: op, ns: r.NS, snap: s, readArgs: plainRead(op)}, stages, r.Collation)
	if err != nil {
		return dst, err
	}
	c := value.Lookup(doc, "count")
	if c.IsMissing() {
		c = value.NewInt32(0)
	}
	return value.Append(dst, "n", c), nil
}

func distinctSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "distinct", Roles: command.All, Kind: command.Read, Namespace: true, ReadConcern: true, Txn: true, API: false, Run: n.runDistinct,
		Fields: []command.Field{
			command.Req("key", command.TString), command.Opt("query", command.TObject), command.Opt("collation", command.TObject),
			command.Opt("hint", command.TAny), command.Opt("collectionUUID", command.TOther),
			command.Opt("querySettings", command.TObject), command.Opt("includeQueryStatsMetrics", command.TSafeBool),
		},
	}
}

func (n *Node) runDistinct(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	q, d, err := n.parseDistinct(op, ns)
	if err != nil {
		return dst, err
	}
	defer q.Snap.Release()
	op.Stats.CollType = "collection"
	if q.Coll == nil {
		r, err := n.resolveFor(op, q.Snap, ns)
		if err != nil {
			return dst, err
		}
		if op.Stats.CollType = r.CollType(); r != nil {
			op.IntOK = true
			return n.distinctView(op, dst, q.Snap, r, d)
		}
	}
	if err := n.distinctQuery(op, q, d); err != nil {
		return dst, err
	}
	values := d.Sorted()
	op.Stats.NReturned = int64(value.Count(values))
	dst = value.Append(dst, "values", value.NewArray(values))
	if at := snapshotTime(op, q.Snap); at != 0 {
		dst = value.Append(dst, "atClusterTime", at.Value())
	}
	return dst, nil
}

// parseDistinct reads and compiles a distinct command. The caller releases the query's snapshot.
func (n *Node) parseDistinct(op *command.Op, ns string) (*exec.Query, *distinct.Values, error) {
	key := op.Req.Str("key")
	if i := indexNul(key); i >= 0 {
		return nil, nil, mongoerr.New(31032, "Key field cannot contain an embedded null byte")
	}
	q, err := n.openQuery(op, ns)
	if err != nil {
		return nil, nil, err
	}
	q.Filter, q.Hint, q.Distinct = op.Req.Doc("query"), op.Arg("hint"), key
	if err := q.Compile(nil); err != nil {
		q.Snap.Release()
		return nil, nil, err
	}
	return q, distinct.New(key, q.Collation.Collator()), nil
}

func (n *Node) distinctQuery(op *command.Op, q *exec.Query, d *distinct.Values) error {
	root, err := n.exec.Plan(op, q)
	if err != nil {
		return err
	}
	defer root.Close()
	var r exec.Row
	for {
		ok, err := root.Next(op, &r)
		if err != nil || !ok {
			return err
		}
		if r.Covered && valueAt(r.Doc, q.Distinct).T == value.Null {
			if ok, err = n.holdsNull(op, q); err != nil {
				return err
			}
			if !ok {
				continue
			}
		}
		if err := d.AddDocument(r.Doc); err != nil {
			return err
		}
	}
}

// valueAt follows a path through documents.
func valueAt(doc []byte, path string) (v value.Value) {
	for p := range strings.SplitSeq(path, ".") {
		v = value.Lookup(doc, p)
		doc = v.Doc()
	}
	return v
}

// holdsNull reports whether a null in an index represents a null in some document, or only missing fields.
func (n *Node) holdsNull(op *command.Op, q *exec.Query) (bool, error) {
	c := *q
	isNull := value.NewDocument(value.Doc(value.F(q.Distinct, value.NewDocument(value.Doc(value.F("$type", value.NewInt32(int32(value.Null))))))))
	both := []value.Value{isNull}
	if len(q.Filter) > 5 {
		both = append(both, value.NewDocument(q.Filter))
	}
	c.Filter, c.Distinct = value.Doc(value.F("$and", value.NewArray(value.ArrayOf(both...)))), ""
	if err := c.Compile(nil); err != nil {
		return false, err
	}
	root, err := n.exec.Plan(op, &c)
	if err != nil {
		return false, err
	}
	defer root.Close()
	var r exec.Row
	return root.Next(op, &r)
}

// distinctView finds distinct values through the view's pipeline.
func (n *Node) distinctView(op *command.Op, dst []byte, s *storage.Snapshot, r *namespace.Resolved, d *distinct.Values) ([]byte, error) {
	stages := append(append([]value.Value(nil), r.Pipeline...), viewquery.Distinct(op.Req.Body)...)
	doc, err := aggregateOne(&aggregation{n: n, op: op, ns: r.NS, snap: s, readArgs: plainRead(op)}, stages, r.Collation)
	if err != nil {
		return dst, err
	}
	if err := d.AddArray(value.Lookup(doc, "distinct").Doc()); err != nil {
		return dst, err
	}
	values := d.Sorted()
	op.Stats.NReturned = int64(value.Count(values))
	return value.Append(dst, "values", value.NewArray(values)), nil
}

func indexNul(s string) int {
	for i := range len(s) {
		if s[i] == 0 {
			return i
		}
	}
	return -1
}
