package plan

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// minMax scans the hinted index between two keys.
func (p *planner) minMax() (*Result, error) {
	q := p.q
	if p.hint == nil {
		return nil, mongoerr.New(51173, "When using min()/max() a hint of which index to use must be provided")
	}
	if p.hint.Kind != BTree {
		return nil, mongoerr.New(51174, "min and max may not be used with an index of this kind")
	}
	if !sameCollation(q.CollationDoc, p.hint.CollationDoc) {
		for _, d := range [][]byte{q.Min, q.Max} {
			for _, v := range value.Elements(d) {
				if v.T == value.String {
					return nil, mongoerr.New(51174, "The index's collation differs from that of the query, whose min or max holds strings")
				}
			}
		}
	}
	for _, d := range [][]byte{q.Min, q.Max} {
		if d != nil && !sameFields(d, p.hint) {
			return nil, mongoerr.New(51174, "The index chosen is not compatible with min/max")
		}
	}
	if q.Min != nil && q.Max != nil && compareKeys(q.Min, q.Max, p.hint) >= 0 {
		return nil, mongoerr.New(51175, "The value provided for min must be less than the value provided for max")
	}
	scan := &Node{Stage: IndexScan, Index: p.hint, Start: q.Min, End: q.Max, Direction: 1, Dedupe: p.hint.Multikey}
	for _, f := range p.hint.Fields {
		scan.Bounds = append(scan.Bounds, FieldBounds{Path: f.Path, Desc: f.Desc, Intervals: everything()})
	}
	sorted := len(q.Sort) > 0 && sameCollation(q.CollationDoc, p.hint.CollationDoc) && provides(scan, q.Sort, nil) != 0
	if sorted {
		scan.Direction = provides(scan, q.Sort, nil)
	}
	if q.Filter == nil && !q.ShardFilter && (sorted || len(q.Sort) == 0) && p.canCover(scan) && !q.Count {
		return p.only(p.finishSorted(scan, sorted, true)), nil
	}
	f := over(Fetch, scan)
	if q.Filter != nil {
		f.Filter = q.Filter
	}
	return p.only(p.finishSorted(f, sorted, false)), nil
}

func sameFields(d []byte, x *Index) bool {
	i := 0
	for k := range value.Elements(d) {
		if i == len(x.Fields) || x.Fields[i].Path != k {
			return false
		}
		i++
	}
	return i == len(x.Fields)
}

// compareKeys orders two keys as the index does.
func compareKeys(a, b []byte, x *Index) int {
	av, bv := value.Values(a), value.Values(b)
	for i, f := range x.Fields {
		if c := value.CompareCollated(av[i], bv[i], x.Collator); c != 0 {
			if f.Desc {
				return -c
			}
			return c
		}
	}
	return 0
}
