package agg

import (
	"context"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// IndexChecker is an optional interface of a Host: it reports whether a collection has an index that finds documents by
// one field. If there is none, $lookup reads the other collection once and keeps it in a table, instead of reading it for
// each document.
type IndexChecker interface {
	Indexed(ns Namespace, path string, collation []byte) bool
}

// joinTable is another collection in memory, by the values of the foreign field. It returns candidates: a document is
// entered under every value by which it might match.
type joinTable struct {
	docs  [][]byte
	byKey map[string][]int32
	coll  value.Collator
	key   []byte
}

// tryTable makes the table of a join without a sub-pipeline, nil if there is an index or not enough memory.
func (l *lookupSource) tryTable(ctx context.Context, ns Namespace) (*joinTable, error) {
	checker, ok := l.x.host.(IndexChecker)
	if !ok || checker.Indexed(ns, l.s.foreign, l.x.opts.Collation) {
		return nil, nil
	}
	src, err := l.x.host.Find(ctx, ns, Query{Collation: l.x.opts.Collation})
	if err != nil {
		return nil, err
	}
	defer src.Close()
	t := &joinTable{byKey: map[string][]int32{}, coll: l.x.opts.collator()}
	path := strings.Split(l.s.foreign, ".")
	var held int64
	for {
		d, ok, err := src.Next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			return t, nil
		}
		if held += int64(len(d.Raw)) + 96; held > l.x.opts.limit() {
			return nil, nil
		}
		t.docs = append(t.docs, append([]byte(nil), d.Raw...))
		t.spread(value.NewDocument(t.docs[len(t.docs)-1]), path)
	}
}

// add enters the last document under a value.
func (t *joinTable) add(v value.Value) {
	if v.IsNullish() {
		v = value.NewNull()
	}
	at := int32(len(t.docs) - 1)
	t.key = value.AppendGroupKey(t.key[:0], v, t.coll)
	list := t.byKey[string(t.key)]
	if len(list) == 0 || list[len(list)-1] != at {
		t.byKey[string(t.key)] = append(list, at)
	}
}

// spread enters the last document under all values that its path leads to, and under null wherever the path ends early.
func (t *joinTable) spread(v value.Value, path []string) {
	if len(path) == 0 {
		t.add(v)
		if v.T == value.Array {
			for it := value.Walk(v.Doc()); ; {
				_, e, ok := it.Next()
				if !ok {
					return
				}
				t.add(e)
			}
		}
		return
	}
	switch v.T {
	case value.Document:
		t.spread(value.Lookup(v.Doc(), path[0]), path[1:])
	case value.Array:
		t.add(value.NewNull())
		if e := value.Lookup(v.Doc(), path[0]); e.T != value.Missing {
			t.spread(e, path[1:])
		}
		for it := value.Walk(v.Doc()); ; {
			_, e, ok := it.Next()
			if !ok {
				return
			}
			if e.T == value.Document || e.T == value.Array {
				t.spread(e, path)
			}
		}
	default:
		t.add(value.NewNull())
	}
}

// candidates returns the documents that might equal v or one of its elements, in the collection's order.
func (t *joinTable) candidates(v value.Value) []int32 {
	if v.T != value.Array {
		return t.at(v)
	}
	elems := value.Values(v.Doc())
	if len(elems) == 0 {
		return t.at(value.NewNull())
	}
	var out []int32
	for _, e := range elems {
		out = append(out, t.at(e)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (t *joinTable) at(v value.Value) []int32 {
	if v.IsNullish() {
		v = value.NewNull()
	}
	t.key = value.AppendGroupKey(t.key[:0], v, t.coll)
	return t.byKey[string(t.key)]
}

// tableSource yields the candidates that match the join's filter.
type tableSource struct {
	t    *joinTable
	list []int32
	m    *match.Matcher
}

func (t *joinTable) find(v value.Value, filter []byte) (Source, error) {
	s := &tableSource{t: t, list: t.candidates(v)}
	if len(s.list) == 0 {
		return s, nil
	}
	var err error
	s.m, err = match.Compile(filter, &match.Options{Collator: t.coll})
	return s, err
}

func (s *tableSource) Next(context.Context) (Doc, bool, error) {
	for len(s.list) > 0 {
		d := s.t.docs[s.list[0]]
		s.list = s.list[1:]
		if hit, err := s.m.Match(d); err != nil || hit {
			return Doc{Raw: d}, err == nil, err
		}
	}
	return Doc{}, false, nil
}

func (s *tableSource) Close() {}
