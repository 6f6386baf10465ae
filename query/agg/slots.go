package agg

// ClassicOnly are the expression operators that the 8.2 line's slot-based engine does not evaluate: a $group with one of them is
// run by the classic engine.
var ClassicOnly = map[string]bool{
	"$convert": true, "$toInt": true, "$toLong": true, "$toDouble": true, "$toDecimal": true, "$toString": true, "$toBool": true,
	"$toDate": true, "$toObjectId": true, "$toUUID": true,
	"$function": true, "$_internalJsEmit": true, "$meta": true, "$reduce": true, "$zip": true, "$replaceAll": true,
	"$median": true, "$percentile": true, "$toHashedIndexKey": true,
}

// StoreGroups counts the leading $group stages that the 8.2 line runs in its slot-based engine, below the pipeline.
func (p *Pipeline) StoreGroups() int {
	for i, s := range p.stages {
		if g, ok := s.(*groupStage); !ok || !g.storeRuns() {
			return i
		}
	}
	return len(p.stages)
}

func (s *groupStage) storeRuns() bool {
	if s.merging || s.id.Uses(ClassicOnly) {
		return false
	}
	for _, g := range s.fields {
		switch g.acc.Name {
		case "$accumulator", "$_internalJsReduce", "$percentile", "$median":
			return false
		}
		for _, e := range g.acc.Exprs() {
			if e.Uses(ClassicOnly) {
				return false
			}
		}
		if by := g.acc.Sort(); by != nil {
			for _, part := range by.Parts {
				if part.Meta != "" {
					return false
				}
			}
		}
	}
	return true
}
