package auth

import (
	"strings"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// StageRule has the privileges that a stage requires.
type StageRule struct {
	// source means that the stage begins a pipeline without reading the pipeline's collection.
	source bool
	check  func(p *pipeline, arg value.Value) bool
}

// pipeline is a pipeline whose privileges are being checked.
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
		"$changeStream": {source: true, check: checkChangeStream},
		"$lookup":       {check: checkLookup}, "$graphLookup": {check: checkLookup}, "$unionWith": {check: checkUnion}, "$facet": {check: checkFacet},
		"$rankFusion": {check: checkFusion}, "$scoreFusion": {check: checkFusion}, "$out": {check: checkOut}, "$merge": {check: checkMergeStage},
		"$_internalPackMetadata": internalStage, "$_internalTakeMetadata": internalStage, "$_internalUnpackBucket": internalStage,
	}
}

// StageRuleFor finds the rule of a stage; nil if there is none. Stages that only process documents say in their own row that they are plain.
func StageRuleFor(name string) *StageRule {
	if agg.Has(name, agg.Plain) {
		return plain
	}
	return stageRules[name]
}

// pipelineAllowed reports whether all stages of a pipeline are allowed, and whether its collection may be read.
func pipelineAllowed(g *Grants, r *Request, db, coll string, stages value.Value) bool {
	p := pipeline{g: g, r: r, db: db, coll: coll}
	return p.allowed(stages)
}

func (p *pipeline) allowed(stages value.Value) bool {
	if p.depth++; p.depth > maxDepth {
		return false
	}
	defer func() { p.depth-- }()
	reads := p.coll != ""
	if !stages.IsNullish() && stages.T != value.Array {
		return p.r.wrongType("pipeline", stages, "array")
	}
	for i, v := range value.Values(stages.Doc()) {
		if v.T != value.Document {
			return p.r.wrong(mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object"))
		}
		it := value.Walk(v.Doc())
		name, arg, ok := it.Next()
		if _, _, more := it.Next(); !ok || more {
			return p.r.wrong(mongoerr.New(40323, "A pipeline stage specification object must contain exactly one field."))
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
func (p *pipeline) on(db, coll string, stages value.Value) bool {
	sub := pipeline{g: p.g, r: p.r, db: db, coll: coll, depth: p.depth}
	return sub.allowed(stages)
}

// target reads a stage's collection argument: a name in this database, or a document with database and collection. Without one
// the pipeline has to begin with a stage that is a source.
func (p *pipeline) target(v value.Value) (db, coll string, ok bool) {
	switch v.T {
	case value.Missing:
		return p.db, "", true
	case value.String:
		return p.db, v.Str(), true
	case value.Document:
		name, of := p.r.lookup(v.Doc(), "coll"), p.r.lookup(v.Doc(), "db")
		if name.T != value.String {
			return "", "", p.r.wrongType("pipeline.coll", name, "string")
		}
		if of.IsMissing() {
			return p.db, name.Str(), true
		}
		if of.T != value.String {
			return "", "", p.r.wrongType("pipeline.db", of, "string")
		}
		return of.Str(), name.Str(), true
	}
	return "", "", p.r.wrongType("pipeline", v, "string")
}

// object reports whether a stage's argument is a document.
func (p *pipeline) object(arg value.Value) bool {
	return arg.T == value.Document || p.r.wrongType("pipeline", arg, "object")
}

func checkLookup(p *pipeline, arg value.Value) bool {
	if !p.object(arg) {
		return false
	}
	db, coll, ok := p.target(p.r.lookup(arg.Doc(), "from"))
	return ok && p.on(db, coll, p.r.lookup(arg.Doc(), "pipeline"))
}

func checkUnion(p *pipeline, arg value.Value) bool {
	if arg.T == value.String {
		return p.on(p.db, arg.Str(), value.Value{})
	}
	if !p.object(arg) {
		return false
	}
	db, coll, ok := p.target(p.r.lookup(arg.Doc(), "coll"))
	if of := p.r.lookup(arg.Doc(), "db"); of.T == value.String {
		db = of.Str()
	} else if !of.IsMissing() {
		return p.r.wrongType("pipeline.$unionWith.db", of, "string")
	}
	return ok && p.on(db, coll, p.r.lookup(arg.Doc(), "pipeline"))
}

// each checks the pipelines of a stage that are the fields of a document.
func (p *pipeline) each(pipelines value.Value, coll string) bool {
	if !p.object(pipelines) {
		return false
	}
	for _, sub := range value.Elements(pipelines.Doc()) {
		if sub.T != value.Array {
			return p.r.wrongType("pipeline", sub, "array")
		}
		if !p.on(p.db, coll, sub) {
			return false
		}
	}
	return true
}

func checkFacet(p *pipeline, arg value.Value) bool { return p.each(arg, "") }

func checkFusion(p *pipeline, arg value.Value) bool {
	if !p.object(arg) {
		return false
	}
	input := p.r.lookup(arg.Doc(), "input")
	return p.object(input) && p.each(p.r.lookup(input.Doc(), "pipelines"), p.coll)
}

func (p *pipeline) writes(need ActionSet, db, coll string) bool {
	if p.r.bypasses() {
		need.AddAll(actBypass)
	}
	return p.g.Allow(need, db, coll)
}

func checkOut(p *pipeline, arg value.Value) bool {
	db, coll, ok := p.target(arg)
	return ok && p.writes(Actions("insert remove"), db, coll)
}

func checkMergeStage(p *pipeline, arg value.Value) bool {
	into, need := arg, actInsert
	var matched, missing value.Value
	if arg.T != value.String {
		if !p.object(arg) {
			return false
		}
		into, matched, missing = p.r.lookup(arg.Doc(), "into"), p.r.lookup(arg.Doc(), "whenMatched"), p.r.lookup(arg.Doc(), "whenNotMatched")
		if into.IsMissing() {
			return p.r.wrong(mongoerr.MissingField("$merge.into"))
		}
	}
	if arg.T != value.Document || matched.T != value.String || matched.Str() != "fail" && matched.Str() != "keepExisting" {
		need.AddAll(actUpdate)
	}
	if missing.T == value.String && missing.Str() != "insert" {
		need.Remove(actInsert)
	}
	if need.Empty() {
		need = actUpdate
	}
	db, coll, ok := p.target(into)
	if matched.T == value.Array && !p.on(p.db, "", matched) {
		return false
	}
	return ok && p.writes(need, db, coll)
}

// checkCurrentOpStage allows all users to see their own operations, on a router those of the router itself.
func checkCurrentOpStage(p *pipeline, arg value.Value) bool {
	own := !p.r.lookup(arg.Doc(), "allUsers").Truthy() && (!p.r.Router || p.r.lookup(arg.Doc(), "localOps").Truthy())
	return own || p.g.AllowCluster(Actions("inprog"))
}

// checkListSessions allows all users to list their own sessions.
func checkListSessions(p *pipeline, arg value.Value) bool {
	if !p.object(arg) {
		return false
	}
	users := p.r.lookup(arg.Doc(), "users")
	own := !p.r.lookup(arg.Doc(), "allUsers").Truthy()
	if !users.IsNullish() && users.T != value.Array {
		return p.r.wrongType("users", users, "array")
	}
	for _, u := range value.Values(users.Doc()) {
		if u.T != value.Document {
			return p.r.wrongType("users", u, "object")
		}
		name := UserName{p.r.lookup(u.Doc(), "user").Str(), p.r.lookup(u.Doc(), "db").Str()}
		own = own && name == p.r.Who.Name
	}
	return own || p.g.AllowCluster(Actions("listSessions"))
}

// checkQueryStats requires one action for names as they are and another for transformed ones. The manual's pages differ for the second: by Privilege
// Actions its own action is enough, which serves monitoring that must not see names; by the stage's page both are required.
func checkQueryStats(p *pipeline, arg value.Value) bool {
	if p.r.lookup(arg.Doc(), "transformIdentifiers").IsMissing() {
		return p.g.AllowCluster(Actions("queryStatsRead"))
	}
	return p.g.AllowCluster(Actions("queryStatsReadTransformed"))
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

// checkChangeStream requires the actions on the collection, the database, or everything, whichever the stream watches; on the buckets of time
// series, too, if it is to show the events of system collections.
func checkChangeStream(p *pipeline, arg value.Value) bool {
	need, db := Actions("changeStream find"), p.db
	if p.r.lookup(arg.Doc(), "allChangesForCluster").Truthy() {
		if !p.g.AllowAll(need) {
			return false
		}
		db = ""
	} else if !p.g.Allow(need, db, p.coll) {
		return false
	}
	return p.coll != "" || !p.r.lookup(arg.Doc(), "showSystemEvents").Truthy() || p.g.Allow(need, db, bucketsPrefix)
}
