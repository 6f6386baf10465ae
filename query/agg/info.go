package agg

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	report := rules{first: true, noFacet: true, noTxn: true}
	db := report
	db.database = true
	late := report
	late.noFacet = false // infoParser refuses it in a $facet, after the stage's own checks
	lateDB := late
	lateDB.database = true
	info := func(name string, r rules, traits Trait, check func(o *Options, v value.Value) error) {
		r.traits = traits
		register(name, r, infoParser(name, check))
	}
	info("$collStats", report, NotInTransaction, checkCollStats)
	ofIndexes := report
	ofIndexes.reports = true
	info("$indexStats", ofIndexes, NotInTransaction|Unstable, checkIndexStats)
	info("$planCacheStats", ofIndexes, NotInTransaction|Unstable|ServerMemory, checkPlanCacheStats)
	info("$currentOp", db, NotInTransaction|Unstable|ServerMemory|NotFirstInView, checkCurrentOp)
	info("$listLocalSessions", lateDB, NotInTransaction|Unstable|ServerMemory|NotFirstInView, checkListLocalSessions)
	info("$listSessions", late, NotInTransaction|Unstable|NotFirstInView, checkListSessions)
	info("$listClusterCatalog", lateDB, ServerMemory, checkListClusterCatalog)
	info("$listSampledQueries", db, 0, checkListSampledQueries)
	info("$querySettings", db, Unstable, checkQuerySettings)
	info("$queryStats", db, Unstable, checkQueryStats)
	info("$listCatalog", db, 0, checkListCatalog)
	info("$shardedDataDistribution", db, 0, checkShardedDistribution)
	info("$listSearchIndexes", report, ServerMemory, checkListSearchIndexes)
	register("$documents", rules{first: true, database: true, noFacet: true, traits: Slow | NotFirstInView}, one(parseDocuments))
}

// infoStage asks the host for documents about the server.
type infoStage struct {
	name string
	arg  value.Value
	ns   Namespace
}

func infoParser(name string, check func(o *Options, v value.Value) error) func(*Options, value.Value) ([]Stage, error) {
	return func(o *Options, v value.Value) ([]Stage, error) {
		if check != nil {
			if err := check(o, v); err != nil {
				return nil, err
			}
		}
		if o.facet { // these report other errors first
			return nil, mongoerr.Newf(40600, "%s is not allowed to be used within a $facet stage", name)
		}
		return []Stage{&infoStage{name, v, o.NS}}, nil
	}
}

func (s *infoStage) generates()     {}
func (s *infoStage) halves() halves { return halves{streams: true} }

func (s *infoStage) Name() string      { return s.name }
func (s *infoStage) Spec() value.Value { return s.arg }
func (s *infoStage) open(x *exec, _ Source) (Source, error) {
	return &infoSource{x: x, s: s}, nil
}

// infoSource opens the host's report when the first document is requested.
type infoSource struct {
	x   *exec
	s   *infoStage
	src Source
}

func (i *infoSource) Next(ctx context.Context) (Doc, bool, error) {
	if i.src == nil {
		src, err := i.x.host.Info(ctx, i.s.ns, i.s.name, i.s.arg)
		if err != nil {
			return Doc{}, false, err
		}
		i.src = src
	}
	return i.src.Next(ctx)
}

func (i *infoSource) Close() {
	if i.src != nil {
		i.src.Close()
	}
}

func checkCollStats(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(5447000, "$collStats must take a nested object but found: $collStats: %s", value.Show(v))
	}
	for k, e := range value.Elements(v.Doc()) {
		name := "$collStats." + k
		switch k {
		case "latencyStats", "storageStats", "count", "queryExecStats", "operationStats":
			if e.IsNullish() {
				continue
			}
			if e.T != value.Document {
				return wrongType(name, e.T.Name(), "object")
			}
		case "targetAllNodes":
			if e.T != value.Boolean {
				return wrongType(name, e.T.Name(), "bool")
			}
		default:
			return unknownField(name)
		}
		for k2, e2 := range value.Elements(e.Doc()) {
			switch {
			case k == "latencyStats" && k2 == "histograms":
				if e2.T != value.Boolean {
					return wrongType(name+"."+k2, e2.T.Name(), "bool")
				}
			case k == "storageStats" && k2 == "scale":
				if !e2.T.Numeric() && !e2.IsNullish() {
					return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.scale' is the wrong type '%s', expected types '[int, decimal, double, long]'", name, e2.T.Name())
				}
				if e2.T.Numeric() && !(wholeNumber(e2) >= 1) {
					return mongoerr.Newf(mongoerr.BadValue, "BSON field 'scale' value must be >= 1, actual value '%s'", expr.Show(e2))
				}
			case k == "storageStats": // unknown fields are ignored
			case k == "count" || k == "queryExecStats":
				return mongoerr.Newf(31170, "the '%s' option to $collStats must be an empty object", k)
			default:
				return unknownField(name + "." + k2)
			}
		}
	}
	return nil
}

// wholeNumber rounds a number to an integer like command arguments: doubles towards zero, decimals to the nearest even.
func wholeNumber(v value.Value) float64 {
	if v.T != value.Decimal128 {
		return math.Trunc(v.AsFloat64())
	}
	down := math.Floor(v.AsFloat64())
	if math.IsInf(down, 0) || math.IsNaN(down) {
		return down
	}
	if whole := value.NewDouble(down); value.Compare(v, whole) < 0 {
		down-- // the conversion to a double rounded up to the next integer
	}
	half, _ := value.ParseDecimal128(strconv.FormatFloat(down+0.5, 'f', -1, 64))
	switch c := value.Compare(v, half); {
	case c > 0 || c == 0 && math.Mod(down, 2) != 0:
		return down + 1
	}
	return down
}

func checkIndexStats(_ *Options, v value.Value) error {
	if v.T != value.Document || value.Count(v.Doc()) != 0 {
		return mongoerr.New(28803, "The $indexStats stage specification must be an empty object")
	}
	return nil
}

func checkPlanCacheStats(_ *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.FailedToParse, "$planCacheStats value must be an object. Found: %s", v.T.Name())
	}
	if err := noDuplicates("$planCacheStats", v.Doc()); err != nil {
		return mongoerr.New(mongoerr.FailedToParse, "$planCacheStats parameters object names 'allHosts' more than once")
	}
	for k, e := range value.Elements(v.Doc()) {
		if k != "allHosts" {
			return mongoerr.Newf(mongoerr.FailedToParse, "$planCacheStats parameters object may contain only 'allHosts' field. Found: %s", k)
		}
		if e.T != value.Boolean {
			return mongoerr.Newf(13111, "wrong type for field (allHosts) %s != bool", e.T.Name())
		}
	}
	return nil
}

// needAdmin applies the rule of stages that run on the admin database without a collection.
func needAdmin(name string, o *Options) error {
	if o.NS.DB != "admin" || o.NS.Coll != DatabaseAggregate {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "%s must be run against the 'admin' database with {aggregate: 1}", name)
	}
	return nil
}

func checkCurrentOp(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.TypeMismatch, "$currentOp options must be specified in an object, but found: %s", v.T.Name())
	}
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "allUsers", "idleConnections", "idleSessions", "localOps", "truncateOps", "idleCursors", "backtrace", "targetAllNodes":
			if e.T != value.Boolean {
				return wrongType("$currentOp."+k, e.T.Name(), "bool")
			}
		default:
			return unknownField("$currentOp." + k)
		}
	}
	if value.Lookup(v.Doc(), "localOps").Bool() && value.Lookup(v.Doc(), "targetAllNodes").Bool() {
		return mongoerr.New(mongoerr.FailedToParse, "The 'localOps' and 'targetAllNodes' parameters of $currentOp cannot both be true")
	}
	return needAdmin("$currentOp", o)
}

func checkListLocalSessions(o *Options, v value.Value) error {
	if err := checkSessionsSpec("$listLocalSessions", v); err != nil {
		return err
	}
	if o.NS.Coll != DatabaseAggregate {
		return mongoerr.New(mongoerr.InvalidNamespace, "$listLocalSessions must be run against the database with {aggregate: 1}, not a collection")
	}
	return nil
}

func checkListSessions(o *Options, v value.Value) error {
	if err := checkSessionsSpec("$listSessions", v); err != nil {
		return err
	}
	if o.NS != (Namespace{"config", "system.sessions"}) {
		return mongoerr.New(mongoerr.InvalidNamespace, "$listSessions may only be run against config.system.sessions")
	}
	return nil
}

func checkSessionsSpec(name string, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.TypeMismatch, "%s options must be specified in an object, but found: %s", name, v.T.Name())
	}
	var users, all value.Value
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "users":
			if e.IsNullish() {
				continue
			}
			if users = e; e.T != value.Array {
				return wrongType(name+".users", e.T.Name(), "array")
			}
			if err := checkUsers(name, e.Doc()); err != nil {
				return err
			}
		case "allUsers":
			if e.IsNullish() {
				continue
			}
			if all = e; e.T != value.Boolean {
				return wrongType(name+".allUsers", e.T.Name(), "bool")
			}
		case "$_internalPredicate":
		default:
			return unknownField(name + "." + k)
		}
	}
	named := 0
	for _, u := range value.Values(users.Doc()) {
		if u.T == value.Document {
			named++
		}
	}
	if all.Bool() && named > 0 {
		return mongoerr.Newf(mongoerr.UnsupportedFormat, "%s may not specify {allUsers:true} and {users:[...]} at the same time", name)
	}
	return nil
}

// checkUsers applies the rules on elements of users: {user, db}; nulls are skipped.
func checkUsers(name string, users []byte) error {
	for _, u := range value.Values(users) {
		if u.IsNullish() {
			continue
		}
		if u.T != value.Document {
			return wrongType(name+".users", u.T.Name(), "object")
		}
		for k, e := range value.Elements(u.Doc()) {
			switch {
			case k != "user" && k != "db":
				return unknownField(name + ".users." + k)
			case !e.IsNullish() && e.T != value.String:
				return wrongType(name+".users."+k, e.T.Name(), "string")
			}
		}
		for _, k := range []string{"user", "db"} {
			if value.Lookup(u.Doc(), k).IsNullish() {
				return missingField(name + ".users." + k)
			}
		}
	}
	return nil
}

// checkListSearchIndexes refuses the stage: this server has no search service.
func checkListSearchIndexes(*Options, value.Value) error {
	return mongoerr.New(mongoerr.SearchNotEnabled, mongoerr.SearchIndexesText)
}

func checkListClusterCatalog(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(9621302, "The $listClusterCatalog stage specification must be an object. Found %s", v.T.Name())
	}
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "shards", "tracked", "balancingConfiguration":
			if e.T != value.Boolean {
				return wrongType("$listClusterCatalog."+k, e.T.Name(), "bool")
			}
		default:
			return unknownField("$listClusterCatalog." + k)
		}
	}
	if o.NS.Coll != DatabaseAggregate {
		return mongoerr.New(9621301, "The $listClusterCatalog stage cannot run on a collection")
	}
	return nil
}

// checkQueryStats reads {transformIdentifiers: {algorithm, hmacKey}}.
func checkQueryStats(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.FailedToParse, "$queryStats value must be an object. Found: %s", v.T.Name())
	}
	for k, e := range value.Elements(v.Doc()) {
		switch {
		case k != "transformIdentifiers":
			return unknownField("$queryStats." + k)
		case e.T != value.Document:
			return wrongType("$queryStats.transformIdentifiers", e.T.Name(), "object")
		}
		for k, e := range value.Elements(e.Doc()) {
			switch {
			case k == "algorithm" && (e.T != value.String || e.Str() != "hmac-sha-256"):
				return mongoerr.New(mongoerr.BadValue, "Enumeration value for field '$queryStats.transformIdentifiers.algorithm' is not a valid value.")
			case k == "hmacKey" && e.T != value.Binary:
				return wrongType("$queryStats.transformIdentifiers.hmacKey", e.T.Name(), "binData")
			case k != "algorithm" && k != "hmacKey":
				return unknownField("$queryStats.transformIdentifiers." + k)
			}
		}
		if value.Lookup(e.Doc(), "algorithm").T == value.Missing {
			return missingField("$queryStats.transformIdentifiers.algorithm")
		}
	}
	return needAdmin("$queryStats", o)
}

func checkListCatalog(o *Options, v value.Value) error {
	if v.T != value.Document || value.Count(v.Doc()) > 0 {
		return mongoerr.New(6200600, "The $listCatalog stage specification must be an empty object")
	}
	if o.NS.Coll == DatabaseAggregate && o.NS.DB != "admin" {
		return mongoerr.New(mongoerr.InvalidNamespace, "Collectionless $listCatalog must be run against the 'admin' database with {aggregate: 1}")
	}
	return nil
}

func checkShardedDistribution(o *Options, v value.Value) error {
	if v.T != value.Document || value.Count(v.Doc()) > 0 {
		return mongoerr.New(6789100, "The $shardedDataDistribution stage specification must be an empty object")
	}
	if o.NS.Coll != DatabaseAggregate || o.NS.DB != "admin" {
		return mongoerr.New(6789102, "The $shardedDataDistribution stage must be run on the admin database")
	}
	return nil
}

func checkQuerySettings(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(7746800, "$querySettings stage expects a document as argument, but found %s", v.T.Name())
	}
	for k, e := range value.Elements(v.Doc()) {
		if k != "showDebugQueryShape" {
			return unknownField("$querySettings." + k)
		}
		if e.T != value.Boolean {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$querySettings.%s' is the wrong type '%s', expected types '[bool, long, int, decimal, double]'", k, e.T.Name())
		}
	}
	if o.NS.Coll != DatabaseAggregate {
		return mongoerr.New(mongoerr.InvalidNamespace, "$querySettings must be run against the database with {aggregate: 1}, not a collection")
	}
	return nil
}

// documentsStage is $documents: an expression that returns an array of documents.
type documentsStage struct{ e *expr.Expr }

// StartsWithDocuments reports whether a pipeline's documents are its own: no shard has to be asked for them.
func (p *Pipeline) StartsWithDocuments() bool {
	_, ok := firstStage[*documentsStage](p.stages)
	return ok
}

func parseDocuments(o *Options, v value.Value) (*documentsStage, error) {
	if v.T == value.Document && value.Count(v.Doc()) == 0 { // the argument must not be an empty document
		return nil, mongoerr.New(51270, "Invalid empty sub-projection: _tempDocumentsField")
	}
	if o.within == topLevel && o.NS.Coll != DatabaseAggregate {
		return nil, mongoerr.New(mongoerr.InvalidNamespace, "'$documents' can only be run with {aggregate: 1}")
	}
	e, err := expr.Compile(v, o.scope())
	if err != nil {
		return nil, err
	}
	if c, ok := e.Constant(); ok && c.T != value.Array {
		return nil, notDocuments()
	}
	return &documentsStage{e}, nil
}

func notDocuments() error {
	return mongoerr.New(5858203, "an array is expected as the argument of $documents")
}

func (s *documentsStage) generates()        {}
func (s *documentsStage) Name() string      { return "$documents" }
func (s *documentsStage) Spec() value.Value { return s.e.Serialize() }
func (s *documentsStage) open(x *exec, _ Source) (Source, error) {
	return &lazySource{fill: func(context.Context) ([]Doc, error) {
		frame := x.frame()
		frame.SetRoot(emptyDocument)
		v, err := s.e.Eval(frame)
		if err != nil {
			return nil, err
		}
		if v.T != value.Array {
			return nil, notDocuments()
		}
		var out []Doc
		for _, e := range value.Values(v.Clone().Doc()) {
			if e.T != value.Document {
				return nil, mongoerr.Newf(40228, "'newRoot' expression  must evaluate to an object, but resulting value was: %s. Type of "+
					"resulting value: '%s'. Input document: {}", expr.Show(e), e.T.Name())
			}
			out = append(out, Doc{Raw: e.Doc()})
		}
		return out, nil
	}}, nil
}

// searchStages need a search service, which is not configured: parsing one returns that error.
var searchStages = []string{"$search", "$searchMeta", "$vectorSearch", "$searchBeta"}

func init() {
	for _, name := range searchStages {
		register(name, rules{first: true, noFacet: true, noTxn: true}, searchParser(name))
	}
}

func searchParser(name string) func(*Options, value.Value) ([]Stage, error) {
	return func(o *Options, v value.Value) ([]Stage, error) {
		if v.T != value.Document {
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s value must be an object. Found: %s", strings.TrimPrefix(name, ""), v.T.Name())
		}
		return nil, mongoerr.Newf(31082, "Using %s and $vectorSearch aggregation stages requires additional configuration. Please connect to Atlas or an "+
			"AtlasCLI local deployment to enable. For more information on how to connect, see "+
			"https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs.", name)
	}
}

func checkListSampledQueries(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(6876001, "$listSampledQueries must take a nested object but found: %s", value.Show(v))
	}
	for k, e := range value.Elements(v.Doc()) {
		switch {
		case k != "namespace":
			return unknownField("$listSampledQueries." + k)
		case e.T != value.String:
			return wrongType("$listSampledQueries.namespace", e.T.Name(), "string")
		case !strings.Contains(e.Str(), "."):
			return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", e.Str())
		}
	}
	return needAdmin("$listSampledQueries", o)
}
