package auth

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Request is a rule's view of a request.
type Request struct {
	Name string // the command's own name, whichever alias the client used
	DB   string
	Msg  *wire.Message
	Who  *Identity
	// Named is the collection that the request identifies by UUID, if known.
	Named string
	// Router means that a router has received the request.
	Router bool

	// Wrong is the error of an argument that a rule could not read; the request is refused with it.
	Wrong error

	// ambiguous means that a field was looked up that the request contains twice.
	ambiguous bool
}

// wrong refuses a request because of an argument that cannot be read. A rule never leaves that to the command, which might
// read the argument differently from the rule.
func (r *Request) wrong(err error) bool {
	if r.Wrong == nil {
		r.Wrong = err
	}
	return false
}

func (r *Request) wrongType(field string, v value.Value, want string) bool {
	return r.wrong(mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type '%s'", r.Name, field, v.T.Name(), want))
}

// text reads an optional string, for which null counts as not sent.
func (r *Request) text(field string, v value.Value) (s string, ok bool) {
	switch {
	case v.T == value.String:
		return v.Str(), true
	case v.IsNullish():
		return "", true
	}
	return "", r.wrongType(field, v, "string")
}

// Arg returns an element of the command.
func (r *Request) Arg(name string) value.Value { return r.lookup(r.Msg.Body, name) }

// lookup finds an element of a document. If there are two with that name the request is not allowed: it must not
// be guessed which of them the command would use.
func (r *Request) lookup(doc []byte, name string) (found value.Value) {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return found
		}
		if string(k) != name {
			continue
		}
		if !found.IsMissing() {
			r.ambiguous = true
			return found
		}
		found = v
	}
}

// first returns the value of a command's first element.
func first(msg *wire.Message) value.Value {
	it := value.Walk(msg.Body)
	_, v, _ := it.Next()
	return v
}

// firstText returns that value if it is a string.
func firstText(msg *wire.Message) string {
	if v := first(msg); v.T == value.String {
		return v.Str()
	}
	return ""
}

func (r *Request) first() value.Value { return first(r.Msg) }

// coll returns the collection that the command names, empty if it names none.
func (r *Request) coll() string { return firstText(r.Msg) }

// statements calls f with each document of a list in the body or in a document sequence, as long as f returns
// true; it returns f's last result.
func (r *Request) statements(name string, f func(doc []byte) bool) bool {
	for i := range r.Msg.Seqs {
		if r.Msg.Seqs[i].ID != name {
			continue
		}
		for rest := r.Msg.Seqs[i].Docs; len(rest) >= 5; {
			v, ok := value.FromElement(value.Document, rest)
			if !ok || !f(v.Doc()) {
				return false
			}
			rest = rest[len(v.Doc()):]
		}
	}
	list := r.Arg(name)
	if list.IsNullish() {
		return true
	}
	if list.T != value.Array {
		return r.wrongType(name, list, "array")
	}
	for _, v := range value.Values(list.Doc()) {
		if v.T != value.Document {
			return r.wrongType(name, v, "object")
		}
		if !f(v.Doc()) {
			return false
		}
	}
	return true
}

// Rule has the privileges that a command requires.
type Rule struct {
	// Open commands are allowed for every client, even before authentication.
	Open bool
	on   scope
	need ActionSet
	// check expresses what a scope and a set of actions cannot; if both are set, both must allow.
	check func(g *Grants, r *Request) bool
}

// scope is the resource that a rule's actions must be allowed on.
type scope uint8

const (
	onNothing  scope = iota // being authenticated is enough
	onCluster               // the cluster
	onColl                  // the collection that the command names, in the database it is sent to
	onDB                    // that database
	onFullName              // the namespace that the command's value spells out
	onNamedDB               // the database that the command's value names
)

// Allows reports whether an identity may run a request.
func (rule *Rule) Allows(r *Request) bool {
	return rule.allowsScope(r.DB, r.Named, r.Msg, r.Who.Grants) && (rule.check == nil || rule.check(r.Who.Grants, r)) && !r.ambiguous && r.Wrong == nil
}

// AllowsPlain is Allows for a rule that a scope and a set of actions express, as those of most commands; plain is false for others. It needs no
// Request, which a check would have allocated.
func (rule *Rule) AllowsPlain(db, named string, msg *wire.Message, who *Identity) (allowed, plain bool) {
	if rule.check != nil {
		return false, false
	}
	return rule.allowsScope(db, named, msg, who.Grants), true
}

// allowsScope reports whether the rule's actions are allowed on its resource.
func (rule *Rule) allowsScope(db, named string, msg *wire.Message, g *Grants) bool {
	switch rule.on {
	case onCluster:
		return g.AllowCluster(rule.need)
	case onColl:
		switch first := first(msg); {
		case first.T == value.String:
			return g.Allow(rule.need, db, first.Str())
		case first.T != value.Binary:
			return g.Allow(rule.need, db, "")
		case named != "":
			return g.AllowCluster(actUUID) && g.Allow(rule.need, db, named)
		default: // it may be any
			return g.AllowCluster(actUUID) && g.Covers(Privilege{On: Resource{Any: true}, Actions: rule.need})
		}
	case onDB:
		return g.Allow(rule.need, db, "")
	case onFullName:
		db, coll, _ := strings.Cut(firstText(msg), ".")
		return g.Allow(rule.need, db, coll)
	case onNamedDB:
		return g.Allow(rule.need, firstText(msg), "")
	}
	return true
}

var (
	actFind     = Actions("find")
	actInsert   = Actions("insert")
	actUpdate   = Actions("update")
	actRemove   = Actions("remove")
	actBypass   = Actions("bypassDocumentValidation")
	actInternal = Actions("internal")
	actUUID     = Actions("useUUID")
	actRawData  = Actions("performRawDataOperations")
)

// RuleFor finds the rule of a command by its own name: the one in the table, or the rule for members for names
// that begin with an underscore; nil if there is none.
func RuleFor(command string) *Rule {
	rule := rules[command]
	if rule == nil && strings.HasPrefix(command, "_") {
		return members
	}
	return rule
}

// MayInternal reports whether an identity may do what only members do.
func (id *Identity) MayInternal() bool { return id.System || id.Grants.AllowCluster(actInternal) }

// bypasses reports whether the request disables document validation.
func (r *Request) bypasses() bool { return r.Arg("bypassDocumentValidation").Truthy() }

func checkBypass(g *Grants, r *Request) bool {
	return !r.bypasses() || g.Allow(actBypass, r.DB, r.coll())
}

func checkUpdate(g *Grants, r *Request) bool {
	if !checkBypass(g, r) {
		return false
	}
	return r.statements("updates", func(doc []byte) bool {
		return !r.lookup(doc, "upsert").Truthy() || g.Allow(actInsert, r.DB, r.coll())
	})
}

func checkFindAndModify(g *Grants, r *Request) bool {
	need := actFind
	if r.Arg("remove").Truthy() {
		need.AddAll(actRemove)
	} else {
		need.AddAll(actUpdate)
		if r.Arg("upsert").Truthy() {
			need.AddAll(actInsert)
		}
	}
	return g.Allow(need, r.DB, r.coll()) && checkBypass(g, r)
}

// checkBulkWrite requires what each operation does to its namespace.
func checkBulkWrite(g *Grants, r *Request) bool {
	var names []string
	ok := r.statements("nsInfo", func(doc []byte) bool {
		ns := r.lookup(doc, "ns")
		if ns.T != value.String {
			return r.wrongType("nsInfo.ns", ns, "string")
		}
		names = append(names, ns.Str())
		for _, name := range []string{"shardVersion", "databaseVersion"} { // which only members send
			if !r.lookup(doc, name).IsNullish() && !r.Who.MayInternal() {
				return false
			}
		}
		return true
	})
	need := make([]ActionSet, len(names))
	ok = ok && r.statements("ops", func(doc []byte) bool {
		it := value.Walk(doc)
		kind, at, _ := it.Next()
		i, err := BulkIndex(string(kind), at)
		if err == nil && i >= int64(len(need)) {
			err = mongoerr.Newf(mongoerr.BadValue, "BulkWrite ops entry has an invalid nsInfo index: %d", i)
		}
		if err != nil {
			return r.wrong(err)
		}
		switch string(kind) {
		case "insert":
			need[i].AddAll(actInsert)
		case "update":
			need[i].AddAll(actUpdate)
			if r.lookup(doc, "upsert").Truthy() {
				need[i].AddAll(actInsert)
			}
		case "delete":
			need[i].AddAll(actRemove)
		default:
			return r.wrong(mongoerr.UnknownField("bulkWrite." + string(kind)))
		}
		if r.bypasses() {
			need[i].AddAll(actBypass)
		}
		return true
	})
	for i, ns := range names {
		db, coll, _ := strings.Cut(ns, ".")
		ok = ok && g.Allow(need[i], db, coll)
	}
	return ok
}

// BulkIndex reads the namespace index of a bulkWrite's operation; the command and the check of its privileges both use it. A
// fraction is an error: rounded, it would be the index of some namespace.
func BulkIndex(kind string, v value.Value) (int64, error) {
	if v.IsNullish() {
		return 0, mongoerr.MissingField(kind + "." + kind)
	}
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected types '[long, int, decimal, double]'", kind, kind, v.T.Name())
	}
	i, ok := v.AsInt64()
	if !ok {
		return 0, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' must be an integer, actual value '%s'", kind, kind, value.Show(v))
	}
	if i < 0 {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 0, actual value '%d'", kind, i)
	}
	return i, nil
}

// MayRawData reports whether the identity may send rawData: true with a request: performRawDataOperations on every collection that it names, whatever
// kind of collection that is (SERVER-101383, SERVER-121847). Members may (SERVER-102666).
func MayRawData(r *Request) bool {
	if r.Who.MayInternal() {
		return true
	}
	g := r.Who.Grants
	switch first := r.first(); {
	case r.Name == "bulkWrite":
		return r.statements("nsInfo", func(doc []byte) bool {
			db, coll, _ := strings.Cut(r.lookup(doc, "ns").Str(), ".")
			return g.Allow(actRawData, db, coll)
		})
	case r.Named != "":
		return g.Allow(actRawData, r.DB, r.Named)
	case first.T == value.Document: // explain's
		return g.Allow(actRawData, r.DB, firstText(&wire.Message{Body: first.Doc()}))
	default:
		return g.Allow(actRawData, r.DB, r.coll())
	}
}

// checkMapReduce requires reading, and writing to the target collection.
func checkMapReduce(g *Grants, r *Request) bool {
	if !g.Allow(actFind, r.DB, r.coll()) {
		return false
	}
	out := r.Arg("out")
	db, coll, need := r.DB, "", actInsert
	switch out.T {
	case value.String:
		coll = out.Str()
		need.AddAll(actRemove)
	case value.Document:
		into, ok := r.text("out.db", r.lookup(out.Doc(), "db"))
		if !ok {
			return false
		}
		if into != "" {
			db = into
		}
		for k, v := range value.Elements(out.Doc()) {
			if k != "replace" && k != "merge" && k != "reduce" {
				continue
			}
			if v.T != value.String {
				return r.wrongType("out."+k, v, "string")
			}
			if coll != "" {
				return r.wrong(mongoerr.New(mongoerr.BadValue, "mapReduce's 'out' must name one collection"))
			}
			coll = v.Str()
			need.AddAll(actUpdate)
			if k == "replace" {
				need = actInsert
				need.AddAll(actRemove)
			}
		}
	default:
		return r.wrongType("out", out, "object")
	}
	if r.bypasses() {
		need.AddAll(actBypass)
	}
	return coll == "" || g.Allow(need, db, coll)
}

// checkRename requires renameCollectionSameDB within a database, and what a copy requires between two.
func checkRename(g *Grants, r *Request) bool {
	target := r.Arg("to")
	if target.T != value.String {
		return r.wrongType("to", target, "string")
	}
	fromDB, from, _ := strings.Cut(r.coll(), ".")
	toDB, to, _ := strings.Cut(target.Str(), ".")
	drop := r.Arg("dropTarget").Truthy()
	if drop && !g.Allow(Actions("dropCollection"), toDB, to) {
		return false
	}
	if fromDB == toDB && !isSystem(fromDB, from) && !isSystem(toDB, to) && g.Allow(Actions("renameCollectionSameDB"), fromDB, "") {
		// A rename must not make a collection readable that was not readable under its own name.
		return g.Allow(actFind, fromDB, from) || !g.Allow(actFind, toDB, to)
	}
	return g.Allow(Actions("find dropCollection"), fromDB, from) && g.Allow(Actions("insert createIndex"), toDB, to)
}

// checkCreate requires createCollection, or insert if there is no option of a capped collection; for a view, its
// creator must also be allowed to read what it shows.
func checkCreate(g *Grants, r *Request) bool {
	coll := r.coll()
	if !g.Allow(Actions("createCollection"), r.DB, coll) && (r.Arg("capped").Truthy() || !g.Allow(actInsert, r.DB, coll)) {
		return false
	}
	on := r.Arg("viewOn")
	return on.IsNullish() && r.Arg("pipeline").IsNullish() || viewAllowed(g, r, on)
}

// checkCollMod requires that a user who changes a view may read what it then shows. That is known only if the
// command states both parts of the definition.
func checkCollMod(g *Grants, r *Request) bool {
	on, stages := r.Arg("viewOn"), r.Arg("pipeline")
	if on.IsNullish() != stages.IsNullish() {
		return r.wrong(mongoerr.New(mongoerr.InvalidOptions, "Must specify both 'viewOn' and 'pipeline' when modifying a view and auth is enabled"))
	}
	return on.IsNullish() || viewAllowed(g, r, on)
}

func viewAllowed(g *Grants, r *Request, on value.Value) bool {
	if on.T != value.String {
		return r.wrongType("viewOn", on, "string")
	}
	if on.Str() == "" {
		return r.wrong(mongoerr.New(mongoerr.BadValue, "'viewOn' cannot be empty"))
	}
	return pipelineAllowed(g, r, r.DB, on.Str(), r.Arg("pipeline"))
}

func checkAggregate(g *Grants, r *Request) bool {
	return pipelineAllowed(g, r, r.DB, r.coll(), r.Arg("pipeline"))
}

// checkExplain requires what the explained command requires.
func checkExplain(g *Grants, r *Request) bool {
	v := r.first()
	it := value.Walk(v.Doc())
	name, _, ok := it.Next()
	if v.T != value.Document {
		return r.wrongType("explain", v, "object")
	}
	if !ok {
		return r.wrong(mongoerr.New(mongoerr.CommandNotFound, "Explain failed due to unknown command: "))
	}
	in := Request{Name: canonical(string(name)), DB: r.DB, Msg: &wire.Message{Body: v.Doc()}, Who: r.Who, Router: r.Router}
	rule := RuleFor(in.Name)
	return rule != nil && in.Name != "explain" && rule.Allows(&in) || r.wrong(in.Wrong)
}

// checkApplyOps requires, for each operation, the privileges of the command that has the same effect (SERVER-25994), in addition to the right to
// run applyOps at all. An inserted document replaces one with the same _id. An operation that names its collection by a UUID
// may name any: the command itself checks the one that it finds.
func checkApplyOps(g *Grants, r *Request) bool {
	list := r.first()
	if list.T != value.Array {
		return r.wrongType("applyOps", list, "array")
	}
	for _, v := range value.Values(list.Doc()) {
		if v.T != value.Document {
			return r.wrongType("applyOps", v, "object")
		}
		kind, ns := r.lookup(v.Doc(), "op"), r.lookup(v.Doc(), "ns")
		if kind.T != value.String {
			return r.wrongType("op", kind, "string")
		}
		if ns.T != value.String {
			return r.wrongType("ns", ns, "string")
		}
		if !r.lookup(v.Doc(), "ui").IsMissing() && !g.AllowCluster(Actions("useUUID forceUUID")) {
			return false
		}
		if kind.Str() == "c" {
			if !appliedCommand(g, r, ns.Str(), r.lookup(v.Doc(), "o")) {
				return false
			}
			continue
		}
		need, ok := AppliedActions(kind.Str())
		if !ok {
			return r.wrong(mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'applyOps.op' is not a valid value.", kind.Str()))
		}
		db, coll, _ := strings.Cut(ns.Str(), ".")
		if !g.Allow(Actions(need), db, coll) || r.bypasses() && need != "" && !g.Allow(actBypass, db, coll) {
			return false
		}
	}
	return true
}

// AppliedActions returns what an operation of applyOps on documents requires, by the operation's kind.
func AppliedActions(kind string) (actions string, ok bool) {
	switch kind {
	case "i":
		return "insert update", true
	case "u":
		return "update", true
	case "d":
		return "remove", true
	case "n":
		return "", true
	}
	return "", false
}

// appliedCommand reports whether a command within applyOps is allowed. It runs as a request of its own and is checked there again,
// but no operation is applied before all are known to be allowed.
func appliedCommand(g *Grants, r *Request, ns string, o value.Value) bool {
	if o.T != value.Document {
		return r.wrongType("o", o, "object")
	}
	it := value.Walk(o.Doc())
	name, _, _ := it.Next()
	if err := CheckLoggedCommand(string(name)); err != nil {
		return r.wrong(err)
	}
	db, _, _ := strings.Cut(ns, ".")
	in := Request{Name: canonical(string(name)), DB: db, Msg: &wire.Message{Body: o.Doc()}, Who: r.Who, Router: r.Router}
	if in.Name == "applyOps" {
		return checkApplyOps(g, &in) || r.wrong(in.Wrong)
	}
	return RuleFor(in.Name).Allows(&in) || r.wrong(in.Wrong)
}

// loggedCommands are the commands that applyOps applies: what changes the catalog, and lists of operations. They are those of which mongorestore
// makes entries when it replays an oplog. Entries of index builds (startIndexBuild and its like) and dbCheck are not among them: it leaves
// those out, or sends a createIndexes instead.
var loggedCommands = map[string]bool{
	"create": true, "collMod": true, "drop": true, "dropDatabase": true, "renameCollection": true, "createIndexes": true, "dropIndexes": true,
	"deleteIndexes": true, "convertToCapped": true, "emptycapped": true, "applyOps": true,
}

// CheckLoggedCommand returns an error unless applyOps applies the command.
func CheckLoggedCommand(name string) error {
	if loggedCommands[name] {
		return nil
	}
	return mongoerr.Newf(mongoerr.BadValue, "applyOps does not apply the command '%s'", name)
}

// canonical returns the command's own name for an alias, for the commands that explain and applyOps accept.
func canonical(name string) string {
	switch name {
	case "findandmodify":
		return "findAndModify"
	case "mapreduce":
		return "mapReduce"
	case "deleteIndexes":
		return "dropIndexes"
	}
	return name
}

// checkListCollections allows users with the privilege, and requests for only the names of what the user may
// access anyway.
func checkListCollections(g *Grants, r *Request) bool {
	return g.Allow(Actions("listCollections"), r.DB, "") || r.Arg("nameOnly").Truthy() && r.Arg("authorizedCollections").Truthy()
}

// checkListDatabases allows users without the action to list the databases that they may use, unless the request asks for
// more.
func checkListDatabases(g *Grants, r *Request) bool {
	v := r.Arg("authorizedDatabases")
	return v.IsNullish() || v.Truthy() || g.AllowCluster(Actions("listDatabases"))
}

// checkKillOp allows everything: the command itself checks the owner of the operation.
func checkKillOp(*Grants, *Request) bool { return true }

// checkCurrentOp allows all users to see their own operations, but not on a router, where the command is about those of the shards.
func checkCurrentOp(g *Grants, r *Request) bool {
	return !r.Router && r.Arg("$ownOps").Truthy() || g.AllowCluster(Actions("inprog"))
}

func checkKillSessionsByPattern(g *Grants, r *Request) bool {
	for _, p := range value.Values(r.first().Doc()) {
		for k := range value.Elements(p.Doc()) {
			if (k == "users" || k == "roles") && !g.AllowCluster(Actions("impersonate")) {
				return false
			}
		}
	}
	return true
}

// checkZones allows changing zones with the privilege on the cluster, or to write the underlying documents.
func checkZones(needs string) func(g *Grants, r *Request) bool {
	return func(g *Grants, r *Request) bool {
		if g.AllowCluster(Actions("enableSharding")) {
			return true
		}
		for _, ns := range strings.Fields(needs) {
			coll, acts, _ := strings.Cut(ns, ":")
			if !g.Allow(Actions(strings.ReplaceAll(acts, ",", " ")), "config", coll) {
				return false
			}
		}
		return true
	}
}

// checkProfile requires less for reading the level than for setting it.
func checkProfile(g *Grants, r *Request) bool {
	if g.Allow(Actions("enableProfiler"), r.DB, "") {
		return true
	}
	level, _ := r.first().AsInt64()
	return level == -1 && r.Arg("slowms").IsMissing() && r.Arg("sampleRate").IsMissing() && r.Arg("filter").IsMissing() &&
		g.Allow(actFind, r.DB, "system.profile")
}

func checkDBHash(g *Grants, r *Request) bool { return g.Allow(Actions("dbHash"), r.DB, "") }

func checkDataSize(g *Grants, r *Request) bool {
	db, coll, _ := strings.Cut(r.coll(), ".")
	return g.Allow(actFind, db, coll)
}

func checkCloneCapped(g *Grants, r *Request) bool {
	to := r.Arg("toCollection")
	if to.T != value.String {
		return r.wrongType("toCollection", to, "string")
	}
	return g.Allow(actFind, r.DB, r.coll()) && g.Allow(Actions("insert createIndex convertToCapped"), r.DB, to.Str())
}

// checkValidateDB requires validate on one database, or on all if none is named.
func checkValidateDB(g *Grants, r *Request) bool {
	db, ok := r.text("db", r.Arg("db"))
	coll, ok2 := r.text("collection", r.Arg("collection"))
	if !ok || !ok2 {
		return false
	}
	if db != "" {
		return g.Allow(Actions("validate"), db, coll)
	}
	return g.AllowAll(Actions("validate"))
}

func checkOplogStats(g *Grants, _ *Request) bool {
	return g.Allow(Actions("collStats"), "local", "oplog.rs")
}

func checkEncryptionCounts(g *Grants, r *Request) bool { return g.Allow(actFind, r.DB, r.coll()) }

// checkOrCluster requires an action on the cluster or on the collection named in full.
func checkOrCluster(action string) func(g *Grants, r *Request) bool {
	need := Actions(action)
	return func(g *Grants, r *Request) bool {
		db, c, _ := strings.Cut(r.coll(), ".")
		return g.AllowCluster(need) || g.Allow(need, db, c)
	}
}

// checkAnalyzeShardKey also allows users who may shard the collection.
func checkAnalyzeShardKey(g *Grants, r *Request) bool {
	db, c, _ := strings.Cut(r.coll(), ".")
	return g.Allow(Actions("analyzeShardKey"), db, c) || g.Allow(Actions("enableSharding"), db, c)
}

func checkSettings(g *Grants, _ *Request) bool { return g.Allow(actUpdate, "config", "settings") }

func checkBalancerStatus(g *Grants, _ *Request) bool { return g.Allow(actFind, "config", "settings") }

// checkMetadata requires the action on what is checked: the whole cluster, a database or a collection.
func checkMetadata(g *Grants, r *Request) bool {
	need := Actions("checkMetadataConsistency")
	return g.AllowCluster(need) || r.coll() == "" && r.DB != "admin" && g.Allow(need, r.DB, "") || r.coll() != "" && g.Allow(need, r.DB, r.coll())
}
