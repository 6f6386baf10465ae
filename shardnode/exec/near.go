package exec

import (
	"encoding/binary"
	"math"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// nearKeys sort documents by their distance from the origin of a $near.
type nearKeys struct {
	near *match.Node
	key  [8]byte
}

func (k *nearKeys) of(doc []byte) ([]byte, error) {
	d, _, _ := k.near.Distance(doc)
	binary.BigEndian.PutUint64(k.key[:], math.Float64bits(d)) // distances are not negative, so their bits are in order
	return k.key[:], nil
}

func newNearNode(env Env, in Node, p *plan.Node, q *Query) (Node, error) {
	if x, ok := p.Index.Handle.(*catalog.Index); ok && p.Stage == plan.GeoNear2D {
		if r := indexkey.Plane(x.Spec); !r.Holds(p.Near.Near.Center.Points[0]) {
			return nil, mongoerr.Newf(16433, "point not in interval of [ %v, %v ]", r.Min, r.Max)
		}
	}
	s := &sortNode{in: in, keys: &nearKeys{near: p.Near}, memory: env.SortMemory()}
	if q.AllowDiskUse {
		s.store = env.Spill()
	}
	return s, nil
}

// NearPath finds the path for a $geoNear that names none: the path of the collection's only 2d index, else of its only
// 2dsphere index.
func NearPath(ns string, coll *catalog.Collection) (string, error) {
	if coll == nil {
		return "", mongoerr.Newf(mongoerr.NamespaceNotFound, "$geoNear requires a geo index to run, but %s does not exist", ns)
	}
	for _, kind := range []indexkey.Kind{indexkey.Geo2D, indexkey.Sphere} {
		found := ""
		for _, x := range coll.Indexes {
			if !x.Ready || x.Hidden || x.Spec.Kind != kind {
				continue
			}
			if found != "" {
				return "", mongoerr.Newf(mongoerr.IndexNotFound, "There is more than one %s index on %s; unsure which to use for $geoNear", kind, ns)
			}
			for _, f := range x.Spec.Fields {
				if f.Kind == kind {
					found = f.Path
					break
				}
			}
		}
		if found != "" {
			return found, nil
		}
	}
	return "", mongoerr.New(mongoerr.IndexNotFound, "$geoNear requires a 2d or 2dsphere index, but none were found")
}
