package auth

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Request is a rule's view of a request.
type Request struct {
	Name string // the command's own name, whichever alias the client used
	DB   string
	Msg  *wire.Message
	Who  *Identity
	// Named is the collection that the request identifies by UUID, if known.
	Named string

	// ambiguous means that a field was looked up that the request contains twice.
	ambiguous bool
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

// first returns the value of the request's first element.
func (r *Request) first() value.Value {
	it := value.Walk(r.Msg.Body)
	_, v, _ := it.Next()
	return v
}

// coll returns the collection that the command names, empty if it names none.
func (r *Request) coll() string {
	if v := r.first(); v.T == value.String {
		return v.Str()
	}
	return ""
}

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
	for _, v := range value.Values(r.Arg(name).Doc()) {
		if v.T == value.Document && !f(v.Doc()) {
			return false
		}
	}
	return true
}

// Rule is what a command requires.
type Rule struct {
	// Open commands are allowed for everybody, even before authentication.
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
	g := r.Who.Grants
	ok := true
	switch rule.on {
	case onCluster:
		ok = g.AllowCluster(rule.need)
	case onColl:
		switch first := r.first(); {
		case first.T == value.String:
			ok = g.Allow(rule.need, r.DB, first.Str())
		case first.T != value.Binary:
			ok = g.Allow(rule.need, r.DB, "")
		case r.Named != "":
			ok = g.AllowCluster(actUUID) && g.Allow(rule.need, r.DB, r.Named)
		default: // it may be any
			ok = g.AllowCluster(actUUID) && g.Covers(Privilege{On: Resource{Any: true}, Actions: rule.need})
		}
	case onDB:
		ok = g.Allow(rule.need, r.DB, "")
	case onFullName:
		db, coll, _ := strings.Cut(r.coll(), ".")
		ok = g.Allow(rule.need, db, coll)
	case onNamedDB:
		ok = g.Allow(rule.need, r.coll(), "")
	}
	return ok && (rule.check == nil || rule.check(g, r)) && !r.ambiguous
}

var (
	actFind     = Actions("find")
	actInsert   = Actions("insert")
	actUpdate   = Actions("update")
	actRemove   = Actions("remove")
	actBypass   = Actions("bypassDocumentValidation")
	actInternal = Actions("internal")
	actUUID     = Actions("useUUID")
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
	r.statements("nsInfo", func(doc []byte) bool {
		names = append(names, r.lookup(doc, "ns").Str())
		return true
	})
	need := make([]ActionSet, len(names))
	ok := r.statements("ops", func(doc []byte) bool {
		it := value.Walk(doc)
		kind, at, _ := it.Next()
		i, isInt := at.AsInt64()
		if !isInt || i < 0 || i >= int64(len(need)) {
			return true // the command refuses it
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
		if d := r.lookup(out.Doc(), "db"); d.T == value.String {
			db = d.Str()
		}
		for k, v := range value.Elements(out.Doc()) {
			switch k {
			case "replace":
				coll = v.Str()
				need.AddAll(actRemove)
			case "merge", "reduce":
				coll = v.Str()
				need.AddAll(actUpdate)
			}
		}
	}
	if r.bypasses() {
		need.AddAll(actBypass)
	}
	return coll == "" || g.Allow(need, db, coll)
}

// checkRename requires renameCollectionSameDB within a database, and what a copy requires between two.
func checkRename(g *Grants, r *Request) bool {
	fromDB, from, _ := strings.Cut(r.coll(), ".")
	toDB, to, _ := strings.Cut(r.Arg("to").Str(), ".")
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
	return on.T != value.String || on.Str() == "" || viewAllowed(g, r, on.Str())
}

func checkCollMod(g *Grants, r *Request) bool {
	on := r.Arg("viewOn")
	return on.T != value.String || on.Str() == "" || viewAllowed(g, r, on.Str())
}

func viewAllowed(g *Grants, r *Request, on string) bool {
	return pipelineAllowed(g, r, r.DB, on, r.Arg("pipeline").Doc())
}

func checkAggregate(g *Grants, r *Request) bool {
	return pipelineAllowed(g, r, r.DB, r.coll(), r.Arg("pipeline").Doc())
}

// checkExplain requires what the explained command requires.
func checkExplain(g *Grants, r *Request) bool {
	v := r.first()
	it := value.Walk(v.Doc())
	name, _, ok := it.Next()
	if v.T != value.Document || !ok {
		return true // the command refuses it
	}
	in := Request{Name: canonical(string(name)), DB: r.DB, Msg: &wire.Message{Body: v.Doc()}, Who: r.Who}
	rule := RuleFor(in.Name)
	return rule != nil && in.Name != "explain" && rule.Allows(&in)
}

// canonical returns the command's own name for an alias, for the commands that explain accepts.
func canonical(name string) string {
	switch name {
	case "findandmodify":
		return "findAndModify"
	case "mapreduce":
		return "mapReduce"
	}
	return name
}

// checkListCollections allows users with the privilege, and requests for only the names of what the user may
// access anyway.
func checkListCollections(g *Grants, r *Request) bool {
	return g.Allow(Actions("listCollections"), r.DB, "") || r.Arg("nameOnly").Truthy() && r.Arg("authorizedCollections").Truthy()
}

// checkListDatabases allows everybody without the action a list of only what they may use, unless the request asks for more.
func checkListDatabases(g *Grants, r *Request) bool {
	v := r.Arg("authorizedDatabases")
	return v.IsNullish() || v.Truthy() || g.AllowCluster(Actions("listDatabases"))
}

// checkKillOp allows everything: the command itself checks who owns the operation.
func checkKillOp(*Grants, *Request) bool { return true }

// checkCurrentOp allows everybody their own operations.
func checkCurrentOp(g *Grants, r *Request) bool {
	return r.Arg("$ownOps").Truthy() || g.AllowCluster(Actions("inprog"))
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
	return g.Allow(actFind, r.DB, r.coll()) && g.Allow(Actions("insert createIndex convertToCapped"), r.DB, r.Arg("toCollection").Str())
}

// checkValidateDB requires validate on one database, or on all if none is named.
func checkValidateDB(g *Grants, r *Request) bool {
	if name := r.Arg("db"); name.T == value.String {
		return g.Allow(Actions("validate"), name.Str(), r.Arg("collection").Str())
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
