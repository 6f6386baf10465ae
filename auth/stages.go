package auth

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// StageRule is what a stage requires.
type StageRule struct {
	// source means that the stage begins a pipeline without reading the pipeline's collection.
	source bool
	check  func(p *pipeline, arg value.Value) bool
}

// pipeline is one that is being checked.
type pipeline struct {
	g        *Grants
	r        *Request
	db, coll string
	depth    int
}

// maxDepth limits pipelines within pipelines; the language's own limit is far lower.
const maxDepth = 64

var (
	plain         = &StageRule{}
	source        = &StageRule{source: true}
	internalStage = &StageRule{check: func(p *pipeline, _ value.Value) bool { return p.g.AllowCluster(actInternal) }}
)

// onCollection returns the rule of a source that reports on the pipeline's collection.
func onCollection(actions string) *StageRule {
	need := Actions(actions)
	return &StageRule{source: true, check: func(p *pipeline, _ value.Value) bool { return p.g.Allow(need, p.db, p.coll) }}
}

func onTheCluster(actions string) *StageRule {
	need := Actions(actions)
	return &StageRule{source: true, check: func(p *pipeline, _ value.Value) bool { return p.g.AllowCluster(need) }}
}

// stageRules is the table of actions by stage. A stage without a row is refused; a test lists every stage without one.
var stageRules map[string]*StageRule

func init() {
	stageRules = map[string]*StageRule{
		"$collStats": onCollection("collStats"), "$indexStats": onCollection("indexStats"), "$planCacheStats": onCollection("planCacheRead"),
		"$listSearchIndexes": onCollection("listSearchIndexes"), "$documents": source, "$search": plain, "$searchMeta": plain, "$searchBeta": plain, "$vectorSearch": plain,
		"$currentOp": {source: true, check: checkCurrentOpStage}, "$listSessions": {source: true, check: checkListSessions},
		"$listLocalSessions": {source: true, check: checkListSessions}, "$listSampledQueries": onTheCluster("listSampledQueries"),
		"$querySettings": onTheCluster("querySettings"), "$queryStats": {source: true, check: checkQueryStats},
		"$listCatalog": {source: true, check: checkListCatalog}, "$listClusterCatalog": {source: true, check: checkListClusterCatalog},
		"$shardedDataDistribution": onTheCluster("shardedDataDistribution"), "$operationMetrics": onTheCluster("operationMetrics"),
		"$changeStream": {source: true, check: checkChangeStream}, "$changeStreamSplitLargeEvent": plain,
		"$lookup": {check: checkLookup}, "$graphLookup": {check: checkLookup}, "$unionWith": {check: checkUnion}, "$facet": {check: checkFacet},
		"$rankFusion": {check: checkFusion}, "$scoreFusion": {check: checkFusion}, "$out": {check: checkOut}, "$merge": {check: checkMergeStage},
		"$_internalPackMetadata": internalStage, "$_internalTakeMetadata": internalStage, "$_internalUnpackBucket": internalStage,
	}
	for _, name := range strings.Fields(`$addFields $bucket $bucketAuto $count $densify $fill $geoNear $group $limit $match $project $redact
		$replaceRoot $replaceWith $sample $score $set $setWindowFields $skip $sort $sortByCount $unset $unwind`) {
		stageRules[name] = plain
	}
}

// StageRuleFor finds the rule of a stage; nil if there is none.
func StageRuleFor(name string) *StageRule { return stageRules[name] }

// pipelineAllowed reports whether all stages of a pipeline are allowed, and reading the collection that it is on.
func pipelineAllowed(g *Grants, r *Request, db, coll string, stages []byte) bool {
	p := pipeline{g: g, r: r, db: db, coll: coll}
	return p.allowed(stages)
}

func (p *pipeline) allowed(stages []byte) bool {
	if p.depth++; p.depth > maxDepth {
		return false
	}
	defer func() { p.depth-- }()
	reads := p.coll != ""
	for i, v := range value.Values(stages) {
		it := value.Walk(v.Doc())
		name, arg, ok := it.Next()
		if v.T != value.Document || !ok {
			continue // the command refuses it
		}
		rule := stageRules[string(name)]
		if rule == nil {
			// An unknown stage name is reported by the command; but clients must not be able to probe for
			// internal stages.
			if strings.HasPrefix(string(name), "$_") && !p.g.AllowCluster(actInternal) {
				return false
			}
			continue
		}
		if i == 0 && rule.source {
			reads = false
		}
		if rule.check != nil && !rule.check(p, arg) {
			return false
		}
	}
	return !reads || p.g.Allow(actFind, p.db, p.coll)
}

// on checks a pipeline on another collection.
func (p *pipeline) on(db, coll string, stages []byte) bool {
	sub := pipeline{g: p.g, r: p.r, db: db, coll: coll, depth: p.depth}
	return sub.allowed(stages)
}

// target reads a stage's collection argument: a name in this database, or a document with database and collection.
func (p *pipeline) target(v value.Value) (db, coll string) {
	if v.T == value.Document {
		name, of := p.r.lookup(v.Doc(), "coll"), p.r.lookup(v.Doc(), "db")
		if of.T == value.String {
			return of.Str(), name.Str()
		}
		return p.db, name.Str()
	}
	if v.T == value.String {
		return p.db, v.Str()
	}
	return p.db, ""
}

func checkLookup(p *pipeline, arg value.Value) bool {
	from := p.r.lookup(arg.Doc(), "from")
	sub := p.r.lookup(arg.Doc(), "pipeline")
	db, coll := p.target(from)
	return p.on(db, coll, sub.Doc())
}

func checkUnion(p *pipeline, arg value.Value) bool {
	if arg.T == value.String {
		return p.on(p.db, arg.Str(), nil)
	}
	db, coll := p.target(p.r.lookup(arg.Doc(), "coll"))
	if of := p.r.lookup(arg.Doc(), "db"); of.T == value.String {
		db = of.Str()
	}
	return p.on(db, coll, p.r.lookup(arg.Doc(), "pipeline").Doc())
}

func checkFacet(p *pipeline, arg value.Value) bool {
	for _, sub := range value.Elements(arg.Doc()) {
		if sub.T == value.Array && !p.on(p.db, "", sub.Doc()) {
			return false
		}
	}
	return true
}

func checkFusion(p *pipeline, arg value.Value) bool {
	pipelines := p.r.lookup(p.r.lookup(arg.Doc(), "input").Doc(), "pipelines")
	for _, sub := range value.Elements(pipelines.Doc()) {
		if sub.T == value.Array && !p.on(p.db, p.coll, sub.Doc()) {
			return false
		}
	}
	return true
}

func (p *pipeline) writes(need ActionSet, db, coll string) bool {
	if p.r.bypasses() {
		need.AddAll(actBypass)
	}
	return p.g.Allow(need, db, coll)
}

func checkOut(p *pipeline, arg value.Value) bool {
	db, coll := p.target(arg)
	return p.writes(Actions("insert remove"), db, coll)
}

func checkMergeStage(p *pipeline, arg value.Value) bool {
	into := arg
	need := actInsert
	if v := p.r.lookup(arg.Doc(), "into"); arg.T == value.Document && !v.IsMissing() {
		into = v
	}
	matched, missing := p.r.lookup(arg.Doc(), "whenMatched"), p.r.lookup(arg.Doc(), "whenNotMatched")
	if arg.T != value.Document || matched.T != value.String || matched.Str() != "fail" && matched.Str() != "keepExisting" {
		need.AddAll(actUpdate)
	}
	if missing.T == value.String && missing.Str() != "insert" {
		need.Remove(actInsert)
	}
	if need.Empty() {
		need = actUpdate
	}
	db, coll := p.target(into)
	if matched.T == value.Array && !p.on(p.db, "", matched.Doc()) {
		return false
	}
	return p.writes(need, db, coll)
}

// checkCurrentOpStage allows everybody their own operations.
func checkCurrentOpStage(p *pipeline, arg value.Value) bool {
	return !p.r.lookup(arg.Doc(), "allUsers").Truthy() || p.g.AllowCluster(Actions("inprog"))
}

// checkListSessions allows everybody their own sessions.
func checkListSessions(p *pipeline, arg value.Value) bool {
	users := p.r.lookup(arg.Doc(), "users")
	own := !p.r.lookup(arg.Doc(), "allUsers").Truthy()
	for _, u := range value.Values(users.Doc()) {
		name := UserName{p.r.lookup(u.Doc(), "user").Str(), p.r.lookup(u.Doc(), "db").Str()}
		own = own && name == p.r.Who.Name
	}
	return own || p.g.AllowCluster(Actions("listSessions"))
}

func checkQueryStats(p *pipeline, arg value.Value) bool {
	if p.r.lookup(arg.Doc(), "transformIdentifiers").IsMissing() {
		return p.g.AllowCluster(Actions("queryStatsRead"))
	}
	return p.g.AllowCluster(Actions("queryStatsRead")) || p.g.AllowCluster(Actions("queryStatsReadTransformed"))
}

func checkListCatalog(p *pipeline, _ value.Value) bool {
	need := Actions("listCollections listIndexes")
	if p.coll == "" {
		return p.g.Covers(Privilege{On: Resource{Any: true}, Actions: need})
	}
	return p.g.Allow(need, p.db, p.coll)
}

func checkListClusterCatalog(p *pipeline, _ value.Value) bool {
	if p.db == "admin" {
		return p.g.AllowCluster(Actions("listClusterCatalog"))
	}
	return p.g.Allow(Actions("listCollections"), p.db, "")
}

// checkChangeStream requires the actions on the collection, the database, or everything, whichever the stream watches.
func checkChangeStream(p *pipeline, arg value.Value) bool {
	need := Actions("changeStream find")
	if p.r.lookup(arg.Doc(), "allChangesForCluster").Truthy() {
		return p.g.AllowAll(need)
	}
	return p.g.Allow(need, p.db, p.coll)
}
