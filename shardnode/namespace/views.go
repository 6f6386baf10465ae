package namespace

import (
	"bytes"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// View is a view's definition, as stored in system.views.
type View struct {
	NS        string
	On        string // the name of the collection or view that it is defined on
	Pipeline  value.Value
	Collation []byte
	Doc       []byte
}

// MaxViewDepth limits the nesting of views on views.
const MaxViewDepth = 20

// ViewAt finds a view by namespace in the newest data, with a given catalog; nil if there is none.
func ViewAt(eng *storage.Engine, cat *catalog.Snapshot, ns string) (*View, error) {
	c := cat.Lookup(catalog.DBOf(ns) + ".system.views")
	if c == nil {
		return nil, nil
	}
	s := eng.Snapshot()
	defer s.Release()
	return lookupView(s, c, ns)
}

// ViewIn is ViewAt within a snapshot.
func ViewIn(s *storage.Snapshot, ns string) (*View, error) {
	c := s.Catalog().Lookup(catalog.DBOf(ns) + ".system.views")
	if c == nil {
		return nil, nil
	}
	return lookupView(s, c, ns)
}

func lookupView(s *storage.Snapshot, c *catalog.Collection, ns string) (*View, error) {
	_, doc, ok, err := s.FindByID(c, value.NewString(ns))
	if err != nil || !ok {
		return nil, err
	}
	return parseView(append([]byte(nil), doc...)), nil
}

func parseView(doc []byte) *View {
	v := &View{Doc: doc, NS: value.Lookup(doc, "_id").Str(), On: value.Lookup(doc, "viewOn").Str(), Pipeline: value.Lookup(doc, "pipeline")}
	if c := value.Lookup(doc, "collation"); c.T == value.Document {
		v.Collation = c.Doc()
	}
	return v
}

// SimpleCollation applies to reads of a view without a collation, whatever the collection below has.
var SimpleCollation = value.Doc(value.F("locale", value.NewString("simple")))

// Resolved is a view resolved to a collection: its pipeline is the concatenation of all views' pipelines, the lowest first.
type Resolved struct {
	NS         string
	Pipeline   []value.Value
	Collation  []byte
	Timeseries bool // whether the name is a time series collection, which may be read under any collation
}

// CollType returns the kind of the queried namespace, for statistics; a nil Resolved stands for no collection.
func (r *Resolved) CollType() string {
	switch {
	case r == nil:
		return "nonExistent"
	case r.Timeseries:
		return "timeseries"
	}
	return "view"
}

// Allows refuses a collation other than the view's own.
func (r *Resolved) Allows(spec *collation.Spec) error {
	if r.Timeseries {
		return nil
	}
	own, err := collation.Parse(r.Collation)
	if err == nil && !own.Equal(spec) {
		err = mongoerr.New(mongoerr.OptionNotSupportedOnView, "Cannot override a view's default collation")
	}
	return err
}

// AllowsArgument is Allows for a command's collation argument; if it is missing, null or empty, the view's own applies.
func (r *Resolved) AllowsArgument(v value.Value) error {
	if v.T != value.Document || value.Count(v.Doc()) == 0 {
		return nil
	}
	spec, err := collation.Parse(v.Doc())
	if err != nil {
		return err
	}
	return r.Allows(spec)
}

// Resolve resolves a view to its collection; nil if ns is not a view.
func Resolve(s *storage.Snapshot, ns string) (*Resolved, error) {
	var r *Resolved
	for depth := 0; ; depth++ {
		if s.Catalog().Lookup(ns) != nil {
			break
		}
		v, err := ViewIn(s, ns)
		if err != nil {
			return nil, err
		}
		if v == nil {
			break
		}
		if depth >= MaxViewDepth {
			return nil, mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth too deep or view cycle detected; maximum depth is %d", MaxViewDepth)
		}
		if r == nil {
			r = &Resolved{Collation: v.Collation, Timeseries: v.IsTimeseries()}
			if r.Collation == nil {
				r.Collation = SimpleCollation
			}
		}
		ns = catalog.DBOf(ns) + "." + v.On
		r.Pipeline = append(value.Values(v.Pipeline.Doc()), r.Pipeline...)
	}
	if r != nil {
		r.NS = ns
	}
	return r, nil
}

// MakeDoc returns a view's document in system.views.
func (v *View) MakeDoc() []byte {
	f := []value.Field{value.F("_id", value.NewString(v.NS)), value.F("viewOn", value.NewString(v.On)), value.F("pipeline", v.Pipeline)}
	if v.Collation != nil {
		f = append(f, value.F("collation", value.NewDocument(v.Collation)))
	}
	return value.Doc(f...)
}

func (v *View) IsTimeseries() bool { return v.On == timeseries.BucketsPrefix+catalog.CollOf(v.NS) }

// SameView compares definitions.
func SameView(a, b *View) bool {
	return a.On == b.On && bytes.Equal(a.Pipeline.Doc(), b.Pipeline.Doc()) && bytes.Equal(a.Collation, b.Collation)
}

// ViewsOf lists a database's views in order of name.
func ViewsOf(s *storage.Snapshot, db string) ([]*View, error) {
	c := s.Catalog().Lookup(db + ".system.views")
	if c == nil {
		return nil, nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	var out []*View
	for cur.Next() {
		out = append(out, parseView(append([]byte(nil), cur.Doc()...)))
	}
	return out, cur.Err()
}

// ShardedForeign returns the error of a pipeline on one shard when a stage reads a sharded collection, directly
// or through a view: the router has to run that stage.
func ShardedForeign(ns string) error {
	return mongoerr.Newf(mongoerr.CommandOnShardedViewNotSupportedOnMongod, "%s is sharded: the pipeline must be executed on mongos.", ns).
		WithDetails(value.Doc(value.F("shardedForeign", value.NewString(ns))))
}
