package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
)

// pipelineCollation returns the collation that the stages of an aggregate run under on the router: the command's own, or the default of
// its collection. The catalog has the default of a collection with an entry; that of any other is known to the primary shard of its
// database alone, which is asked each time: nothing would tell this router that a collection was dropped and created again with another default.
func (r *Router) pipelineCollation(op *command.Op, body []byte, info *cluster.CollectionInfo) (*collation.Spec, error) {
	given := value.LookupDoc(body, "collation")
	db, coll := cluster.SplitNS(info.NS)
	if given != nil || info.Entry != nil || coll == agg.DatabaseAggregate {
		return collationFor(given, info)
	}
	p, err := r.peer(op, info.DB.Primary)
	if err != nil {
		return nil, err
	}
	found, err := cluster.FindAll(op, p, db, msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(coll)))}))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return collationFor(value.LookupDoc(value.LookupDoc(found[0], "options"), "collation"), info)
}

// explicit returns a collation's document also for the simple one: a read without a collation has the default of its collection.
func explicit(spec *collation.Spec) []byte {
	if spec == nil {
		return value.Doc(value.F("locale", value.NewString("simple")))
	}
	return spec.Document()
}
