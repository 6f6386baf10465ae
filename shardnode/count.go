package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func countSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "count", Roles: command.All, Kind: command.Read, Namespace: true, ReadConcern: true, API: true, Run: n.runCount,
		Fields: []command.Field{
			command.Opt("query", command.TObject), command.Opt("limit", command.TNumber), command.Opt("skip", command.TNumber),
			command.Opt("hint", command.TString|command.TObject), command.Opt("collation", command.TObject),
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
	limit := op.Req.Int("limit", 0)
	if limit < 0 {
		limit = -limit
	}
	if limit < 0 {
		limit = 0
	}
	skip, err := nonNegative(op, "skip")
	if err != nil {
		return dst, err
	}
	if err := n.checkVersion(op, ns); err != nil {
		return dst, err
	}
	q, err := n.openQuery(op, ns)
	if err != nil {
		return dst, err
	}
	defer q.snap.Release()
	if q.coll == nil {
		if r, err := resolveView(q.snap, ns); err != nil {
			return dst, err
		} else if r != nil {
			return n.countView(op, dst, r, skip, limit)
		}
	}
	q.filter, q.hint = op.Req.Doc("query"), op.Arg("hint")
	if err := q.compile(nil); err != nil {
		return dst, err
	}
	c, err := n.countQuery(op, q, skip, limit)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "n", countValue(c)), nil
}

// countValue is an int where it fits, a long where not.
func countValue(c int64) value.Value {
	if c == int64(int32(c)) {
		return value.NewInt32(int32(c))
	}
	return value.NewInt64(c)
}

// openQuery begins a query of a reading command that has no filter of its own kind yet: snapshot, collection, language.
func (n *Node) openQuery(op *command.Op, ns string) (*query, error) {
	s, err := n.readSnapshot(op)
	if err != nil {
		return nil, err
	}
	op.AdvanceOperationTime(uint64(s.Timestamp()))
	q := &query{ns: ns, snap: s, coll: s.Catalog().Lookup(ns), diskUse: true}
	spec, err := n.collationOf(op.Arg("collation"), q.coll)
	if err == nil {
		q.lang, err = n.newLang(spec, op.Req.Doc("let"))
	}
	if err != nil {
		s.Release()
		return nil, err
	}
	q.owned = n.ownership(op, q.coll)
	return q, nil
}

// countQuery counts the documents of a query. Without a filter it is what the collection's own count says.
func (n *Node) countQuery(op *command.Op, q *query, skip, limit int64) (int64, error) {
	var c int64
	q.count = true
	if q.coll != nil && q.matcher == nil && q.owned == nil && q.hint.IsMissing() {
		c = q.coll.Counters.Records.Load()
	} else {
		root, err := n.plan(op, q)
		if err != nil {
			return 0, err
		}
		defer root.close()
		stop := int64(-1)
		if limit > 0 {
			stop = limit + skip
		}
		var r row
		for c != stop {
			ok, err := root.next(op, &r)
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
func (n *Node) countView(op *command.Op, dst []byte, r *resolved, skip, limit int64) ([]byte, error) {
	stages := append([]value.Value(nil), r.pipeline...)
	add := func(name string, v value.Value) {
		stages = append(stages, value.NewDocument(value.Doc(value.F(name, v))))
	}
	if q := op.Req.Doc("query"); len(q) > 5 {
		add("$match", value.NewDocument(q))
	}
	if skip > 0 {
		add("$skip", value.NewInt64(skip))
	}
	if limit > 0 {
		add("$limit", value.NewInt64(limit))
	}
	add("$count", value.NewString("count"))
	doc, err := n.aggregateOne(op, r.ns, stages, r.collation)
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
			command.Opt("hint", command.TString|command.TObject), command.Opt("collectionUUID", command.TOther),
			command.Opt("querySettings", command.TObject),
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
	key := op.Req.Str("key")
	if i := indexNul(key); i >= 0 {
		return dst, mongoerr.New(31032, "Key field cannot contain an embedded null byte")
	}
	if err := n.checkVersion(op, ns); err != nil {
		return dst, err
	}
	q, err := n.openQuery(op, ns)
	if err != nil {
		return dst, err
	}
	defer q.snap.Release()
	d := &distinct{path: splitPath(key), coll: q.lang.coll.Collator(), seen: map[string]bool{}}
	if q.coll == nil {
		if r, err := resolveView(q.snap, ns); err != nil {
			return dst, err
		} else if r != nil {
			return n.distinctView(op, dst, r, d)
		}
	}
	q.filter, q.hint = op.Req.Doc("query"), op.Arg("hint")
	if err := q.compile(nil); err != nil {
		return dst, err
	}
	root, err := n.plan(op, q)
	if err != nil {
		return dst, err
	}
	defer root.close()
	var r row
	for {
		ok, err := root.next(op, &r)
		if err != nil {
			return dst, err
		}
		if !ok {
			break
		}
		if err := d.add(r.doc); err != nil {
			return dst, err
		}
	}
	return value.Append(dst, "values", value.NewArray(d.finish())), nil
}

func (n *Node) distinctView(op *command.Op, dst []byte, r *resolved, d *distinct) ([]byte, error) {
	stages := append([]value.Value(nil), r.pipeline...)
	if q := op.Req.Doc("query"); len(q) > 5 {
		stages = append(stages, value.NewDocument(value.Doc(value.F("$match", value.NewDocument(q)))))
	}
	err := n.aggregateEach(op, r.ns, stages, r.collation, d.add)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "values", value.NewArray(d.finish())), nil
}

// distinct collects the different values at a path, arrays taken apart.
type distinct struct {
	path  []string
	coll  value.Collator
	seen  map[string]bool
	key   []byte
	out   []byte
	count int
}

func (d *distinct) add(doc []byte) error { return d.walk(value.NewDocument(doc), d.path) }

func (d *distinct) walk(v value.Value, path []string) error {
	if len(path) == 0 {
		if v.T == value.Array {
			for it := value.Walk(v.Doc()); ; {
				_, e, ok := it.Next()
				if !ok {
					return nil
				}
				if err := d.value(e); err != nil {
					return err
				}
			}
		}
		return d.value(v)
	}
	switch v.T {
	case value.Document:
		return d.walk(value.Lookup(v.Doc(), path[0]), path[1:])
	case value.Array:
		if isIndex(path[0]) {
			if e := value.Lookup(v.Doc(), path[0]); !e.IsMissing() {
				if err := d.walk(e, path[1:]); err != nil {
					return err
				}
			}
		}
		for it := value.Walk(v.Doc()); ; {
			_, e, ok := it.Next()
			if !ok {
				return nil
			}
			if e.T == value.Document {
				if err := d.walk(e, path); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *distinct) value(v value.Value) error {
	if v.IsMissing() {
		return nil
	}
	d.key = value.AppendGroupKey(d.key[:0], v, d.coll)
	if d.seen[string(d.key)] {
		return nil
	}
	d.seen[string(d.key)] = true
	if d.out == nil {
		d.out, _ = value.Begin(nil)
	}
	d.out = value.AppendIndex(d.out, d.count, v)
	d.count++
	if len(d.out) > maxStoredSize {
		return mongoerr.New(17217, "distinct too big, 16mb cap")
	}
	return nil
}

func (d *distinct) finish() []byte {
	if d.out == nil {
		return value.ArrayOf()
	}
	return value.End(d.out, 0)
}

func splitPath(p string) (parts []string) {
	start := 0
	for i := 0; i <= len(p); i++ {
		if i == len(p) || p[i] == '.' {
			parts = append(parts, p[start:i])
			start = i + 1
		}
	}
	return parts
}

func isIndex(s string) bool {
	if s == "" || (len(s) > 1 && s[0] == '0') {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

func indexNul(s string) int {
	for i := range len(s) {
		if s[i] == 0 {
			return i
		}
	}
	return -1
}
