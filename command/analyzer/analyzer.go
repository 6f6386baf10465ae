package analyzer

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Deployment provides the servers to which the commands of an analysis are sent.
type Deployment interface {
	// Supports returns an error on a server that does not run the command: a standalone one, or a shard.
	Supports(what string) error
	// Data returns a peer that runs commands on collections as a client of the deployment does.
	Data() cluster.Peer
	// Config returns the server that stores the configurations.
	Config() cluster.Peer
	// Keepers returns the servers that store samples.
	Keepers(ctx context.Context) ([]cluster.Peer, error)
	// Owner returns one of the servers that have documents of a collection.
	Owner(op *command.Op, ns string) (cluster.Peer, error)
}

// Analyzer implements configureQueryAnalyzer and analyzeShardKey.
type Analyzer struct {
	d      Deployment
	params *cluster.Params
}

// New returns the analyzer of a deployment.
func New(d Deployment, params *cluster.Params) *Analyzer { return &Analyzer{d, params} }

// Specs returns the rows of the commands.
func (a *Analyzer) Specs() []command.Spec {
	return []command.Spec{
		{
			Name: "configureQueryAnalyzer", Roles: command.All, AdminOnly: true, ArgTypes: command.TString, PrimaryOnly: true, WriteConcern: true, Run: a.runConfigure,
			Fields: []command.Field{command.Req("mode", command.TString), command.Opt("samplesPerSecond", command.TNumber)},
		},
		{
			Name: "analyzeShardKey", Roles: command.All, Kind: command.Read, AdminOnly: true, ArgTypes: command.TString, ReadConcern: true, Run: a.runAnalyze,
			Fields: []command.Field{command.Req("key", command.TObject), command.Opt("keyCharacteristics", command.TBool), command.Opt("readWriteDistribution", command.TBool),
				command.Opt("sampleRate", command.TNumber), command.Opt("sampleSize", command.TNumber)},
		},
	}
}

// collection has the properties of a collection that the commands need.
type collection struct {
	ns, db, name string
	uuid         value.Value
	clustered    bool
	collated     bool // by default strings are not compared byte by byte
}

// inspect finds the command's collection, and returns an error if it cannot be analyzed.
func (a *Analyzer) inspect(op *command.Op) (c collection, err error) {
	what := op.Req.Spec.Name
	if err := a.d.Supports(what); err != nil {
		return c, err
	}
	c.ns = op.Req.Cmd.Str()
	if c.db, c.name = cluster.SplitNS(c.ns); c.name == "" || command.CheckDBName(c.db) != nil || command.CheckCollName(c.db, c.name) != nil {
		return c, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", c.ns)
	}
	if c.db == "admin" || c.db == "config" || c.db == "local" || len(c.name) > 7 && c.name[:7] == "system." {
		return c, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot run '%s' on the internal collection '%s'", what, c.ns)
	}
	docs, err := cluster.FindAll(op, a.d.Data(), c.db, msg.Doc(&msg.ListCollections{DB: c.db, Filter: value.Doc(value.F("name", value.NewString(c.name)))}))
	if err != nil {
		return c, err
	}
	if len(docs) == 0 {
		return c, mongoerr.Newf(mongoerr.NamespaceNotFound, "%s does not exist", c.ns)
	}
	options := value.Lookup(docs[0], "options").Doc()
	switch value.Lookup(docs[0], "type").Str() {
	case "view":
		return c, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Command '%s' is not supported on the view '%s'", what, c.ns)
	case "timeseries":
		return c, mongoerr.Newf(mongoerr.IllegalOperation, "Operation not supported for a timeseries collection: '%s'", c.ns)
	}
	if !value.Lookup(options, "encryptedFields").IsMissing() {
		return c, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot run '%s' on a collection with Queryable Encryption: '%s'", what, c.ns)
	}
	c.uuid = value.Lookup(value.Lookup(docs[0], "info").Doc(), "uuid").Clone()
	c.clustered = value.Lookup(options, "clusteredIndex").Truthy()
	c.collated = collates(value.Lookup(options, "collation"))
	return c, nil
}

// collates reports whether a collation compares strings in any way other than byte by byte.
func collates(v value.Value) bool {
	return v.T == value.Document && value.Count(v.Doc()) > 0 && value.Lookup(v.Doc(), "locale").Str() != "simple"
}

// maxRate is the maximum of samplesPerSecond.
const maxRate = 50

// runConfigure stores the configuration of a collection.
func (a *Analyzer) runConfigure(op *command.Op, dst []byte) ([]byte, error) {
	mode, rate := op.Req.Str("mode"), op.Arg("samplesPerSecond")
	if mode != "full" && mode != "off" {
		return dst, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'configureQueryAnalyzer.mode' is not a valid value.", mode)
	}
	if mode == "full" {
		if rate.IsNullish() {
			return dst, mongoerr.New(mongoerr.InvalidOptions, "'samplesPerSecond' is required when 'mode' is 'full'")
		}
		if r := rate.AsFloat64(); !(r >= 0 && r <= maxRate) {
			return dst, mongoerr.Newf(mongoerr.InvalidOptions, "'samplesPerSecond' must be between 0 and %d", maxRate)
		}
	}
	c, err := a.inspect(op)
	if err != nil {
		return dst, err
	}
	change := &msg.FindAndModify{
		DB: "config", Coll: sampling.Configurations, Query: value.Doc(value.F("_id", value.NewString(c.ns))),
		Change: value.NewArray(configuration(c, mode, rate)), Upsert: mode == "full",
	}
	reply, err := cluster.RunWrite(op, a.d.Config(), msg.Doc(change, value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewString("majority")))))))
	if err == nil {
		err = a.stillThere(op, c)
	}
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "ns", value.NewString(c.ns))
	dst = value.Append(dst, "collUuid", c.uuid)
	if old := value.Lookup(reply, "value").Doc(); old != nil && value.Compare(value.Lookup(old, "collUuid"), c.uuid) == 0 {
		dst = value.Append(dst, "oldConfiguration", describe(value.Lookup(old, "mode"), value.Lookup(old, "samplesPerSecond")))
	}
	if mode == "off" {
		rate = value.Value{}
	}
	return value.Append(dst, "newConfiguration", describe(value.NewString(mode), rate)), nil
}

// stillThere checks again that the collection exists, and removes its configuration if not: a drop or rename that came before the
// configuration was stored could not remove it.
func (a *Analyzer) stillThere(op *command.Op, c collection) error {
	now, err := a.inspect(op)
	if err == nil && value.Compare(now.uuid, c.uuid) != 0 {
		err = mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s has been replaced by another collection", c.ns)
	}
	if code := mongoerr.CodeOf(err); code != mongoerr.NamespaceNotFound && code != mongoerr.ConflictingOperationInProgress {
		return nil
	}
	_, failed := cluster.RunWrite(op, a.d.Config(), msg.Doc(&msg.Delete{
		DB: "config", Coll: sampling.Configurations, Deletes: []msg.DeleteStatement{{Query: value.Doc(value.F("_id", value.NewString(c.ns)), value.F("collUuid", c.uuid))}},
	}))
	if failed != nil {
		return failed
	}
	return err
}

func describe(mode, rate value.Value) value.Value {
	f := []value.Field{value.F("mode", mode)}
	if !rate.IsNullish() {
		f = append(f, value.F("samplesPerSecond", value.NewDouble(rate.AsFloat64())))
	}
	return value.NewDocument(value.Doc(f...))
}

// configuration returns the update pipeline that stores a configuration. A change of only the rate keeps the start time.
func configuration(c collection, mode string, rate value.Value) []byte {
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	list := func(v ...value.Value) value.Value { return value.NewArray(value.ArrayOf(v...)) }
	str := value.NewString
	if mode == "off" {
		return value.ArrayOf(doc(value.F("$set", doc(value.F("mode", str("off")), value.F("stopTime", str("$$NOW"))))), doc(value.F("$unset", str("samplesPerSecond"))))
	}
	same := doc(value.F("$and", list(doc(value.F("$eq", list(str("$mode"), str("full")))), doc(value.F("$eq", list(str("$collUuid"), c.uuid))))))
	return value.ArrayOf(
		doc(value.F("$set", doc(value.F("startTime", doc(value.F("$cond", list(same, str("$startTime"), str("$$NOW")))))))),
		doc(value.F("$set", doc(value.F("collUuid", c.uuid), value.F("mode", str("full")), value.F("samplesPerSecond", value.NewDouble(rate.AsFloat64()))))),
		doc(value.F("$unset", str("stopTime"))))
}

// Queries measures the rate of a service's queries between two calls.
type Queries struct {
	Service *command.Service
	seen    int64
	at      time.Time
}

// Rate returns the number of queries per second since the last call.
func (q *Queries) Rate() float64 {
	now, n := time.Now(), q.Service.QueriesRun()
	took := now.Sub(q.at).Seconds()
	if q.at.IsZero() {
		took = max(1, now.Sub(q.Service.Started).Seconds())
	}
	rate := float64(n-q.seen) / max(took, 0.001)
	q.seen, q.at = n, now
	return rate
}

// Ask requests a sampler's share of the configurations from the server that stores them.
func Ask(ctx context.Context, of cluster.Peer, sampler string, queries float64) ([]sampling.Configuration, error) {
	reply, err := cluster.Run(ctx, of, msg.Doc(&msg.RefreshQueryAnalyzer{Sampler: sampler, Queries: value.NewDouble(queries)}))
	if err != nil {
		return nil, err
	}
	var r msg.RefreshQueryAnalyzerReply
	if err := msg.Parse(reply, &r); err != nil {
		return nil, err
	}
	return sampling.ParseConfigurations(r.Configurations), nil
}
