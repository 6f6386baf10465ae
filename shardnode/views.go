package shardnode

import (
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// View is a view's definition, as its document in system.views says.
type view struct {
	ns        string
	on        string // the name of what it is defined on
	pipeline  value.Value
	collation []byte
	doc       []byte
}

// maxViewDepth is how deep views on views may go.
const maxViewDepth = 20

// viewAt finds a view by namespace in the newest data of a catalog's moment; nil where there is none.
func (n *Node) viewAt(cat *catalog.Snapshot, ns string) (*view, error) {
	c := cat.Lookup(catalog.DBOf(ns) + ".system.views")
	if c == nil {
		return nil, nil
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	return viewIn(s, c, ns)
}

// viewFor is viewAt within a snapshot.
func viewFor(s *storage.Snapshot, ns string) (*view, error) {
	c := s.Catalog().Lookup(catalog.DBOf(ns) + ".system.views")
	if c == nil {
		return nil, nil
	}
	return viewIn(s, c, ns)
}

func viewIn(s *storage.Snapshot, c *catalog.Collection, ns string) (*view, error) {
	_, doc, ok, err := s.FindByID(c, value.NewString(ns))
	if err != nil || !ok {
		return nil, err
	}
	return parseView(append([]byte(nil), doc...)), nil
}

func parseView(doc []byte) *view {
	v := &view{doc: doc, ns: value.Lookup(doc, "_id").Str(), on: value.Lookup(doc, "viewOn").Str(), pipeline: value.Lookup(doc, "pipeline")}
	if c := value.Lookup(doc, "collation"); c.T == value.Document {
		v.collation = c.Doc()
	}
	return v
}

// simpleCollation is what a view without one is read under, whatever the collection below has.
var simpleCollation = value.Doc(value.F("locale", value.NewString("simple")))

// resolved is a view followed down to a collection: its pipeline is all views' pipelines, the lowest first.
type resolved struct {
	ns         string
	pipeline   []value.Value
	collation  []byte
	timeseries bool // the name is a time series collection, which may be read under any collation
}

// collType is what queries on the name read; nil stands for no collection.
func (r *resolved) collType() string {
	switch {
	case r == nil:
		return "nonExistent"
	case r.timeseries:
		return "timeseries"
	}
	return "view"
}

// allows refuses another collation than the view's own.
func (r *resolved) allows(spec *collation.Spec) error {
	if r.timeseries {
		return nil
	}
	own, err := collation.Parse(r.collation)
	if err == nil && !own.Equal(spec) {
		err = mongoerr.New(mongoerr.OptionNotSupportedOnView, "Cannot override a view's default collation")
	}
	return err
}

// allowsArgument is allows for a command's collation argument; left out, null or empty it stands for the view's own.
func (r *resolved) allowsArgument(v value.Value) error {
	if v.T != value.Document || value.Count(v.Doc()) == 0 {
		return nil
	}
	spec, err := collation.Parse(v.Doc())
	if err != nil {
		return err
	}
	return r.allows(spec)
}

// resolveView follows ns down; nil where it is no view.
func resolveView(s *storage.Snapshot, ns string) (*resolved, error) {
	var r *resolved
	for depth := 0; ; depth++ {
		if s.Catalog().Lookup(ns) != nil {
			break
		}
		v, err := viewFor(s, ns)
		if err != nil {
			return nil, err
		}
		if v == nil {
			break
		}
		if depth >= maxViewDepth {
			return nil, mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth too deep or view cycle detected; maximum depth is %d", maxViewDepth)
		}
		if r == nil {
			r = &resolved{collation: v.collation, timeseries: v.isTimeseries()}
			if r.collation == nil {
				r.collation = simpleCollation
			}
		}
		ns = catalog.DBOf(ns) + "." + v.on
		r.pipeline = append(value.Values(v.pipeline.Doc()), r.pipeline...)
	}
	if r != nil {
		r.ns = ns
	}
	return r, nil
}
