package plan

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Query is a query to be planned.
type Query struct {
	Filter *match.Matcher // nil: everything
	Sort   []SortField
	// SortPattern is the sort as the client wrote it, for explain.
	SortPattern []byte
	Projection  *Projection // nil: whole documents
	Skip, Limit int64       // 0: none

	Hint     value.Value // index name or key pattern, or {$natural: ±1}; Missing for none
	Min, Max []byte

	CollationDoc []byte // in full; nil for simple
	Collator     value.Collator

	// ShardFilter adds a stage that drops orphans above the scan. ShardKey has the paths by which that stage decides:
	// an index that holds them needs no documents for it. Empty if they are not known.
	ShardFilter bool
	ShardKey    []string

	// Count means that only the number of results is needed. Distinct is the path whose values alone are needed; empty for none.
	Count    bool
	Distinct string

	NoExpress bool // the caller needs the stages of the ordinary plan (tailable, returnKey, showRecordId, …)
	// Allowed restricts the indexes by name or key pattern (index filters, query settings); nil allows all.
	Allowed func(*Index) bool

	// Knobs are the server parameters in force; nil for their defaults.
	Knobs *Knobs
}

// Knobs are the server parameters for planning.
type Knobs struct {
	NoTableScan   bool // notablescan
	Intersect     bool // internalQueryPlannerEnableIndexIntersection
	HashIntersect bool // internalQueryPlannerEnableHashIntersection
	Intersections int  // internalQueryEnumerationMaxIntersectPerAnd
	Unions        int  // internalQueryEnumerationMaxOrSolutions
	Plans         int  // internalQueryPlannerMaxIndexedSolutions
	Explode       int  // internalQueryMaxScansToExplode
}

var defaultKnobs = Knobs{Intersect: true, Intersections: 3, Unions: 10, Plans: 64, Explode: 200}

func (q *Query) knobs() *Knobs {
	if q.Knobs == nil {
		return &defaultKnobs
	}
	return q.Knobs
}

// SortField is one field of a sort; Meta is set for {$meta: …}, which no index provides.
type SortField struct {
	Path string
	Desc bool
	Meta bool
}

// Projection describes a projection as far as the planner must know it.
type Projection struct {
	Raw       []byte   // for explain
	Paths     []string // fields needed
	Whole     bool     // needs the entire document
	Simple    bool     // top-level inclusion or exclusion, no expressions
	Inclusion bool
}

// ParseSort turns a validated sort specification into fields; natural is ±1 for {$natural: ±1}, else 0.
func ParseSort(doc []byte) (fields []SortField, natural int) {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return fields, natural
		}
		if string(k) == "$natural" {
			natural = 1
			if v.AsFloat64() < 0 {
				natural = -1
			}
			return nil, natural
		}
		fields = append(fields, SortField{Path: string(k), Desc: v.T.Numeric() && v.AsFloat64() < 0, Meta: v.T == value.Document})
	}
}
