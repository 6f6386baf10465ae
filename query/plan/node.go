package plan

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Stage is the kind of a plan's node.
type Stage uint8

// The stages.
const (
	EOF               Stage = iota // no results; Value is the reason, if set
	CollScan                       // Direction, Filter
	ClusteredScan                  // IDBounds, Direction, Filter
	IndexScan                      // Index, Bounds or Start and End, Direction, Filter on the key, Dedupe
	ExpressID                      // the document whose _id is Value; Filter is never set
	ExpressIndex                   // the first document whose only index field is Value
	Fetch                          // the document of a key; Filter
	Sort                           // SortPattern, Limit
	SortMerge                      // merges Inputs that are sorted by SortPattern; drops repeated records
	Or                             // union of Inputs; drops repeated records
	Limit                          // Limit
	Skip                           // Skip
	ShardingFilter                 // drops documents of other shards
	ProjectionCovered              // builds results from the key
	ProjectionSimple               // top-level inclusion or exclusion
	ProjectionDefault              // any projection
	SubPlan                        // marks an $or whose branches were planned individually
	Count                          // counts its input
	CountScan                      // counts keys between bounds, reading no documents
	FastCount                      // the collection's own count
	DistinctScan                   // one key for each value of the first field
	GeoNear2D                      // documents by distance from the origin of Near, in the plane; Index
	GeoNear2DSphere                // the same on the sphere
	TextMatch                      // documents that may match a $text query; Index
	AndSorted                      // the records that all Inputs have; each is in order of RecordId
	AndHash                        // the records that all Inputs have, in the order of the last
)

var stageNames = [...]string{"EOF", "COLLSCAN", "CLUSTERED_IXSCAN", "IXSCAN", "EXPRESS_IXSCAN", "EXPRESS_IXSCAN", "FETCH", "SORT", "SORT_MERGE",
	"OR", "LIMIT", "SKIP", "SHARDING_FILTER", "PROJECTION_COVERED", "PROJECTION_SIMPLE", "PROJECTION_DEFAULT", "SUBPLAN", "COUNT",
	"COUNT_SCAN", "RECORD_STORE_FAST_COUNT", "DISTINCT_SCAN", "GEO_NEAR_2D", "GEO_NEAR_2DSPHERE", "TEXT_MATCH",
	"AND_SORTED", "AND_HASH"}

func (s Stage) String() string { return stageNames[s] }

// Node is one stage. Which fields are used is documented at Stage.
type Node struct {
	Stage  Stage
	Inputs []*Node
	Filter *match.Matcher

	Index     *Index
	Bounds    []FieldBounds // one for each field of the key; a wildcard field has two
	Start     []byte        // min(): scan from this key, nil for the beginning
	End       []byte        // max(): up to this key, exclusive
	Direction int           // 1 or -1
	Dedupe    bool          // one document may have several keys within the bounds

	Near        *match.Node // GeoNear2D, GeoNear2DSphere
	Value       value.Value // ExpressID, ExpressIndex, EOF
	IDBounds    Intervals   // ClusteredScan; nil for everything
	Times       *TimeRange  // CollScan of the oplog; nil for everything
	Clustered   bool        // ExpressID: there is no _id index
	SortPattern []byte
	SortFields  []SortField
	Limit, Skip int64
	Projection  *Projection // also ExpressID, if no stage above has it
}

// FieldBounds are the bounds of one field of a key.
type FieldBounds struct {
	Path      string
	Desc      bool // in the index, not the scan
	Intervals Intervals
}

// input returns the only child.
func (n *Node) input() *Node { return n.Inputs[0] }

func over(s Stage, in *Node) *Node { return &Node{Stage: s, Inputs: []*Node{in}} }

// Leaves calls f for each stage that has no inputs.
func (n *Node) Leaves(f func(*Node)) {
	if len(n.Inputs) == 0 {
		f(n)
	}
	for _, in := range n.Inputs {
		in.Leaves(f)
	}
}
