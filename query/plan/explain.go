package plan

import (
	"encoding/hex"
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
)

// Figures appends what execution adds to a stage in executionStats: first, with own false, the fields that all stages
// have, after stage and filter; then, with own true, the fields of this kind of stage, before its inputs.
type Figures func(n *Node, dst []byte, own bool) []byte

// Explain returns the plan as explain shows it, with figures if extra is not nil.
func (n *Node) Explain(extra Figures) []byte { return printer{figures: extra}.stage(n) }

// WinningPlan is Explain with isCached as first field, as in queryPlanner.winningPlan.
func (n *Node) WinningPlan(cached bool) []byte { return n.Stages(cached, nil) }

// Stages is WinningPlan with figures, as in executionStages.
func (n *Node) Stages(cached bool, extra Figures) []byte {
	dst, mark := value.Begin(nil)
	dst = value.Append(dst, "isCached", value.NewBool(cached))
	dst = printer{figures: extra}.append(dst, n)
	return value.End(dst, mark)
}

// QueryPlan returns the plan as explain shows it below a $group that the store runs: each stage has its number
// from ids, and a collection scan shows its filter even if it is empty.
func (n *Node) QueryPlan(ids map[*Node]int32) []byte { return printer{ids: ids}.stage(n) }

// printer writes plans for explain.
type printer struct {
	figures Figures         // nil for none
	ids     map[*Node]int32 // nil for none
}

func (p printer) stage(n *Node) []byte {
	dst, mark := value.Begin(nil)
	return value.End(p.append(dst, n), mark)
}

func (p printer) append(dst []byte, n *Node) []byte {
	name := n.Stage.String()
	if n.Stage == ExpressID && n.Clustered {
		name = "EXPRESS_CLUSTERED_IXSCAN"
	}
	dst = value.Append(dst, "stage", value.NewString(name))
	if p.ids != nil {
		dst = value.Append(dst, "planNodeId", value.NewInt32(p.ids[n]))
	}
	if n.Filter != nil {
		dst = value.Append(dst, "filter", value.NewDocument(n.Filter.Serialize()))
	} else if p.ids != nil && n.Stage == CollScan {
		dst = value.Append(dst, "filter", value.NewDocument(value.Doc()))
	}
	if p.figures != nil {
		dst = p.figures(n, dst, false)
	}
	dst = n.explainOwn(dst)
	if p.figures != nil {
		dst = p.figures(n, dst, true)
	}
	switch len(n.Inputs) {
	case 0:
		return dst
	case 1:
		switch n.Stage {
		case Or, SortMerge, AndSorted, AndHash, GeoNear2D, GeoNear2DSphere: // they may have several
		default:
			inner, mark := value.BeginKey(dst, value.Document, "inputStage")
			return value.End(p.append(inner, n.input()), mark)
		}
	}
	docs := make([]value.Value, len(n.Inputs))
	for i, in := range n.Inputs {
		docs[i] = value.NewDocument(p.stage(in))
	}
	return value.Append(dst, "inputStages", value.NewArray(value.ArrayOf(docs...)))
}

func (n *Node) explainOwn(dst []byte) []byte {
	switch n.Stage {
	case EOF:
		why := n.Value
		if why.IsMissing() {
			why = value.NewString("predicateEvalsToFalse")
		}
		dst = value.Append(dst, "type", why)
	case CollScan:
		if n.Times != nil {
			dst = n.Times.explain(dst)
		}
		dst = value.Append(dst, "direction", value.NewString(direction(n.Direction)))
	case ClusteredScan:
		dst = value.Append(dst, "direction", value.NewString(direction(n.Direction)))
		if len(n.IDBounds) > 0 {
			dst = value.Append(dst, "minRecord", n.IDBounds[0].Lo)
			dst = value.Append(dst, "maxRecord", n.IDBounds[len(n.IDBounds)-1].Hi)
		}
	case ExpressID, ExpressIndex:
		if n.Index != nil {
			dst = value.Append(dst, "keyPattern", value.NewString(bsontext.Doc(n.Index.KeyPattern)))
			dst = value.Append(dst, "indexName", value.NewString(n.Index.Name))
		}
		if p := n.Projection; p != nil {
			dst = value.Append(dst, "projection", value.NewDocument(p.Raw))
			covered := n.Index != nil && p.Simple && p.Inclusion && !p.Whole && len(p.Paths) == 1 && p.Paths[0] == "_id"
			dst = value.Append(dst, "projectionCovered", value.NewBool(covered))
		}
	case IndexScan, CountScan, DistinctScan:
		dst = n.explainIndex(dst)
	case GeoNear2D, GeoNear2DSphere, TextMatch:
		dst = value.Append(dst, "keyPattern", value.NewDocument(n.Index.KeyPattern))
		dst = value.Append(dst, "indexName", value.NewString(n.Index.Name))
		dst = value.Append(dst, "indexVersion", value.NewInt32(int32(n.Index.Version)))
	case Sort:
		dst = value.Append(dst, "sortPattern", value.NewDocument(n.SortPattern))
		dst = value.Append(dst, "memLimit", value.NewInt32(100<<20))
		if n.Limit > 0 {
			dst = value.Append(dst, "limitAmount", value.NewInt64(n.Limit))
		}
		kind := "simple"
		if s := n.input().Stage; s == IndexScan || s == SortMerge || s == Or {
			kind = "default"
		}
		dst = value.Append(dst, "type", value.NewString(kind))
	case SortMerge:
		dst = value.Append(dst, "sortPattern", value.NewDocument(n.SortPattern))
	case Limit:
		dst = value.Append(dst, "limitAmount", number(n.Limit))
	case Skip:
		dst = value.Append(dst, "skipAmount", number(n.Skip))
	case ProjectionCovered, ProjectionSimple, ProjectionDefault:
		dst = value.Append(dst, "transformBy", value.NewDocument(n.Projection.Raw))
	}
	return dst
}

func number(n int64) value.Value {
	if n == int64(int32(n)) {
		return value.NewInt32(int32(n))
	}
	return value.NewInt64(n)
}

func direction(d int) string {
	if d < 0 {
		return "backward"
	}
	return "forward"
}

func (n *Node) explainIndex(dst []byte) []byte {
	x := n.Index
	dst = value.Append(dst, "keyPattern", value.NewDocument(n.keyPattern()))
	dst = value.Append(dst, "indexName", value.NewString(x.Name))
	if x.CollationDoc != nil {
		dst = value.Append(dst, "collation", value.NewDocument(x.CollationDoc))
	}
	dst = value.Append(dst, "isMultiKey", value.NewBool(x.Multikey))
	if x.MultikeyPaths != nil || !x.Multikey {
		dst = value.Append(dst, "multiKeyPaths", value.NewDocument(n.multikeyPaths()))
	}
	dst = value.Append(dst, "isUnique", value.NewBool(x.Unique || x.IsID))
	dst = value.Append(dst, "isSparse", value.NewBool(x.Sparse))
	dst = value.Append(dst, "isPartial", value.NewBool(x.Partial != nil))
	version := x.Version
	if version == 0 {
		version = 2
	}
	dst = value.Append(dst, "indexVersion", value.NewInt32(int32(version)))
	if n.Stage == CountScan {
		return value.Append(dst, "indexBounds", value.NewDocument(n.countBounds()))
	}
	dst = value.Append(dst, "direction", value.NewString(direction(n.Direction)))
	return value.Append(dst, "indexBounds", value.NewDocument(n.bounds()))
}

// keyPattern returns the index's key pattern; for a wildcard scan, with the path that the wildcard represents.
func (n *Node) keyPattern() []byte {
	if n.Index.Kind != Wildcard {
		return n.Index.KeyPattern
	}
	dst, mark := value.Begin(nil)
	for i := range n.Bounds {
		b := &n.Bounds[i]
		dir := int32(1)
		if b.Desc {
			dir = -1
		}
		if b.Path != "" {
			dst = value.Append(dst, b.Path, value.NewInt32(dir))
		}
	}
	return value.End(dst, mark)
}

func (n *Node) multikeyPaths() []byte {
	dst, mark := value.Begin(nil)
	for i := range n.Bounds {
		b := &n.Bounds[i]
		var paths []value.Value
		if b.Path != "$_path" && n.Index.MultikeyPaths != nil {
			mask := n.Index.MultikeyPaths[n.Index.patternAt(i)]
			at := 0
			for k := range strings.Count(b.Path, ".") + 1 {
				if next := strings.IndexByte(b.Path[at:], '.'); next >= 0 {
					at += next
				} else {
					at = len(b.Path)
				}
				if mask>>uint(k)&1 != 0 {
					paths = append(paths, value.NewString(b.Path[:at]))
				}
				at = min(at+1, len(b.Path))
			}
		}
		dst = value.Append(dst, b.Path, value.NewArray(value.ArrayOf(paths...)))
	}
	return value.End(dst, mark)
}

// bounds prints the intervals of each field in the order of the scan.
func (n *Node) bounds() []byte {
	dst, mark := value.Begin(nil)
	if n.Start != nil || n.End != nil {
		if n.Start != nil {
			dst = value.Append(dst, "startKey", value.NewDocument(n.Start))
		}
		if n.End != nil {
			dst = value.Append(dst, "endKey", value.NewDocument(n.End))
		}
		return value.End(dst, mark)
	}
	for i := range n.Bounds {
		b := &n.Bounds[i]
		back := b.Desc != (n.Direction < 0)
		texts := make([]value.Value, 0, len(b.Intervals))
		for k := range b.Intervals {
			v := &b.Intervals[k]
			if back {
				v = &b.Intervals[len(b.Intervals)-1-k]
			}
			texts = append(texts, value.NewString(v.text(back, n.Index.Collator != nil && b.Path != "$_path")))
		}
		dst = value.Append(dst, b.Path, value.NewArray(value.ArrayOf(texts...)))
	}
	return value.End(dst, mark)
}

// text prints an interval: [1, 5) forward, (5, 1] backward.
func (i *Interval) text(back, collated bool) string {
	lo, hi := end(i.Lo, collated), end(i.Hi, collated)
	open, shut := "(", ")"
	if !back && i.LoInc || back && i.HiInc {
		open = "["
	}
	if i.HiInc && !back || back && i.LoInc {
		shut = "]"
	}
	if back {
		return open + hi + ", " + lo + shut
	}
	return open + lo + ", " + hi + shut
}

// end prints one end of an interval; strings of an index with a collation are collation keys.
func end(v value.Value, collated bool) string {
	if collated && v.T == value.String && len(v.Bytes()) > 0 {
		return "CollationKey(0x" + hex.EncodeToString(v.Bytes()) + ")"
	}
	return bsontext.Value(v)
}

// countBounds prints the one range of a COUNT_SCAN as its first and last key.
func (n *Node) countBounds() []byte {
	start, sm := value.Begin(nil)
	stop, em := value.Begin(nil)
	startInc, stopInc := true, true
	for i := range n.Bounds {
		b := &n.Bounds[i]
		v := Interval{}
		if len(b.Intervals) > 0 {
			v = b.Intervals[0]
		}
		if b.Desc {
			v = Interval{v.Hi, v.Lo, v.HiInc, v.LoInc}
		}
		start, stop = value.Append(start, b.Path, v.Lo), value.Append(stop, b.Path, v.Hi)
		startInc, stopInc = startInc && v.LoInc, stopInc && v.HiInc
	}
	return value.Doc(
		value.F("startKey", value.NewDocument(value.End(start, sm))), value.F("startKeyInclusive", value.NewBool(startInc)),
		value.F("endKey", value.NewDocument(value.End(stop, em))), value.F("endKeyInclusive", value.NewBool(stopInc)))
}
