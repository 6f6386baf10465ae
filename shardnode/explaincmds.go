package shardnode

import (
	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
)

// shapeOf sets queryShapeHash.
func (x *explanation) shapeOf() {
	if doc, ok := shape.Command(nil, x.op.Req.DB, x.op.Req.Body); ok {
		x.shape = shape.Hash(doc)
	}
}

// ns returns the namespace of the explained command.
func (x *explanation) ns() (string, error) {
	coll, err := x.op.Req.Coll()
	return x.op.Req.NS(coll), err
}

func (x *explanation) find(dst []byte) ([]byte, error) {
	ns, err := x.ns()
	if err != nil {
		return dst, err
	}
	a, err := parseFind(x.op, ns)
	if err != nil {
		return dst, err
	}
	s, err := openRead(x.n, x.op, ns)
	if err != nil {
		return dst, err
	}
	defer s.Release()
	q, err := a.compile(x.n, x.op, s)
	if err != nil {
		return dst, err
	}
	x.shapeOf()
	if q.Coll == nil {
		if r, err := x.n.resolveFor(x.op, q.Snap, ns); err != nil {
			return dst, err
		} else if r != nil {
			stages, hint, err := viewquery.Find(x.op.Req.Body, a.skip, a.limit)
			if err != nil {
				return dst, err
			}
			a.hint = hint
			return x.explainView(dst, a.readArgs, s, r, stages)
		}
	}
	return x.n.exec.Explain(x.op, append(dst, explainVersion...), q, x.verb, nil)
}

// explainVersion identifies the format of the output.
var explainVersion = value.Append(nil, "explainVersion", value.NewString("1"))

// slotVersion identifies the format of plans with stages that the 8.2 line's slot-based engine runs.
var slotVersion = value.Append(nil, "explainVersion", value.NewString("2"))

func (x *explanation) count(dst []byte) ([]byte, error) {
	ns, err := x.ns()
	if err != nil {
		return dst, err
	}
	q, skip, limit, err := x.n.parseCount(x.op, ns)
	if err != nil {
		return dst, err
	}
	q.Skip, q.Limit = skip, limit
	return x.plain(dst, q, viewquery.Count(x.op.Req.Body, skip, limit))
}

func (x *explanation) distinct(dst []byte) ([]byte, error) {
	ns, err := x.ns()
	if err != nil {
		return dst, err
	}
	q, _, err := x.n.parseDistinct(x.op, ns)
	if err != nil {
		return dst, err
	}
	return x.plain(dst, q, viewquery.Distinct(x.op.Req.Body))
}

// plain explains a count or a distinct, on a view as the pipeline that it becomes there. It releases the query's snapshot.
func (x *explanation) plain(dst []byte, q *exec.Query, onView []value.Value) ([]byte, error) {
	defer q.Snap.Release()
	x.shapeOf()
	if q.Coll == nil {
		if r, err := x.n.resolveFor(x.op, q.Snap, q.NS); err != nil {
			return dst, err
		} else if r != nil {
			return x.explainView(dst, plainRead(x.op), q.Snap, r, onView)
		}
	}
	return x.n.exec.Explain(x.op, append(dst, explainVersion...), q, x.verb, nil)
}

// explainView explains a command on a view by the pipeline that it translates to.
func (x *explanation) explainView(dst []byte, args readArgs, s *storage.Snapshot, r *namespace.Resolved, stages []value.Value) ([]byte, error) {
	a := &aggregation{n: x.n, op: x.op, ns: r.NS, snap: s, readArgs: args, explain: true}
	all := append(append([]value.Value(nil), r.Pipeline...), stages...)
	return x.pipeline(dst, a, value.NewArray(value.ArrayOf(all...)), r.Collation)
}

// write explains one statement: it finds the documents and changes none.
func (x *explanation) write(dst []byte) ([]byte, error) {
	st, err := write.ParseExplained(x.op)
	if err != nil {
		return dst, err
	}
	ns, err := x.ns()
	if err != nil {
		return dst, err
	}
	if err := write.CheckWritable(x.op, ns); err != nil {
		return dst, err
	}
	s, err := versionedSnapshot(x.n, x.op, ns)
	if err != nil {
		return dst, err
	}
	defer s.Release()
	q, e, err := x.n.writes.Explain(x.op, ns, st, s)
	if err != nil {
		return dst, err
	}
	return x.n.exec.Explain(x.op, append(dst, explainVersion...), q, x.verb, e)
}
