package settings

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// clusterParams are the cluster-wide server parameters, each a document of config.clusterParameters.
type clusterParams struct {
	mu  sync.Mutex // serialises setClusterParameter
	cur atomic.Pointer[map[string][]byte]
	// maxReadMS caches defaultMaxTimeMS.readOperations for the hot path.
	maxReadMS atomic.Int64
	audit     *command.Audit // applies auditConfig; nil without an audit log
}

const clusterParamsNS = "config.clusterParameters"

// clusterInitial has the value of each parameter before it is set.
var clusterInitial = map[string][]byte{
	"changeStreamOptions": value.Doc(value.F("preAndPostImages",
		value.NewDocument(value.Doc(value.F("expireAfterSeconds", value.NewString("off")))))),
	"changeStreams":    value.Doc(value.F("expireAfterSeconds", value.NewInt64(3600))),
	"defaultMaxTimeMS": value.Doc(value.F("readOperations", value.NewInt64(0))),
	"fleCompactionOptions": value.Doc(value.F("maxCompactionSize", value.NewInt64(268435456)),
		value.F("maxAnchorCompactionSize", value.NewInt64(268435456)), value.F("maxESCEntriesPerCompactionDelete", value.NewInt32(350000))),
	"fleDisableSubstringPreviewParameterLimits": value.Doc(value.F("shouldOverride", value.NewBool(false))),
	"internalSearchOptions": value.Doc(value.F("oversubscriptionFactor", value.NewDouble(1.064)),
		value.F("batchSizeGrowthFactor", value.NewDouble(1.5))),
	"pauseMigrationsDuringMultiUpdates":           value.Doc(value.F("enabled", value.NewBool(false))),
	"onlyTargetDataOwningShardsForMultiWrites":    value.Doc(value.F("enabled", value.NewBool(false))),
	"configServerReadPreferenceForCatalogQueries": value.Doc(value.F("mustAlwaysUseNearest", value.NewBool(false))),
	"shardedClusterCardinalityForDirectConns":     value.Doc(value.F("hasTwoOrMoreShards", value.NewBool(false))),
	"addOrRemoveShardInProgress":                  value.Doc(value.F("inProgress", value.NewBool(false))),
	command.AuditConfig:                           value.Doc(value.F("filter", value.NewDocument(value.Doc())), value.F("auditAuthorizationSuccess", value.NewBool(false))),
	querySettingsParam:                            value.Doc(value.F("settingsArray", value.NewArray(value.ArrayOf()))),
}

// querySettingsParam is the parameter in which setQuerySettings stores its settings.
const querySettingsParam = "querySettings"

// clusterChecks check values for which the types of their fields are not enough; a check returns what is stored.
var clusterChecks = map[string]func(name string, doc []byte) ([]byte, error){
	"changeStreamOptions": checkChangeStreamOptions, "changeStreams": checkChangeStreams, "defaultMaxTimeMS": checkMaxTime,
	querySettingsParam: refuseDirect,
}

func (st *Settings) clusterParamSpecs() []command.Spec {
	get := command.AdminOnly("getClusterParameter", st.runGetClusterParameter, command.Opt("omitInFTDC", command.TBool))
	set := command.AdminOnly("setClusterParameter", st.runSetClusterParameter)
	get.ArgTypes, get.Lenient = command.TString|command.TArray, true
	set.Lenient = true
	adopt := command.Internal(st.runAdoptClusterParameter)
	adopt.Roles, adopt.PrimaryOnly, adopt.WriteConcern = command.Shard|command.Config, true, true
	return []command.Spec{get, set, adopt, command.AdminOnly("getAuditConfig", st.runGetAuditConfig),
		command.AdminOnly("setAuditConfig", st.runSetAuditConfig, command.Opt("filter", command.TObject), command.Opt("auditAuthorizationSuccess", command.TBool))}
}

func (p *clusterParams) load(st *Settings) error {
	m := make(map[string][]byte)
	err := st.Docs.Each(clusterParamsNS, func(doc []byte) error {
		m[value.Lookup(doc, "_id").Str()] = doc
		return nil
	})
	p.store(nil, m)
	return err
}

// store replaces the values in effect. op is the operation that has set one of them; nil if they come from elsewhere.
func (p *clusterParams) store(op *command.Op, m map[string][]byte) {
	was := p.cur.Swap(&m)
	if was != nil { // the values at startup are in the event of the start
		for _, name := range slices.Sorted(maps.Keys(clusterInitial)) {
			if before, after := valueOf(*was, name), valueOf(m, name); !bytes.Equal(before, after) {
				p.audit.ParameterUpdated(op, before, after)
			}
		}
	}
	p.maxReadMS.Store(value.SafeInt64(value.Lookup(m["defaultMaxTimeMS"], "readOperations")))
	p.audit.Configure(m[command.AuditConfig])
}

// get returns a parameter's value: the stored document with its name and time, or the initial value.
func (p *clusterParams) get(name string) []byte {
	if name == command.AuditConfig && p.audit != nil && p.audit.Runtime == nil {
		return named(name, p.audit.OwnConfig())
	}
	return valueOf(*p.cur.Load(), name)
}

func valueOf(stored map[string][]byte, name string) []byte {
	if doc := stored[name]; doc != nil {
		return doc
	}
	return named(name, clusterInitial[name])
}

// ClusterParameters returns the values of all parameters, by name.
func (st *Settings) ClusterParameters() (all [][]byte) {
	for _, name := range slices.Sorted(maps.Keys(clusterInitial)) {
		all = append(all, st.cluster.get(name))
	}
	return all
}

func named(name string, doc []byte, more ...value.Field) []byte {
	out, m := value.Begin(nil)
	out = value.Append(out, "_id", value.NewString(name))
	for _, f := range more {
		out = value.Append(out, f.Key, f.Val)
	}
	for k, v := range value.Elements(doc) {
		if k != "_id" && k != "clusterParameterTime" {
			out = value.Append(out, k, v)
		}
	}
	return value.End(out, m)
}

func (st *Settings) runGetClusterParameter(op *command.Op, dst []byte) ([]byte, error) {
	var names []string
	cmd := op.Req.Cmd
	switch {
	case cmd.T == value.Array:
		for i, v := range value.Values(cmd.Doc()) {
			if v.T != value.String {
				return dst, command.WrongType("getClusterParameter.getClusterParameter."+strconv.Itoa(i), v.T, command.TString)
			}
			names = append(names, v.Str())
		}
		if len(names) == 0 {
			return dst, mongoerr.New(mongoerr.BadValue, "Must supply at least one cluster server parameter name to getClusterParameter")
		}
	case cmd.Str() == "*":
		for name := range clusterInitial {
			names = append(names, name)
		}
		sort.Strings(names)
	default:
		names = []string{cmd.Str()}
	}
	dst, m := value.BeginKey(dst, value.Array, "clusterParameters")
	for i, name := range names {
		if _, ok := clusterInitial[name]; !ok {
			return dst, mongoerr.Newf(mongoerr.NoSuchKey, "Unknown server parameter: %s", name)
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(st.cluster.get(name)))
	}
	return value.End(dst, m), nil
}

func (st *Settings) runSetClusterParameter(op *command.Op, dst []byte) ([]byte, error) {
	cmd := op.Req.Cmd
	if cmd.IsNullish() {
		return dst, command.MissingField("setClusterParameter.setClusterParameter")
	}
	if cmd.T != value.Document {
		return dst, command.WrongType("setClusterParameter.setClusterParameter", cmd.T, command.TObject)
	}
	if value.Count(cmd.Doc()) > 1 {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "setClusterParameter only supports setting exactly one parameter")
	}
	it := value.Walk(cmd.Doc())
	key, v, ok := it.Next()
	_, known := clusterInitial[string(key)]
	if !ok || !known {
		return dst, mongoerr.Newf(mongoerr.NoSuchKey, "Unknown Cluster Parameter '%s'", key)
	}
	if err := st.checkNotOnShard(op, true, mongoerr.NotImplemented, "setClusterParameter can only run on mongos in sharded clusters"); err != nil {
		return dst, err
	}
	name := string(key)
	if v.T != value.Document {
		return dst, mongoerr.Newf(mongoerr.BadValue, "Cluster parameter value must be an object, but '%s' is of type '%s'", name, v.T.Name())
	}
	for k := range value.Elements(v.Doc()) {
		if strings.HasPrefix(k, "$") {
			return dst, mongoerr.Newf(mongoerr.DollarPrefixedFieldName, "The field name '%s' is not allowed in cluster parameter documents", k)
		}
	}
	check := clusterChecks[name]
	switch {
	case name == command.AuditConfig:
		check = st.checkAuditConfig
	case check == nil:
		check = checkTyped
	}
	doc, err := check(name, v.Doc())
	if err != nil {
		return dst, err
	}
	if name != command.AuditConfig { // each node checks that one by itself
		if is, err := st.coordinated(op, &msg.SetOneParameter{Param: value.Doc(value.F(name, value.NewDocument(doc)))}); is {
			return dst, err
		}
	}
	return dst, st.storeClusterParam(op, name, doc)
}

// runAdoptClusterParameter stores a parameter as the config server has it.
func (st *Settings) runAdoptClusterParameter(op *command.Op, req *msg.SetClusterParameter, dst []byte) ([]byte, error) {
	if name := value.Lookup(req.Param, "_id").Str(); clusterInitial[name] == nil {
		return dst, mongoerr.Newf(mongoerr.NoSuchKey, "Unknown Cluster Parameter '%s'", name)
	}
	return dst, st.Adopt(op, req.Param)
}

// Adopt stores parameters as the config server has them, except for the configuration of the audit log.
//
// Invariant: of the values that the config server has had, a shard has the newest that has reached it. Hazard: a value may arrive after a
// newer one, from a slow router, or in a reply that was read earlier. The time with which the config server has stored it decides,
// which is why shards store that time and none of their own.
func (st *Settings) Adopt(ctx context.Context, params ...[]byte) error {
	p := &st.cluster
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, doc := range params {
		name, is := value.Lookup(doc, "_id").Str(), value.Lookup(doc, clusterParamTime)
		if clusterInitial[name] == nil || name == command.AuditConfig || is.T != value.Timestamp {
			continue
		}
		if was := value.Lookup(p.get(name), clusterParamTime); was.T == value.Timestamp && was.TimestampU64() >= is.TimestampU64() {
			continue
		}
		if err := st.putClusterParam(ctx, name, bytes.Clone(doc)); err != nil {
			return err
		}
		if name == querySettingsParam {
			st.loadQuerySettings()
		}
	}
	return nil
}

// TakeOver replaces the node's parameters by those of the cluster that it joins; parameters that the cluster has not set get their
// initial values. The configuration of the audit log gets a new time on this node, since the audit log uses the newest.
func (st *Settings) TakeOver(ctx context.Context, params [][]byte) error {
	p := &st.cluster
	p.mu.Lock()
	defer p.mu.Unlock()
	given := make(map[string][]byte)
	for _, doc := range params {
		given[value.Lookup(doc, "_id").Str()] = doc
	}
	for name, initial := range clusterInitial {
		doc, have := given[name], (*p.cur.Load())[name]
		if doc == nil && have == nil {
			continue
		}
		if doc == nil {
			doc = initial
		}
		var at []value.Field
		if name == command.AuditConfig {
			at = append(at, value.F(clusterParamTime, (st.Engine.Visible()+1).Value()))
		} else if v := value.Lookup(doc, clusterParamTime); !v.IsMissing() {
			at = append(at, value.F(clusterParamTime, v))
		}
		next := named(name, doc, at...)
		if have != nil && (bytes.Equal(next, have) || name == command.AuditConfig && bytes.Equal(named(name, doc), named(name, have))) {
			continue
		}
		if err := st.putClusterParam(ctx, name, next); err != nil {
			return err
		}
	}
	st.loadQuerySettings()
	return nil
}

// runSetAuditConfig sets auditConfig; the command is an older form of setClusterParameter.
func (st *Settings) runSetAuditConfig(op *command.Op, dst []byte) ([]byte, error) {
	if st.Audit == nil {
		return dst, command.ErrNotAuditing
	}
	var given []value.Field
	for _, k := range []string{"filter", "auditAuthorizationSuccess"} {
		if v := op.Arg(k); !v.IsMissing() {
			given = append(given, value.F(k, v))
		}
	}
	doc, err := st.checkAuditConfig(command.AuditConfig, value.Doc(given...))
	if err != nil {
		return dst, err
	}
	return dst, st.storeClusterParam(op, command.AuditConfig, doc)
}

func (st *Settings) runGetAuditConfig(_ *command.Op, dst []byte) ([]byte, error) {
	if st.Audit == nil {
		return dst, command.ErrNotAuditing
	}
	return command.AppendAuditConfig(dst, st.cluster.get(command.AuditConfig)), nil
}

const clusterParamTime = "clusterParameterTime"

// storeClusterParam stores a parameter with the time at which it was set.
func (st *Settings) storeClusterParam(op *command.Op, name string, doc []byte) error {
	p := &st.cluster
	p.mu.Lock()
	defer p.mu.Unlock()
	return st.putClusterParam(op, name, named(name, doc, value.F(clusterParamTime, (st.Engine.Visible()+1).Value())))
}

func (st *Settings) putClusterParam(ctx context.Context, name string, doc []byte) error {
	p := &st.cluster
	if err := st.Docs.Put(ctx, clusterParamsNS, doc); err != nil {
		return err
	}
	m := make(map[string][]byte)
	for k, v := range *p.cur.Load() {
		m[k] = v
	}
	m[name] = doc
	op, _ := ctx.(*command.Op)
	p.store(op, m)
	return nil
}

func checkChangeStreamOptions(name string, doc []byte) ([]byte, error) {
	bad := mongoerr.New(mongoerr.BadValue, "Validation of changeStreamOptions failed: expected {preAndPostImages: {expireAfterSeconds: <a positive number, or 'off'>}}")
	images := value.Lookup(doc, "preAndPostImages")
	if value.Count(doc) != 1 || images.T != value.Document || value.Count(images.Doc()) != 1 {
		return nil, bad
	}
	v := value.Lookup(images.Doc(), "expireAfterSeconds")
	switch {
	case v.T == value.String && v.Str() == "off":
	case v.T.Numeric() && v.AsFloat64() >= 1:
		v = value.NewInt64(value.SafeInt64(v))
	default:
		return nil, bad
	}
	return value.Doc(value.F("preAndPostImages", value.NewDocument(value.Doc(value.F("expireAfterSeconds", v))))), nil
}

func checkChangeStreams(name string, doc []byte) ([]byte, error) {
	v := value.Lookup(doc, "expireAfterSeconds")
	switch {
	case v.IsNullish():
		return clusterInitial[name], onlyFields(name, doc, "expireAfterSeconds")
	case !v.T.Numeric():
		return nil, command.WrongType(name+".expireAfterSeconds", v.T, command.TNumber)
	case v.AsFloat64() < 1:
		return nil, mongoerr.New(mongoerr.BadValue, "Expected a positive integer for 'expireAfterSeconds' field in changeStreams")
	}
	return value.Doc(value.F("expireAfterSeconds", value.NewInt64(value.SafeInt64(v)))), onlyFields(name, doc, "expireAfterSeconds")
}

func checkMaxTime(name string, doc []byte) ([]byte, error) {
	v := value.Lookup(doc, "readOperations")
	if v.IsNullish() {
		return clusterInitial[name], onlyFields(name, doc, "readOperations")
	}
	if !v.T.Numeric() {
		return nil, command.WrongType(name+".readOperations", v.T, command.TNumber)
	}
	ms := value.SafeInt64(v)
	if ms < 0 || ms > 1<<31-1 {
		return nil, mongoerr.Newf(mongoerr.BadValue, "BSON field 'readOperations' value must be >= 0 and <= 2147483647, actual value '%d'", ms)
	}
	return value.Doc(value.F("readOperations", value.NewInt64(ms))), onlyFields(name, doc, "readOperations")
}

func onlyFields(name string, doc []byte, known ...string) error {
	for k := range value.Elements(doc) {
		ok := false
		for _, f := range known {
			ok = ok || f == k
		}
		if !ok {
			return command.UnknownField(name + "." + k)
		}
	}
	return nil
}

// checkAuditConfig checks the configuration of audit logs. A node whose log was configured at its start, or that has no log,
// returns an error, since the configuration would have no effect there.
func (st *Settings) checkAuditConfig(name string, doc []byte) ([]byte, error) {
	if st.Audit == nil || st.Audit.Runtime == nil {
		return nil, mongoerr.New(mongoerr.RuntimeAuditConfigurationNotEnabled, "Runtime audit configuration is not enabled: it needs an audit log and auditLog.runtimeConfiguration: true")
	}
	filter, success := value.Lookup(doc, "filter"), value.Lookup(doc, "auditAuthorizationSuccess")
	switch {
	case filter.IsNullish():
		filter = value.NewDocument(value.Doc())
	case filter.T != value.Document:
		return nil, command.WrongType(name+".filter", filter.T, command.TObject)
	}
	if !success.IsNullish() && success.T != value.Boolean {
		return nil, command.WrongType(name+".auditAuthorizationSuccess", success.T, command.TBool)
	}
	if err := st.Audit.Runtime.Check(filter.Doc()); err != nil {
		return nil, err
	}
	return value.Doc(value.F("filter", filter), value.F("auditAuthorizationSuccess", value.NewBool(success.Truthy()))),
		onlyFields(name, doc, "filter", "auditAuthorizationSuccess")
}

func refuseDirect(name string, doc []byte) ([]byte, error) {
	return nil, mongoerr.Newf(mongoerr.NoSuchKey, "'%s' cannot be set with setClusterParameter", name)
}

// checkTyped checks that each field has the type of its initial value; null resets a field.
func checkTyped(name string, doc []byte) ([]byte, error) {
	initial := clusterInitial[name]
	for k, v := range value.Elements(doc) {
		was := value.Lookup(initial, k)
		switch {
		case was.IsMissing():
			return nil, command.UnknownField(name + "." + k)
		case v.IsNullish():
		case was.T == value.Boolean && v.T != value.Boolean:
			return nil, command.WrongType(name+"."+k, v.T, command.TBool)
		case was.T.Numeric() && !v.T.Numeric():
			return nil, command.WrongType(name+"."+k, v.T, command.TNumber)
		}
	}
	out, m := value.Begin(nil)
	for k, was := range value.Elements(initial) {
		if v := value.Lookup(doc, k); !v.IsNullish() {
			was = v
		}
		out = value.Append(out, k, was)
	}
	return value.End(out, m), nil
}

// limitRead applies the time limit of defaultMaxTimeMS to a client's read that has none of its own.
func (p *clusterParams) limitRead(op *command.Op) {
	ms := p.maxReadMS.Load()
	if ms <= 0 || op.Req.Spec.Kind != command.Read || op.Req.Spec.Name == "getMore" || op.Client.InProcess || op.Client.Internal {
		return
	}
	if value.Lookup(op.Req.Body, "maxTimeMS").IsMissing() && !op.Granted("bypassDefaultMaxTimeMS") {
		op.SetDeadline(op.Start.Add(time.Duration(ms) * time.Millisecond))
	}
}
