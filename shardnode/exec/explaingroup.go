package exec

import (
	"fmt"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
)

// StoreGroup is a $group above a query that explain shows as part of the query's plan, as the 8.2 line does with those that
// its slot-based engine runs. The figures are those of the run, if there was one.
type StoreGroup struct {
	Returned int64
	Took     time.Duration
	Spill    agg.SpillStats
}

// CanGroup reports whether the 8.2 line runs a $group as part of such a plan: not if it is a lookup of one document by its _id, a
// DISTINCT_SCAN, which yields the groups by itself, or a plan on geometries or text.
func (p *Explained) CanGroup() bool {
	if p.q.Coll == nil {
		return false
	}
	if m := p.q.Matcher; m != nil && (m.Classic(agg.ClassicOnly) || m.Root().Kind == match.Eq && m.Root().Path == "_id") {
		return false
	}
	fits := true
	p.c.plan.Leaves(func(n *plan.Node) {
		switch n.Stage {
		case plan.ExpressID, plan.ExpressIndex, plan.DistinctScan, plan.GeoNear2D, plan.GeoNear2DSphere, plan.TextMatch:
			fits = false
		}
	})
	return fits
}

// SetGroups sets the $group stages on top of the query, from the bottom.
func (p *Explained) SetGroups(groups []*StoreGroup) {
	p.groups = groups
	p.ids = map[*plan.Node]int32{}
	p.number(p.grouped())
}

// grouped returns the plan below the groups. They read the fields that they need, so no projection remains.
func (p *Explained) grouped() *plan.Node {
	n := p.c.plan
	for n.Stage == plan.ProjectionSimple || n.Stage == plan.ProjectionDefault {
		n = n.Inputs[0]
	}
	return n
}

// number numbers the stages of a plan, inputs first.
func (p *Explained) number(n *plan.Node) {
	for _, in := range n.Inputs {
		p.number(in)
	}
	p.ids[n] = int32(len(p.ids) + 1)
}

// groupID returns the stage number of group i.
func (p *Explained) groupID(i int) value.Value { return value.NewInt32(int32(len(p.ids) + 1 + i)) }

// groupPlan is queryPlanner.winningPlan of a query with groups on top.
func (p *Explained) groupPlan() []byte {
	tree := p.grouped().QueryPlan(p.ids)
	for i := range p.groups {
		tree = value.Doc(value.F("stage", value.NewString("GROUP")), value.F("planNodeId", p.groupID(i)), value.F("inputStage", value.NewDocument(tree)))
	}
	cached := p.sig != "" && plan.WithoutSubplan(p.c.plan).Signature() == p.sig
	return value.Doc(value.F("isCached", value.NewBool(cached)), value.F("queryPlan", value.NewDocument(tree)),
		value.F("slotBasedPlan", value.NewDocument(value.Doc(value.F("slots", value.NewString("")), value.F("stages", value.NewString(p.stageText()))))))
}

// stageText lists the stages from the top, a line each, indented by their depth.
func (p *Explained) stageText() string {
	var b strings.Builder
	depth := 0
	line := func(id int32, name string) {
		fmt.Fprintf(&b, "%s[%d] %s\n", strings.Repeat("    ", depth), id, name)
	}
	for i := len(p.groups) - 1; i >= 0; i-- {
		line(p.groupID(i).Int32(), "group")
		depth++
	}
	var walk func(n *plan.Node)
	walk = func(n *plan.Node) {
		name := slotName(n)
		if n.Index != nil {
			name += fmt.Sprintf(" %q", n.Index.Name)
		}
		line(p.ids[n], name)
		depth++
		for _, in := range n.Inputs {
			walk(in)
		}
		depth--
	}
	walk(p.grouped())
	return b.String()
}

// slotName returns a stage's name in the slot-based engine's part of explain.
func slotName(n *plan.Node) string {
	switch n.Stage {
	case plan.CollScan, plan.ClusteredScan:
		return "scan"
	case plan.IndexScan:
		return "ixseek"
	case plan.Fetch:
		return "nlj"
	case plan.SortMerge:
		return "smerge"
	case plan.Or, plan.SubPlan:
		return "union"
	case plan.ShardingFilter:
		return "filter"
	case plan.ProjectionCovered, plan.ProjectionSimple, plan.ProjectionDefault:
		return "project"
	case plan.EOF:
		return "coscan"
	}
	return strings.ToLower(n.Stage.String())
}

// groupStages is executionStats.executionStages of a query with groups on top.
func (p *Explained) groupStages() []byte {
	tree := p.slots(p.grouped())
	for i, g := range p.groups {
		dst, m := value.Begin(nil)
		dst = appendSlot(dst, "group", p.groupID(i), g.Returned, g.Took)
		dst = value.Append(dst, "usedDisk", value.NewBool(g.Spill.Spills > 0))
		dst = value.Append(dst, "spills", value.NewInt64(g.Spill.Spills))
		dst = value.Append(dst, "spilledBytes", value.NewInt64(g.Spill.Bytes))
		dst = value.Append(dst, "spilledRecords", value.NewInt64(g.Spill.Records))
		dst = value.Append(dst, "spilledDataStorageSize", value.NewInt64(g.Spill.Bytes))
		dst = value.Append(dst, "inputStage", value.NewDocument(tree))
		tree = value.End(dst, m)
	}
	return tree
}

func appendSlot(dst []byte, name string, id value.Value, returned int64, took time.Duration) []byte {
	dst = value.Append(dst, "stage", value.NewString(name))
	dst = value.Append(dst, "planNodeId", id)
	dst = appendCount(dst, "nReturned", returned)
	dst = value.Append(dst, "executionTimeMillisEstimate", value.NewInt64(took.Milliseconds()))
	for _, n := range []string{"opens", "closes"} {
		dst = value.Append(dst, n, value.NewInt32(1))
	}
	for _, n := range []string{"saveState", "restoreState"} {
		dst = value.Append(dst, n, value.NewInt32(0))
	}
	return value.Append(dst, "isEOF", value.NewInt32(1))
}

// slots writes a stage of the plan and those below it.
func (p *Explained) slots(n *plan.Node) []byte {
	st, id := p.exec.stats(n), value.NewInt32(p.ids[n])
	dst, m := value.Begin(nil)
	dst = appendSlot(dst, slotName(n), id, st.advanced, p.exec.took(n))
	switch n.Stage {
	case plan.CollScan, plan.ClusteredScan:
		dst = appendCount(dst, "numReads", st.docs)
	case plan.IndexScan:
		dst = value.Append(dst, "indexName", value.NewString(n.Index.Name))
		dst = appendCount(dst, "keysExamined", st.keys)
		dst = appendCount(dst, "seeks", st.seeks)
		dst = appendCount(dst, "numReads", st.keys)
	case plan.Fetch:
		seek, sm := value.Begin(nil)
		seek = appendSlot(seek, "seek", id, st.docs, 0)
		seek = value.End(appendCount(seek, "numReads", st.docs), sm)
		dst = value.Append(dst, "outerStage", value.NewDocument(p.slots(n.Inputs[0])))
		dst = value.Append(dst, "innerStage", value.NewDocument(seek))
		return value.End(dst, m)
	case plan.Sort:
		dst = p.exec.appendOwn(n, dst)
	}
	switch len(n.Inputs) {
	case 0:
	case 1:
		dst = value.Append(dst, "inputStage", value.NewDocument(p.slots(n.Inputs[0])))
	default:
		var list []value.Value
		for _, in := range n.Inputs {
			list = append(list, value.NewDocument(p.slots(in)))
		}
		dst = value.Append(dst, "inputStages", value.NewArray(value.ArrayOf(list...)))
	}
	return value.End(dst, m)
}
