package auth

import (
	"strings"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Resource is the target of a privilege. Its documents are those of the manual's page Resource Document.
type Resource struct {
	// Cluster means the cluster itself, Any every resource.
	Cluster, Any bool
	// DB and Coll name a collection. An empty Coll means every non-system collection of the database, an
	// empty DB every database.
	DB, Coll string
	// Buckets means that Coll is a time series collection, and that the resource is the collection of its buckets.
	Buckets bool
}

// Privilege allows actions on a resource.
type Privilege struct {
	On      Resource
	Actions ActionSet
}

// Doc returns the resource as a document.
func (r Resource) Doc() []byte {
	yes := value.NewBool(true)
	switch {
	case r.Cluster:
		return value.Doc(value.F("cluster", yes))
	case r.Any:
		return value.Doc(value.F("anyResource", yes))
	case r.Buckets:
		if r.DB == "" {
			return value.Doc(value.F("system_buckets", value.NewString(r.Coll)))
		}
		return value.Doc(value.F("db", value.NewString(r.DB)), value.F("system_buckets", value.NewString(r.Coll)))
	}
	return value.Doc(value.F("db", value.NewString(r.DB)), value.F("collection", value.NewString(r.Coll)))
}

// Doc returns the privilege as a document.
func (p Privilege) Doc() []byte {
	var names []value.Value
	for _, n := range p.Actions.Names() {
		names = append(names, value.NewString(n))
	}
	return value.Doc(value.F("resource", value.NewDocument(p.On.Doc())), value.F("actions", value.NewArray(value.ArrayOf(names...))))
}

// ParsePrivilege reads a privilege document, as in commands and stored roles.
func ParsePrivilege(doc []byte) (Privilege, error) {
	var p Privilege
	res, acts := value.Lookup(doc, "resource"), value.Lookup(doc, "actions")
	if res.T != value.Document {
		return p, mongoerr.New(mongoerr.FailedToParse, "Privilege resource must be an object")
	}
	if acts.T != value.Array {
		return p, mongoerr.New(mongoerr.FailedToParse, "Privilege actions must be an array")
	}
	var err error
	if p.On, err = parseResource(res.Doc()); err != nil {
		return p, err
	}
	var unknown []string
	for _, v := range value.Values(acts.Doc()) {
		a, ok := Action(0), false
		if v.T == value.String {
			a, ok = ParseAction(v.Str())
		}
		if !ok {
			unknown = append(unknown, value.Show(v))
			continue
		}
		p.Actions.Add(a)
	}
	if unknown != nil {
		return p, mongoerr.New(mongoerr.BadValue, "Unrecognized action privilege strings: "+strings.ReplaceAll(strings.Join(unknown, ", "), `"`, ""))
	}
	if p.Actions.Empty() {
		return p, mongoerr.New(mongoerr.FailedToParse, "Privileges must have at least one action")
	}
	return p, nil
}

func parseResource(doc []byte) (Resource, error) {
	var r Resource
	var hasDB, hasColl bool
	for k, v := range value.Elements(doc) {
		switch k {
		case "cluster", "anyResource":
			if v.T != value.Boolean || !v.Truthy() {
				return r, mongoerr.Newf(mongoerr.FailedToParse, "resource {%s: …} must be true", k)
			}
			r.Cluster, r.Any = r.Cluster || k == "cluster", r.Any || k == "anyResource"
		case "db", "collection", "system_buckets":
			if v.T != value.String {
				return r, mongoerr.Newf(mongoerr.FailedToParse, "resource.%s must be a string", k)
			}
			switch k {
			case "db":
				r.DB, hasDB = v.Str(), true
			case "collection":
				r.Coll, hasColl = v.Str(), true
			default:
				r.Coll, r.Buckets = v.Str(), true
			}
		default:
			return r, mongoerr.Newf(mongoerr.FailedToParse, "unknown field '%s' in a privilege's resource", k)
		}
	}
	special := r.Cluster || r.Any
	if special && (r.Cluster && r.Any || hasDB || hasColl || r.Buckets) || !special && !r.Buckets && (!hasDB || !hasColl) || hasColl && r.Buckets {
		return r, mongoerr.New(mongoerr.FailedToParse,
			"resource must have exactly db and collection set, or have only cluster set or have only anyResource set or have only system_buckets set")
	}
	return r, nil
}

// Merge adds a privilege to a list that has at most one for each resource.
func Merge(list []Privilege, p Privilege) []Privilege {
	for i := range list {
		if list[i].On == p.On {
			list[i].Actions.AddAll(p.Actions)
			return list
		}
	}
	return append(list, p)
}

// Without removes a privilege's actions from such a list, and the privileges that have none left.
func Without(list []Privilege, p Privilege) []Privilege {
	out := list[:0]
	for _, have := range list {
		if have.On == p.On {
			have.Actions.Remove(p.Actions)
		}
		if !have.Actions.Empty() {
			out = append(out, have)
		}
	}
	return out
}

// Grants are a user's privileges, compiled for checks.
type Grants struct {
	any, cluster, normal, buckets ActionSet
	named                         map[Resource]ActionSet
	dbs                           map[string]ActionSet // those of named on a whole database, which most users have
	list                          []Privilege
}

// Compile compiles privileges into grants.
func Compile(list []Privilege) *Grants {
	g := &Grants{named: map[Resource]ActionSet{}, dbs: map[string]ActionSet{}}
	for _, p := range list {
		g.list = Merge(g.list, p)
		switch {
		case p.On.Any:
			g.any.AddAll(p.Actions)
		case p.On.Cluster:
			g.cluster.AddAll(p.Actions)
		case p.On == Resource{}:
			g.normal.AddAll(p.Actions)
		case p.On == Resource{Buckets: true}:
			g.buckets.AddAll(p.Actions)
		default:
			s := g.named[p.On]
			s.AddAll(p.Actions)
			g.named[p.On] = s
			if (p.On == Resource{DB: p.On.DB}) {
				g.dbs[p.On.DB] = s
			}
		}
	}
	return g
}

// Privileges lists the grants, one for each resource.
func (g *Grants) Privileges() []Privilege { return g.list }

const bucketsPrefix = timeseries.BucketsPrefix

// special reports whether privileges on all databases exclude a database.
func special(db string) bool { return db == "local" || db == "config" }

// isSystem reports whether privileges on a whole database exclude a collection.
func isSystem(db, coll string) bool {
	return strings.HasPrefix(coll, "system.") || db == "local" && strings.HasPrefix(coll, "replset.")
}

// AllowCluster reports whether all the actions are allowed on the cluster.
func (g *Grants) AllowCluster(want ActionSet) bool {
	want = g.any.without(want)
	want = g.cluster.without(want)
	return want.Empty()
}

// Allow reports whether all the actions are allowed on a collection or, with an empty name, on all collections of the
// database except system collections.
func (g *Grants) Allow(want ActionSet, db, coll string) bool {
	system := isSystem(db, coll)
	if !system {
		if s, ok := g.dbs[db]; ok {
			if want = s.without(want); want.Empty() {
				return true
			}
		}
	}
	if !system && !special(db) {
		if want = g.normal.without(want); want.Empty() {
			return true
		}
	}
	if want = g.any.without(want); want.Empty() {
		return true
	}
	if len(g.named) == 0 && !system {
		return false
	}
	minus := func(r Resource) bool {
		if s, ok := g.named[r]; ok {
			want = s.without(want)
		}
		return want.Empty()
	}
	if minus(Resource{DB: db, Coll: coll}) || coll != "" && minus(Resource{Coll: coll}) {
		return true
	}
	if !system {
		return false
	}
	series, ok := strings.CutPrefix(coll, bucketsPrefix)
	if !ok {
		return false
	}
	want = g.buckets.without(want)
	return want.Empty() || minus(Resource{DB: db, Coll: series, Buckets: true}) || minus(Resource{Coll: series, Buckets: true}) ||
		minus(Resource{DB: db, Buckets: true})
}

// AllowAll reports whether the actions are allowed on every collection of every database, except system collections.
func (g *Grants) AllowAll(want ActionSet) bool {
	want = g.any.without(want)
	want = g.normal.without(want)
	return want.Empty()
}

// Covers reports whether the grants allow everything that a privilege allows.
func (g *Grants) Covers(p Privilege) bool {
	switch {
	case p.On.Any:
		rest := g.any.without(p.Actions)
		return rest.Empty()
	case p.On.Cluster:
		return g.AllowCluster(p.Actions)
	case p.On == Resource{}:
		return g.AllowAll(p.Actions)
	case p.On.Buckets:
		return g.Allow(p.Actions, p.On.DB, bucketsPrefix+p.On.Coll)
	}
	return g.Allow(p.Actions, p.On.DB, p.On.Coll)
}

// DatabaseFilter returns a filter for listDatabases that matches the databases on which there is some privilege.
func (g *Grants) DatabaseFilter() []byte {
	if !g.any.Empty() {
		return value.Doc()
	}
	var names []value.Value
	all := !g.normal.Empty()
	for r := range g.named {
		if r.DB != "" {
			names = append(names, value.NewString(r.DB))
		}
		all = all || r.DB == "" && r.Coll == ""
	}
	listed := value.Doc(value.F("name", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(names...)))))))
	if !all {
		return listed
	}
	left := value.NewArray(value.ArrayOf(value.NewString("local"), value.NewString("config")))
	rest := value.Doc(value.F("name", value.NewDocument(value.Doc(value.F("$nin", left)))))
	return value.Doc(value.F("$or", value.NewArray(value.ArrayOf(value.NewDocument(listed), value.NewDocument(rest)))))
}

// CollectionFilter returns a filter for listCollections that matches the collections on which there is some privilege.
func (g *Grants) CollectionFilter(db string) []byte {
	if !g.any.Empty() {
		return value.Doc()
	}
	var names []value.Value
	all := !g.normal.Empty() && !special(db)
	for r := range g.named {
		switch {
		case r.DB != "" && r.DB != db || r.Buckets:
		case r.Coll == "":
			all = true
		default:
			names = append(names, value.NewString(r.Coll))
		}
	}
	listed := value.Doc(value.F("name", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(names...)))))))
	if !all {
		return listed
	}
	user := value.Doc(value.F("name", value.NewDocument(value.Doc(value.F("$not", value.NewDocument(value.Doc(value.F("$regex", value.NewString("^system\\.")))))))))
	return value.Doc(value.F("$or", value.NewArray(value.ArrayOf(value.NewDocument(listed), value.NewDocument(user)))))
}
