package exec

import (
	"math"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// planKnobs are the server parameters for planning and trials, and whether queries may run scripts.
type planKnobs struct {
	plan.Knobs
	works    int64   // internalQueryPlanEvaluationWorks
	share    float64 // internalQueryPlanEvaluationCollFraction
	results  int     // internalQueryPlanEvaluationMaxResults
	replan   float64 // internalQueryCacheEvictionRatio
	growth   float64 // internalQueryCacheWorksGrowthCoefficient
	force    bool    // internalQueryForceIntersectionPlans
	branches bool    // internalQueryPlanOrChildrenIndependently
	ties     bool    // internalQueryPlanTieBreakingWithIndexHeuristics

	noScripts bool // javascriptEnabled is false
}

// Watch keeps the knobs up to date with the server parameters, so that a query reads one pointer.
func (e *Executor) Watch(p *cluster.Params) {
	for _, name := range []string{
		"internalQueryPlannerEnableIndexIntersection", "internalQueryPlannerEnableHashIntersection", "internalQueryForceIntersectionPlans",
		"internalQueryPlanOrChildrenIndependently", "internalQueryEnumerationMaxIntersectPerAnd", "internalQueryEnumerationMaxOrSolutions",
		"internalQueryPlannerMaxIndexedSolutions", "internalQueryMaxScansToExplode", "internalQueryPlanEvaluationWorks",
		"internalQueryPlanEvaluationCollFraction", "internalQueryPlanEvaluationMaxResults", "internalQueryCacheEvictionRatio",
		"internalQueryCacheWorksGrowthCoefficient", "internalQueryPlanTieBreakingWithIndexHeuristics",
		"notablescan", "javascriptEnabled",
	} {
		p.OnChange(name, func(value.Value) { e.readKnobs(p) })
	}
}

func (e *Executor) readKnobs(p *cluster.Params) {
	float := func(name string) float64 { return p.Get(name).Value().AsFloat64() }
	e.knobs.Store(&planKnobs{
		Knobs: plan.Knobs{
			NoTableScan: p.Bool("notablescan"),
			Intersect:   p.Bool("internalQueryPlannerEnableIndexIntersection"), HashIntersect: p.Bool("internalQueryPlannerEnableHashIntersection"),
			Intersections: int(p.Int("internalQueryEnumerationMaxIntersectPerAnd")), Unions: int(p.Int("internalQueryEnumerationMaxOrSolutions")),
			Plans: int(p.Int("internalQueryPlannerMaxIndexedSolutions")), Explode: int(p.Int("internalQueryMaxScansToExplode")),
		},
		works: p.Int("internalQueryPlanEvaluationWorks"), share: float("internalQueryPlanEvaluationCollFraction"),
		results: int(p.Int("internalQueryPlanEvaluationMaxResults")), replan: float("internalQueryCacheEvictionRatio"),
		growth: float("internalQueryCacheWorksGrowthCoefficient"), force: p.Bool("internalQueryForceIntersectionPlans"),
		branches: p.Bool("internalQueryPlanOrChildrenIndependently"), ties: p.Bool("internalQueryPlanTieBreakingWithIndexHeuristics"),
		noScripts: !p.Bool("javascriptEnabled"),
	})
}

// trialLimits returns the maximum work of each plan in a trial, and the number of results that end the trial.
func (k *planKnobs) trialLimits(coll *catalog.Collection, limit int64) (works int64, results int) {
	works = max(k.works, int64(k.share*float64(coll.Counters.Records.Load())))
	results = k.results
	if limit > 0 {
		results = int(min(limit, int64(results)))
	}
	return works, results
}

// replanAt returns the work after which a cached plan whose trial took works is abandoned.
func (k *planKnobs) replanAt(works int64) int64 {
	return int64(math.Min(float64(max(works, 1))*k.replan, unboundedWork/2))
}
