package analyzer

import (
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// index is an index by which a key is analyzed.
type index struct {
	name   string
	unique bool // its fields are those of the key, and no two documents have the same values
	exact  bool // it begins with the exact key, and so can be the shard key index
}

// supportingIndex returns the best index that begins with the fields of the key, whether hashed or not; nil if there is none.
func (x *analysis) supportingIndex() (best *index, err error) {
	if x.coll.clustered && len(x.key.Parts) == 1 && x.key.Parts[0].Path == "_id" && !x.key.Parts[0].Hashed {
		best = &index{unique: true} // a clustered collection is in its order
	}
	docs, err := cluster.FindAll(x.op, x.d.Data(), x.coll.db, x.command(&msg.ListIndexes{DB: x.coll.db, Coll: x.coll.name}))
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		i := x.supports(d)
		if i == nil || best != nil && !(i.unique && !best.unique || i.exact && !best.exact && !best.unique) {
			continue
		}
		many, err := x.multikey(i.name)
		if err != nil {
			return nil, err
		}
		if !many {
			best = i
		}
	}
	return best, nil
}

// multikey reports whether an index has several keys for some documents, so that it cannot support a shard key.
func (x *analysis) multikey(name string) (bool, error) {
	find := msg.Doc(&msg.Find{NS: x.coll.ns, Hint: value.NewString(name)})
	plan, err := cluster.Run(x.op, x.d.Data(), x.command(&msg.Explain{DB: x.coll.db, Command: find, Verbosity: value.NewString("queryPlanner")}))
	return err == nil && saysMultikey(plan), err
}

// saysMultikey reports whether a plan scans a multikey index.
func saysMultikey(plan []byte) bool {
	for k, v := range value.Elements(plan) {
		switch {
		case k == "isMultiKey" && v.Truthy(), (v.T == value.Document || v.T == value.Array) && saysMultikey(v.Doc()):
			return true
		}
	}
	return false
}

func (x *analysis) supports(spec []byte) *index {
	id := value.Lookup(spec, "name").Str() == "_id_"
	if value.Lookup(spec, "sparse").Truthy() || !value.Lookup(spec, "partialFilterExpression").IsMissing() || !id && collates(value.Lookup(spec, "collation")) ||
		value.Lookup(spec, "clustered").Truthy() || value.Lookup(spec, "hidden").Truthy() {
		return nil
	}
	key := value.Lookup(spec, "key").Doc()
	out := &index{name: value.Lookup(spec, "name").Str(), exact: true}
	it, n := value.Walk(key), 0
	for ; n < len(x.key.Parts); n++ {
		k, v, ok := it.Next()
		if !ok || string(k) != x.key.Parts[n].Path {
			return nil
		}
		hashed := v.T == value.String && v.Str() == "hashed"
		if !hashed && !v.T.Numeric() {
			return nil
		}
		out.exact = out.exact && hashed == x.key.Parts[n].Hashed && (hashed || v.AsFloat64() == 1)
	}
	out.unique = (id || value.Lookup(spec, "unique").Truthy()) && n == value.Count(key)
	return out
}

// shardKey returns the expression for a document's key: a document with one field for each of the key's fields.
func (x *analysis) shardKey() value.Value {
	var f []value.Field
	for i, p := range x.key.Parts {
		v := value.NewDocument(value.Doc(value.F("$ifNull", value.NewArray(value.ArrayOf(value.NewString("$"+p.Path), value.NewNull())))))
		if p.Hashed {
			v = value.NewDocument(value.Doc(value.F("$toHashedIndexKey", v)))
		}
		f = append(f, value.F("k"+strconv.Itoa(i), v))
	}
	return value.NewDocument(value.Doc(f...))
}

// values reads the key back from what shardKey returned.
func (x *analysis) values(doc []byte) []value.Value {
	out := make([]value.Value, len(x.key.Parts))
	for i := range out {
		out[i] = value.Lookup(doc, "k"+strconv.Itoa(i)).Clone()
	}
	return out
}

// share returns the fraction of the documents that is sampled.
func (x *analysis) share(total int64) float64 {
	if x.rate > 0 {
		return x.rate
	}
	size := x.size
	if size == 0 {
		size = x.params.Int("analyzeShardKeyCharacteristicsDefaultSampleSize")
	}
	return min(1, float64(size)/float64(total))
}

// characteristics returns keyCharacteristics.
func (x *analysis) characteristics(idx *index, stats []byte) ([]byte, error) {
	total := value.SafeInt64(value.Lookup(stats, "count"))
	share := x.share(total)
	found, err := x.frequencies(share)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, mongoerr.Newf(mongoerr.IllegalOperation, "No document of %s was sampled: it is empty, or the sample too small", x.coll.ns)
	}
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "numDocsTotal", value.NewInt64(total))
	if n := value.Lookup(stats, "numOrphanDocs"); !n.IsMissing() {
		dst = value.Append(dst, "numOrphanDocs", value.NewInt64(value.SafeInt64(n)))
	}
	dst = value.Append(dst, "avgDocSizeBytes", value.NewInt64(value.SafeInt64(value.Lookup(stats, "avgObjSize"))))
	dst = value.Append(dst, "numDocsSampled", value.NewInt64(value.SafeInt64(value.Lookup(found, "docs"))))
	dst = value.Append(dst, "isUnique", value.NewBool(idx.unique))
	distinct := value.SafeInt64(value.Lookup(found, "distinct"))
	dst = value.Append(dst, "numDistinctValues", value.NewInt64(distinct))
	dst = value.Append(dst, "mostCommonValues", value.NewArray(x.mostCommon(value.Lookup(found, "most"))))
	mono, err := x.monotonicity(idx, share, distinct)
	if err != nil {
		return nil, err
	}
	return value.End(value.Append(dst, "monotonicity", value.NewDocument(mono)), m), nil
}

// frequencies counts the values of the key: {docs, distinct, most: [{v, n}]}; nil if no document was sampled.
func (x *analysis) frequencies(share float64) ([]byte, error) {
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	var stages []value.Value
	if share < 1 {
		stages = append(stages, doc(value.F("$match", doc(value.F("$sampleRate", value.NewDouble(share))))))
	}
	one, str := value.NewInt32(1), value.NewString
	most := doc(value.F("n", value.NewInt32(int32(x.params.Int("analyzeShardKeyNumMostCommonValues")))),
		value.F("sortBy", doc(value.F("n", value.NewInt32(-1)), value.F("_id", one))), value.F("output", doc(value.F("v", str("$_id")), value.F("n", str("$n")))))
	stages = append(stages,
		doc(value.F("$group", doc(value.F("_id", x.shardKey()), value.F("n", doc(value.F("$sum", one)))))),
		doc(value.F("$group", doc(value.F("_id", value.NewNull()), value.F("docs", doc(value.F("$sum", str("$n")))), value.F("distinct", doc(value.F("$sum", one))),
			value.F("most", doc(value.F("$topN", most)))))))
	docs, err := cluster.FindAll(x.op, x.d.Data(), x.coll.db, x.aggregate(value.Doc(value.F("locale", str("simple"))), stages...))
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	return docs[0], nil
}

// mostBytes limits the size of mostCommonValues in the reply.
const mostBytes = 15 << 20

func (x *analysis) mostCommon(found value.Value) []byte {
	limit := mostBytes / int(x.params.Int("analyzeShardKeyNumMostCommonValues"))
	var out []value.Value
	for _, d := range value.Values(found.Doc()) {
		v := value.NewDocument(x.key.KeyDoc(x.values(value.Lookup(d.Doc(), "v").Doc())))
		if len(v.Doc()) > limit {
			v = value.NewString("truncated")
		}
		out = append(out, value.NewDocument(value.Doc(value.F("value", v), value.F("frequency", value.NewInt64(value.SafeInt64(value.Lookup(d.Doc(), "n")))))))
	}
	return value.ArrayOf(out...)
}

// monotonicity returns whether the key increases or decreases in the order of insertion.
func (x *analysis) monotonicity(idx *index, share float64, distinct int64) ([]byte, error) {
	kind := func(s string) []byte { return value.Doc(value.F("type", value.NewString(s))) }
	switch h := x.key.HashedIndex(); {
	case x.coll.clustered, !idx.exact, h > 0:
		return kind("unknown"), nil
	case h == 0:
		return kind("not monotonic"), nil
	}
	r := 0.0
	if distinct > 1 {
		var err error
		if r, err = x.correlation(idx, share); err != nil {
			return nil, err
		}
	}
	s := "not monotonic"
	if math.Abs(r) >= x.params.Get("analyzeShardKeyMonotonicityCorrelationCoefficientThreshold").Value().AsFloat64() {
		s = "monotonic"
	}
	return value.Doc(value.F("recordIdCorrelationCoefficient", value.NewDouble(r)), value.F("type", value.NewString(s))), nil
}

// correlation returns the correlation coefficient of the positions of distinct values in the index and their record ids, on one
// server.
func (x *analysis) correlation(idx *index, share float64) (float64, error) {
	p, err := x.d.Owner(x.op, x.coll.ns)
	if err != nil {
		return 0, err
	}
	projection := []value.Field{value.F("_id", value.NewInt32(0))}
	for _, part := range x.key.Parts {
		if part.Path == "_id" {
			projection[0].Val = value.NewInt32(1)
			continue
		}
		projection = append(projection, value.F(part.Path, value.NewInt32(1)))
	}
	var c pearson
	var last []value.Value
	cmd := x.command(&msg.Find{NS: x.coll.ns, Hint: value.NewString(idx.name), Projection: value.Doc(projection...), RecordIDs: true, BatchSize: 10000})
	err = each(x.op, p, x.coll.db, cmd, func(doc []byte) {
		if share < 1 && rand.Float64() >= share {
			return
		}
		key, kerr := x.key.FromDocument(doc, nil)
		if kerr != nil || last != nil && cluster.CompareKeys(key, last) == 0 {
			return
		}
		for i := range key {
			key[i] = key[i].Clone()
		}
		last = key
		c.add(value.Lookup(doc, "$recordId").AsFloat64())
	})
	return c.coefficient(), err
}

// pearson computes the correlation of the added numbers with their positions.
type pearson struct{ n, meanX, meanY, xx, yy, xy float64 }

func (p *pearson) add(y float64) {
	x := p.n
	p.n++
	dx, dy := x-p.meanX, y-p.meanY
	p.meanX += dx / p.n
	p.meanY += dy / p.n
	p.xx += dx * (x - p.meanX)
	p.yy += dy * (y - p.meanY)
	p.xy += dx * (y - p.meanY)
}

func (p *pearson) coefficient() float64 {
	if p.xx == 0 || p.yy == 0 {
		return 0
	}
	return p.xy / math.Sqrt(p.xx*p.yy)
}
