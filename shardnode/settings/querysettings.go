package settings

import (
	hexcode "encoding/hex"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// querySettings has the settings of query shapes (setQuerySettings): the indexes that they may use, and whether they
// are rejected. They are the cluster parameter querySettings.
type querySettings struct {
	mu  sync.Mutex // serialises the commands
	cur atomic.Pointer[[]querySetting]
}

// querySetting holds the settings of one shape.
type querySetting struct {
	hash     string
	settings []byte
	query    []byte // the representative query; nil if the shape was given by its hash
}

func (st *Settings) querySettingsSpecs() []command.Spec {
	set := command.AdminOnly("setQuerySettings", st.runSetQuerySettings, command.Req("settings", command.TObject))
	remove := command.AdminOnly("removeQuerySettings", st.runRemoveQuerySettings)
	set.ArgTypes, remove.ArgTypes = command.TObject|command.TString, command.TObject|command.TString
	return []command.Spec{set, remove}
}

func (s *querySettings) all() []querySetting {
	if p := s.cur.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *querySettings) find(hash string) *querySetting {
	list := s.all()
	for i := range list {
		if list[i].hash == hash {
			return &list[i]
		}
	}
	return nil
}

// loadQuerySettings reads the stored settings.
func (st *Settings) loadQuerySettings() {
	var list []querySetting
	for _, v := range value.Values(value.Lookup(st.cluster.get(querySettingsParam), "settingsArray").Doc()) {
		d := v.Doc()
		list = append(list, querySetting{
			hash: value.Lookup(d, "queryShapeHash").Str(), settings: value.Lookup(d, "settings").Doc(), query: value.Lookup(d, "representativeQuery").Doc(),
		})
	}
	st.queries.cur.Store(&list)
}

// storeQuerySettings replaces the settings, durably.
func (st *Settings) storeQuerySettings(op *command.Op, list []querySetting) error {
	docs := make([]value.Value, len(list))
	for i, s := range list {
		docs[i] = value.NewDocument(s.doc())
	}
	if err := st.storeClusterParam(op, querySettingsParam, value.Doc(value.F("settingsArray", value.NewArray(value.ArrayOf(docs...))))); err != nil {
		return err
	}
	st.queries.cur.Store(&list)
	return nil
}

func (s *querySetting) doc() []byte {
	fields := []value.Field{value.F("queryShapeHash", value.NewString(s.hash)), value.F("settings", value.NewDocument(s.settings))}
	if s.query != nil {
		fields = append(fields, value.F("representativeQuery", value.NewDocument(s.query)))
	}
	return value.Doc(fields...)
}

// queryShape identifies the shape of a query that a command names or a client runs: its hash and its namespace.
type queryShape struct {
	hash, db, coll string
	filter         value.Value
	collation      value.Value
}

// shapeOfCommand reads a find, distinct or aggregate command; ok is false for every other.
func shapeOfCommand(body []byte, db string) (s queryShape, ok bool) {
	it := value.Walk(body)
	k, v, more := it.Next()
	if !more || !shape.TakesSettings(k) {
		return s, false
	}
	s.db, s.coll = db, shape.DatabaseAggregate
	if v.T == value.String {
		s.coll = v.Str()
	}
	switch string(k) {
	case "find":
		s.filter = value.Lookup(body, "filter")
	case "distinct":
		s.filter = value.Lookup(body, "query")
	case "aggregate":
		first, _ := firstStage(value.Lookup(body, "pipeline"))
		s.filter = value.Lookup(first, "$match")
	}
	s.collation = value.Lookup(body, "collation")
	doc, _ := shape.Command(nil, db, body)
	s.hash = shape.Hash(doc)
	return s, true
}

func firstStage(pipeline value.Value) (doc []byte, ok bool) {
	it := value.Walk(pipeline.Doc())
	_, first, ok := it.Next()
	return first.Doc(), ok && first.T == value.Document
}

// targetShape reads the first argument of the commands: a query, or the hash of one.
func targetShape(op *command.Op) (s queryShape, query []byte, err error) {
	cmd := op.Req.Cmd
	if cmd.T == value.String {
		raw, err := hexcode.DecodeString(cmd.Str())
		if err != nil && cmd.Str() != "" && !errorsIsLength(err) {
			return s, nil, mongoerr.Newf(mongoerr.BadValue, "The hash '%s' is not a hexadecimal number", cmd.Str())
		}
		if len(raw) != 32 {
			return s, nil, mongoerr.Newf(mongoerr.InvalidLength, "Unexpected length of a query shape hash: %d", len(cmd.Str()))
		}
		s.hash = strings.ToUpper(cmd.Str())
		return s, nil, nil
	}
	body := cmd.Doc()
	db := value.Lookup(body, "$db")
	it := value.Walk(body)
	if k, _, ok := it.Next(); !ok || !shape.TakesSettings(k) {
		return s, nil, mongoerr.Newf(7746402, "QueryShape can not be computed for command: %s", value.Show(cmd))
	}
	if db.IsNullish() {
		return s, nil, command.MissingField(op.Req.Spec.Name + ".$db")
	}
	if db.T != value.String {
		return s, nil, command.WrongType(op.Req.Spec.Name+".$db", db.T, command.TString)
	}
	if err := command.CheckDBName(db.Str()); err != nil {
		return s, nil, err
	}
	s, _ = shapeOfCommand(body, db.Str())
	return s, append([]byte(nil), body...), nil
}

func errorsIsLength(err error) bool { return err == hexcode.ErrLength }

func (st *Settings) runSetQuerySettings(op *command.Op, dst []byte) ([]byte, error) {
	if err := st.needSet(op, "setQuerySettings"); err != nil {
		return dst, err
	}
	shape, query, err := targetShape(op)
	if err != nil {
		return dst, err
	}
	given := op.Req.Doc("settings")
	if err := checkSettings(given); err != nil {
		return dst, err
	}
	if query != nil {
		if err := shape.settable(); err != nil {
			return dst, err
		}
	}
	qs := &st.queries
	qs.mu.Lock()
	defer qs.mu.Unlock()
	next := querySetting{hash: shape.hash, query: query}
	var list []querySetting
	var old []byte
	for _, s := range qs.all() {
		if s.hash == shape.hash {
			old = s.settings
			if next.query == nil {
				next.query = s.query
			}
			continue
		}
		list = append(list, s)
	}
	next.settings = mergeSettings(old, given)
	if trivialSettings(next.settings) {
		return dst, mongoerr.New(7746604, "the resulting settings cannot be empty or contain only default values")
	}
	if err := st.storeQuerySettings(op, append(list, next)); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "queryShapeHash", value.NewString(next.hash))
	if next.query != nil {
		dst = value.Append(dst, "representativeQuery", value.NewDocument(next.query))
	}
	return value.Append(dst, "settings", value.NewDocument(next.settings)), nil
}

func (st *Settings) runRemoveQuerySettings(op *command.Op, dst []byte) ([]byte, error) {
	if err := st.needSet(op, "removeQuerySettings"); err != nil {
		return dst, err
	}
	shape, _, err := targetShape(op)
	if err != nil {
		return dst, err
	}
	qs := &st.queries
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var list []querySetting
	for _, s := range qs.all() {
		if s.hash != shape.hash {
			list = append(list, s)
		}
	}
	if len(list) == len(qs.all()) {
		return dst, nil
	}
	return dst, st.storeQuerySettings(op, list)
}

// settable returns an error for queries that cannot have settings.
func (s *queryShape) settable() error {
	if namespace.IsSystemDB(s.db+".x") || strings.HasPrefix(s.coll, "system.") {
		return mongoerr.New(8584900, "setting query settings on queries over internal databases and system collections is not allowed")
	}
	it := value.Walk(s.filter.Doc())
	k, v, ok := it.Next()
	_, _, second := it.Next()
	if ok && !second && string(k) == "_id" && s.collation.T != value.Document && v.T != value.Regex && (v.T != value.Document || !value.IsOperatorDoc(v.Doc())) {
		return mongoerr.New(7746606, "setting query settings on queries that look up one document by _id is not allowed")
	}
	return nil
}

// mergeSettings writes the given settings over the old ones.
func mergeSettings(old, given []byte) []byte {
	out, m := value.Begin(nil)
	for k, v := range value.Elements(old) {
		if value.Lookup(given, k).IsNullish() {
			out = value.Append(out, k, v)
		}
	}
	for k, v := range value.Elements(given) {
		if !v.IsNullish() {
			out = value.Append(out, k, v)
		}
	}
	return value.End(out, m)
}

// trivialSettings reports whether settings change nothing.
func trivialSettings(doc []byte) bool {
	for k, v := range value.Elements(doc) {
		switch k {
		case "comment":
		case "reject":
			if v.Truthy() {
				return false
			}
		case "indexHints":
			for _, h := range hintList(v) {
				if value.Count(value.Lookup(h.Doc(), "allowedIndexes").Doc()) > 0 {
					return false
				}
			}
		default:
			return false
		}
	}
	return true
}

func hintList(v value.Value) []value.Value {
	if v.T == value.Array {
		return value.Values(v.Doc())
	}
	return []value.Value{v}
}

// checkSettings checks the argument settings.
func checkSettings(doc []byte) error {
	if value.Count(doc) == 0 {
		return mongoerr.New(8727502, "settings field in setQuerySettings command cannot be empty")
	}
	for k, v := range value.Elements(doc) {
		path := "setQuerySettings.settings." + k
		switch k {
		case "indexHints":
			if v.IsNullish() {
				continue
			}
			if v.T != value.Array && v.T != value.Document {
				return command.WrongType(path, v.T, command.TObject|command.TArray)
			}
			for i, h := range hintList(v) {
				if h.T != value.Document {
					return command.WrongType(path+"."+strconv.Itoa(i), h.T, command.TObject)
				}
				if err := checkIndexHint(path, h.Doc()); err != nil {
					return err
				}
			}
		case "queryFramework":
			if v.IsNullish() {
				continue
			}
			if v.T != value.String {
				return command.WrongType(path, v.T, command.TString)
			}
			if s := v.Str(); s != "classic" && s != "sbe" {
				return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", s, path)
			}
		case "reject":
			if v.T != value.Boolean {
				return command.WrongType(path, v.T, command.TBool)
			}
		case "comment":
		default:
			return command.UnknownField(path)
		}
	}
	return nil
}

func checkIndexHint(path string, doc []byte) error {
	var ns, allowed value.Value
	for k, v := range value.Elements(doc) {
		switch k {
		case "ns":
			if ns = v; !v.IsNullish() && v.T != value.Document {
				return command.WrongType(path+".ns", v.T, command.TObject)
			}
		case "allowedIndexes":
			if allowed = v; !v.IsNullish() && v.T != value.Array {
				return command.WrongType(path+".allowedIndexes", v.T, command.TArray)
			}
		default:
			return command.UnknownField(path + "." + k)
		}
	}
	if ns.IsNullish() {
		return command.MissingField(path + ".ns")
	}
	if allowed.IsNullish() {
		return command.MissingField(path + ".allowedIndexes")
	}
	for _, v := range value.Values(allowed.Doc()) {
		if v.T != value.String && v.T != value.Document {
			return mongoerr.New(mongoerr.FailedToParse, "Hint must be a string or an object")
		}
	}
	for _, f := range []struct {
		name string
		code mongoerr.Code
	}{{"db", 8727500}, {"coll", 8727501}} {
		v := value.Lookup(ns.Doc(), f.name)
		if v.IsNullish() {
			return mongoerr.Newf(f.code, "Invalid namespace: %s is missing", f.name)
		}
		if v.T != value.String {
			return command.WrongType(path+".ns."+f.name, v.T, command.TString)
		}
	}
	return nil
}

// reject returns an error for a query whose shape is rejected by its settings.
func (s *querySettings) reject(op *command.Op) error {
	list := s.all()
	if len(list) == 0 || !shape.TakesSettings([]byte(op.Req.Spec.Name)) || op.Client.Internal {
		return nil // the router has checked it already
	}
	shape, ok := shapeOfCommand(op.Req.Body, op.Req.DB)
	if !ok {
		return nil
	}
	if q := s.find(shape.hash); q != nil && value.Lookup(q.settings, "reject").Truthy() {
		return mongoerr.New(mongoerr.QueryRejectedBySettings, "Query rejected by admin query settings")
	}
	return nil
}

// apply restricts a query to the indexes that the settings of its command's shape name for its collection; they
// take precedence over a hint, and an index filter over them.
func (s *querySettings) apply(op *command.Op, namespace string, pq *plan.Query) {
	set := s.of(op)
	if set == nil {
		return
	}
	for _, h := range hintList(value.Lookup(set, "indexHints")) {
		ns := value.Lookup(h.Doc(), "ns").Doc()
		if value.Lookup(ns, "db").Str() != catalog.DBOf(namespace) || value.Lookup(ns, "coll").Str() != catalog.CollOf(namespace) {
			continue
		}
		f := &exec.IndexFilter{Indexes: value.Values(value.Lookup(h.Doc(), "allowedIndexes").Doc())}
		pq.Allowed, pq.Hint = f.Allows, value.Value{}
	}
}

var settingsField = value.NewFieldName(querySettingsParam)

// of returns the settings of a query: those that a router sends with it, since the router saw the client's
// command, else the node's own for its shape; nil for none.
func (s *querySettings) of(op *command.Op) []byte {
	if op == nil || len(s.all()) == 0 && !op.Client.Internal {
		return nil
	}
	body := op.Req.Body
	if op.Req.Spec.Name == "explain" {
		body = op.Req.Cmd.Doc()
	}
	if op.Client.Internal {
		v := settingsField.Lookup(body)
		return v.Doc()
	}
	shape, ok := shapeOfCommand(body, op.Req.DB)
	if !ok {
		return nil
	}
	if set := s.find(shape.hash); set != nil {
		return set.settings
	}
	return nil
}

// QuerySettingsStage returns the documents of $querySettings.
func (st *Settings) QuerySettingsStage(spec []byte) [][]byte {
	var out [][]byte
	for _, s := range st.queries.all() {
		doc := s.doc()
		if value.Lookup(spec, "showDebugQueryShape").Truthy() && s.query != nil {
			doc = value.Doc(append(elementsOf(doc), value.F("debugQueryShape", value.NewDocument(debugShape(s.query))))...)
		}
		out = append(out, doc)
	}
	return out
}

func elementsOf(doc []byte) (out []value.Field) {
	for k, v := range value.Elements(doc) {
		out = append(out, value.F(k, v))
	}
	return out
}

// debugShape returns a query with the type of each value in its place.
func debugShape(query []byte) []byte {
	out, m := value.Begin(nil)
	it := value.Walk(query)
	k, v, _ := it.Next()
	out = value.Append(out, "cmdNs", value.NewDocument(value.Doc(value.F("db", value.Lookup(query, "$db")), value.F("coll", v))))
	out = value.Append(out, "command", value.NewString(string(k)))
	for {
		k, v, ok := it.Next()
		if !ok {
			return value.End(out, m)
		}
		switch string(k) {
		case "$db":
		case "filter", "query", "pipeline":
			out = value.Append(out, string(k), abstract(v))
		default:
			out = value.Append(out, string(k), v)
		}
	}
}

func abstract(v value.Value) value.Value {
	switch {
	case v.T == value.Document:
		var fields []value.Field
		for k, e := range value.Elements(v.Doc()) {
			fields = append(fields, value.F(k, abstract(e)))
		}
		return value.NewDocument(value.Doc(fields...))
	case v.T == value.Array:
		var list []value.Value
		for _, e := range value.Values(v.Doc()) {
			list = append(list, abstract(e))
		}
		return value.NewArray(value.ArrayOf(list...))
	case v.T.Numeric():
		return value.NewString("?number")
	}
	return value.NewString("?" + v.T.Name())
}
