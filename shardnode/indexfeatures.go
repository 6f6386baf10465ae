package shardnode

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/indexkey"
)

// indexFeatures are the kinds and properties of indexes that serverStatus counts, in its order.
var indexFeatures = [...]string{"2d", "2dsphere", "2dsphere_bucket", "collation", "compound", "hashed", "id", "normal", "partial", "prepareUnique", "single",
	"sparse", "text", "ttl", "unique", "wildcard"}

// indexStatus returns the section indexStats: how many indexes of the databases of users have each feature, and how often they have been used
// (manual: serverStatus, indexStats). The manual does not say which features an _id index has: here only "id".
func indexStatus(n *Node) []byte {
	total := int64(0)
	counts, accesses := map[string]int64{}, map[string]int64{}
	for _, c := range n.Engine.Catalog().All() {
		if namespace.IsSystemDB(c.NS) || isSystemName(c.Name()) && !namespace.IsBuckets(c.NS) {
			continue
		}
		for _, idx := range c.Indexes {
			total++
			used := idx.Usage.Ops.Load()
			for _, name := range featuresOf(idx.Spec) {
				counts[name]++
				accesses[name] += used
			}
		}
	}
	var features []value.Field
	for _, name := range indexFeatures {
		features = append(features, value.F(name, value.NewDocument(value.Doc(i64("count", counts[name]), i64("accesses", accesses[name])))))
	}
	return value.Doc(i64("count", total), value.F("features", value.NewDocument(value.Doc(features...))))
}

// featuresOf lists the features of an index.
func featuresOf(s *indexkey.Spec) (out []string) {
	if s.IsID {
		return []string{"id"}
	}
	if s.Kind == indexkey.BTree {
		out = append(out, "normal")
	} else {
		out = append(out, s.Kind.String())
	}
	for _, v := range value.Elements(s.KeyPattern) {
		if v.T == value.String && v.Str() == "2dsphere_bucket" {
			out[0] = v.Str()
		}
	}
	if len(s.Fields) > 1 {
		out = append(out, "compound")
	} else {
		out = append(out, "single")
	}
	for name, has := range map[string]bool{
		"collation": s.Collation != nil, "partial": s.PartialFilter != nil, "prepareUnique": s.PrepareUnique, "sparse": s.Sparse,
		"ttl": !s.ExpireAfterSeconds.IsMissing(), "unique": s.Unique,
	} {
		if has {
			out = append(out, name)
		}
	}
	return out
}
