package querytest

import (
	"math"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Gen makes random parts of commands. Its shares are set at random by New and may be changed.
type Gen struct {
	R *rand.Rand

	Arrays float64 // share of values that are arrays
	Mixed  float64 // share of scalars that are of unusual types
	Nulls  float64 // share of fields that are null or missing
	Places float64 // share of paths with numbers in them
	Geo    bool    // documents have locations at "geo" (GeoJSON) and "xy" (a pair)
	Text   bool    // documents have words at "txt"
	// Keys are further paths for filters, those of shard keys.
	Keys []string
	// Limit is set if commands have a variable "lim" that expressions may use.
	Limit bool
}

// New returns a generator for one round.
func New(seed uint64) *Gen {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	g := &Gen{R: r}
	g.Arrays = []float64{0, 0, 0.1, 0.35}[r.IntN(4)]
	g.Mixed = []float64{0, 0.1, 0.4}[r.IntN(3)]
	g.Nulls = []float64{0, 0.1, 0.3}[r.IntN(3)]
	return g
}

// Chance returns true with the given probability.
func (g *Gen) Chance(p float64) bool { return g.R.Float64() < p }

// pick returns one of the elements at random.
func pick[T any](g *Gen, from ...T) T { return from[g.R.IntN(len(from))] }

// Fields that documents have: paths holds those that filters, sorts and indexes name.
var (
	top   = []string{"a", "b", "c", "d"}
	paths = []string{"a", "a", "b", "b", "c", "d", "n.x", "n.x", "n.y", "n", "s", "m.x.y"}
	// places have numbers, which are array indexes or names of fields.
	places = []string{"a.0", "b.1", "c.0", "c.0.0", "c.0.1", "n.0", "n.0.x", "n.x.0", "n.x.0.0", "n.x.0.1", "n.0.x.1", "m.0.x.y", "m.x.0.y", "m.0.0.x", "d.0.x", "a.0.0.0", "a.0.0.x", "c.0.1.0", "c.0.0.0.0"}
)

// Path returns a path into the documents.
func (g *Gen) Path() string {
	if len(g.Keys) > 0 && g.Chance(0.3) {
		return pick(g, g.Keys...)
	}
	if g.Places > 0 && g.Chance(g.Places) {
		return pick(g, places...)
	}
	return pick(g, paths...)
}

// Number returns a number of any type; equal numbers of different types are frequent.
func (g *Gen) Number() any {
	i := g.R.IntN(8)
	switch g.R.IntN(10) {
	case 0:
		return int64(i)
	case 1:
		return float64(i)
	case 2:
		return float64(i) + 0.5
	case 3:
		d, _ := bson.ParseDecimal128(pick(g, "1", "2.0", "3.50", "-1", "0", "7E0"))
		return d
	case 4:
		return int32(-i)
	}
	return int32(i)
}

// Scalar returns a value that is neither array nor document.
func (g *Gen) Scalar() any {
	if g.Chance(g.Mixed) {
		return g.unusual()
	}
	if g.Chance(0.2) {
		return g.Word()
	}
	return g.Number()
}

// Word returns a short string; some differ only in case or accents.
func (g *Gen) Word() string {
	return pick(g, "a", "b", "B", "abc", "abd", "Abc", "é", "e", "10", "9", "", "x y", "ab", "a\x00b", "a\x00")
}

func (g *Gen) unusual() any {
	dec := func(s string) any { d, _ := bson.ParseDecimal128(s); return d }
	return pick[any](g, nil, true, false, math.NaN(), math.Inf(1), math.Inf(-1), dec("NaN"), dec("Infinity"), math.Copysign(0, -1),
		bson.MinKey{}, bson.MaxKey{}, bson.Undefined{}, bson.DateTime(0), bson.NewDateTimeFromTime(time.Unix(1e9, 0)), bson.DateTime(-5),
		bson.ObjectID{1, 2}, bson.ObjectID{9}, bson.Binary{Data: []byte{1, 2}}, bson.Binary{Subtype: 5, Data: []byte{3}}, bson.Timestamp{T: 5, I: 1},
		bson.Regex{Pattern: "^a"}, bson.Symbol("abc"), bson.JavaScript("f()"), int64(math.MaxInt64), int64(1)<<53+1, float64(1<<53), dec("0.1"), 0.1,
		dec("9.999999999999999999999999999999999E+6144"), dec("-9.99E+6144"), dec("1E-6176"), dec("-0"), dec("0E+3"), dec("-Infinity"), dec("9007199254740993"),
		int64(math.MinInt64), int32(math.MinInt32), math.MaxFloat64, math.SmallestNonzeroFloat64, -9.5e18, 9223372036854775808.0, bson.DateTime(-62135596800001),
		bson.DateTime(math.MinInt64), bson.DateTime(math.MaxInt64), bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32}, bson.Timestamp{I: 1}, "\x00",
		bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.Binary{}, bson.D{}, bson.D{{Key: "", Value: 1}}, bson.CodeWithScope{Code: "f()", Scope: bson.D{{Key: "x", Value: 1}}},
		bson.DBPointer{DB: "d", Pointer: bson.ObjectID{3}})
}

// Value returns any value; depth limits its nesting.
func (g *Gen) Value(depth int) any {
	switch {
	case depth > 1 && g.Chance(g.Arrays/6) || g.Places > 0 && depth > 0 && g.Chance(g.Arrays/4):
		return g.nested()
	case depth > 0 && g.Chance(g.Arrays):
		out := bson.A{}
		for range g.R.IntN(4) {
			out = append(out, g.Value(depth-1))
		}
		return out
	case depth > 0 && g.Chance(g.Mixed/3):
		return g.small()
	}
	return g.Scalar()
}

// nested returns an array within arrays, some of them empty.
func (g *Gen) nested() bson.A {
	var v any = g.Scalar()
	for range 1 + g.R.IntN(6) {
		v = pick(g, bson.A{v}, bson.A{v, g.Scalar()}, bson.A{bson.A{}, v}, bson.A{bson.D{{Key: "x", Value: v}}})
	}
	return bson.A{v}
}

func (g *Gen) small() bson.D {
	out := bson.D{}
	for _, k := range []string{"x", "y"} {
		if g.Chance(0.7) {
			out = append(out, bson.E{Key: k, Value: g.Value(1)})
		}
	}
	return out
}

// Doc returns a document with the given _id.
func (g *Gen) Doc(id any) bson.D {
	d := bson.D{{Key: "_id", Value: id}}
	for _, f := range top {
		d = g.field(d, f, func() any { return g.Value(2) })
	}
	d = g.field(d, "n", func() any {
		if g.Chance(g.Arrays) {
			out := bson.A{}
			for range g.R.IntN(4) {
				if g.Chance(0.85) {
					out = append(out, g.small())
				} else {
					out = append(out, g.Value(1))
				}
			}
			return out
		}
		return bson.D{{Key: "x", Value: g.Value(1)}, {Key: "y", Value: g.Value(1)}}
	})
	d = g.field(d, "m", func() any {
		if g.Chance(g.Arrays) {
			return bson.A{bson.D{{Key: "x", Value: g.small()}}, bson.D{{Key: "x", Value: bson.A{g.small(), g.small()}}}}
		}
		return bson.D{{Key: "x", Value: bson.D{{Key: "y", Value: g.Value(1)}}}}
	})
	d = g.field(d, "s", func() any { return g.Word() })
	d = g.field(d, "link", func() any {
		if g.Chance(g.Arrays) {
			return bson.A{g.R.IntN(60), g.R.IntN(60)}
		}
		return g.R.IntN(60)
	})
	if g.Geo {
		d = g.field(d, "geo", func() any { return g.place() })
		d = g.field(d, "xy", func() any { return bson.A{g.coordinate(), g.coordinate()} })
	}
	if g.Text {
		d = g.field(d, "txt", func() any {
			return pick(g, "coffee shop", "Coffee and cake", "tea", "a cake shop", "running shoes", "the runner runs")
		})
	}
	return d
}

func (g *Gen) field(d bson.D, name string, v func() any) bson.D {
	if g.Chance(g.Nulls) {
		if g.Chance(0.5) {
			return d
		}
		return append(d, bson.E{Key: name, Value: nil})
	}
	return append(d, bson.E{Key: name, Value: v()})
}

func (g *Gen) coordinate() float64 { return float64(g.R.IntN(40)-20) / 2 }

func (g *Gen) place() bson.D {
	at := func() bson.A { return bson.A{g.coordinate(), g.coordinate()} }
	switch g.R.IntN(5) {
	case 0:
		return bson.D{{Key: "type", Value: "LineString"}, {Key: "coordinates", Value: bson.A{bson.A{-3, -4}, bson.A{g.coordinate(), 5.5}}}}
	case 1:
		x, y := g.coordinate(), g.coordinate()
		return bson.D{{Key: "type", Value: "Polygon"}, {Key: "coordinates", Value: bson.A{bson.A{bson.A{x, y}, bson.A{x + 3, y}, bson.A{x + 3, y + 2}, bson.A{x, y}}}}}
	}
	return bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: at()}}
}

// Collation returns the document of a collation, nil for none.
func (g *Gen) Collation() bson.D {
	if g.Chance(0.7) {
		return nil
	}
	return pick(g,
		bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}},
		bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 1}},
		bson.D{{Key: "locale", Value: "fr"}},
		bson.D{{Key: "locale", Value: "en"}, {Key: "numericOrdering", Value: true}},
		bson.D{{Key: "locale", Value: "simple"}})
}

// Sort returns a sort by one to three fields.
func (g *Gen) Sort() bson.D {
	var out bson.D
	seen := map[string]bool{}
	for range 1 + g.R.IntN(3) {
		p := pick(g, "a", "b", "c", "n.x", "n.y", "s", "d")
		if !seen[p] {
			seen[p] = true
			out = append(out, bson.E{Key: p, Value: pick(g, 1, 1, -1)})
		}
	}
	return out
}

// Index returns the specification of an index of any kind, without a name.
func (g *Gen) Index() bson.D {
	dir := func() any { return pick[any](g, 1, 1, 1, -1) }
	var key bson.D
	kind := g.R.IntN(20)
	if g.Geo && g.Chance(0.4) {
		kind = 4
	}
	switch {
	case kind < 2:
		return g.partly(bson.D{{Key: "key", Value: bson.D{{Key: pick(g, "a", "b", "n.x", "s"), Value: "hashed"}}}})
	case kind < 4 || g.Places > 0 && kind < 9:
		return g.wildcard()
	case kind < 5 && g.Geo:
		key = pick(g, bson.D{{Key: "geo", Value: "2dsphere"}}, bson.D{{Key: "xy", Value: "2d"}}, bson.D{{Key: "a", Value: 1}, {Key: "geo", Value: "2dsphere"}},
			bson.D{{Key: "geo", Value: "2dsphere"}, {Key: "b", Value: -1}}, bson.D{{Key: "xy", Value: "2d"}, {Key: "c", Value: 1}})
		return bson.D{{Key: "key", Value: key}}
	case kind < 6 && g.Text:
		return bson.D{{Key: "key", Value: bson.D{{Key: "txt", Value: "text"}}}}
	case kind < 7:
		key = bson.D{{Key: pick(g, "a", "b"), Value: dir()}, {Key: "c", Value: "hashed"}}
		return g.partly(bson.D{{Key: "key", Value: key}})
	}
	seen := map[string]bool{}
	for range 1 + g.R.IntN(3) {
		if p := g.Path(); !seen[p] {
			seen[p] = true
			key = append(key, bson.E{Key: p, Value: dir()})
		}
	}
	if g.Chance(0.4) {
		key = append(key, bson.E{Key: "_id", Value: dir()})
	}
	spec := bson.D{{Key: "key", Value: key}}
	switch g.R.IntN(8) {
	case 0:
		spec = append(spec, bson.E{Key: "sparse", Value: true})
	case 1:
		spec = append(spec, bson.E{Key: "partialFilterExpression", Value: g.partial()})
	case 2:
		if seen["_id"] || key[len(key)-1].Key == "_id" {
			spec = append(spec, bson.E{Key: "unique", Value: true})
		}
	}
	if c := g.Collation(); c != nil {
		spec = append(spec, bson.E{Key: "collation", Value: c})
	}
	return spec
}

// partly makes some of the indexes have no keys for some documents.
func (g *Gen) partly(spec bson.D) bson.D {
	switch g.R.IntN(6) {
	case 0:
		return append(spec, bson.E{Key: "sparse", Value: true})
	case 1:
		return append(spec, bson.E{Key: "partialFilterExpression", Value: g.partial()})
	}
	return spec
}

func (g *Gen) wildcard() bson.D {
	switch g.R.IntN(5) {
	case 0:
		return bson.D{{Key: "key", Value: bson.D{{Key: "n.$**", Value: 1}}}}
	case 1:
		return bson.D{{Key: "key", Value: bson.D{{Key: "$**", Value: 1}}}, {Key: "wildcardProjection", Value: pick(g,
			bson.D{{Key: "a", Value: 1}, {Key: "n.x", Value: 1}}, bson.D{{Key: "b", Value: 0}, {Key: "n.y", Value: 0}})}}
	case 2:
		return bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: pick(g, 1, -1)}, {Key: "n.$**", Value: 1}}}}
	case 3:
		return bson.D{{Key: "key", Value: bson.D{{Key: "n.$**", Value: 1}, {Key: "b", Value: 1}}}}
	}
	return bson.D{{Key: "key", Value: bson.D{{Key: "$**", Value: 1}}}}
}

// partial returns a filter that partial indexes allow.
func (g *Gen) partial() bson.D {
	leaf := func() bson.D {
		p := pick(g, "a", "b", "c", "n.x", "s")
		switch g.R.IntN(7) {
		case 0:
			return bson.D{{Key: p, Value: bson.D{{Key: "$exists", Value: true}}}}
		case 1:
			return bson.D{{Key: p, Value: bson.D{{Key: "$type", Value: pick(g, "number", "string", "int")}}}}
		case 2:
			return bson.D{{Key: p, Value: g.Scalar()}}
		case 3:
			return bson.D{{Key: p, Value: bson.D{{Key: "$in", Value: bson.A{g.Number(), g.Number(), g.Word()}}}}}
		}
		return bson.D{{Key: p, Value: bson.D{{Key: pick(g, "$gt", "$gte", "$lt", "$lte"), Value: g.Number()}}}}
	}
	switch g.R.IntN(5) {
	case 0:
		return bson.D{{Key: "$and", Value: bson.A{leaf(), leaf()}}}
	case 1:
		return bson.D{{Key: "$or", Value: bson.A{leaf(), leaf()}}}
	}
	return leaf()
}
