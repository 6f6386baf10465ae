package querytest

import "go.mongodb.org/mongo-driver/v2/bson"

// Filter returns a filter of one to three conditions.
func (g *Gen) Filter() bson.D { return g.filter(2) }

func (g *Gen) filter(depth int) bson.D {
	switch n := g.R.IntN(12); {
	case depth > 0 && n < 2:
		var list bson.A
		for range 1 + g.R.IntN(3) {
			list = append(list, g.filter(depth-1))
		}
		out := bson.D{{Key: pick(g, "$or", "$or", "$and", "$nor"), Value: list}}
		if g.Chance(0.4) {
			out = append(out, g.leaf())
		}
		return out
	case n < 7:
		return bson.D{g.leaf()}
	}
	out := bson.D{}
	for range 2 + g.R.IntN(2) {
		out = with(out, g.leaf())
	}
	return out
}

// with adds a condition unless the document has one on its field.
func with(d bson.D, e bson.E) bson.D {
	for _, x := range d {
		if x.Key == e.Key {
			return d
		}
	}
	return append(d, e)
}

func (g *Gen) leaf() bson.E {
	path := g.Path()
	if g.Chance(0.05) {
		path = pick(g, "a.0", "n.0.x", "n.1", "a.0.x", "n.x.0")
	}
	if g.Chance(0.05) {
		return bson.E{Key: "_id", Value: pick[any](g, g.R.IntN(60), bson.D{{Key: "$gt", Value: g.R.IntN(60)}}, bson.D{{Key: "$in", Value: bson.A{1, 5, g.R.IntN(60)}}})}
	}
	switch n := g.R.IntN(100); {
	case g.Geo && n < 25:
		return g.geoLeaf()
	case n < 6:
		return bson.E{Key: "$expr", Value: g.comparison(2)}
	case n < 27:
		return bson.E{Key: path, Value: g.operand()}
	case n < 32 && g.Arrays > 0:
		return bson.E{Key: "n", Value: bson.D{{Key: "$elemMatch", Value: g.elem()}}}
	case n < 37:
		return bson.E{Key: path, Value: bson.D{{Key: "$not", Value: bson.D{g.op()}}}}
	case n < 50:
		return bson.E{Key: path, Value: bson.D{{Key: "$gt", Value: g.operand()}, {Key: pick(g, "$lt", "$lte"), Value: g.operand()}}}
	}
	return bson.E{Key: path, Value: bson.D{g.op()}}
}

// comparison returns an expression that compares fields with constants.
func (g *Gen) comparison(depth int) bson.D {
	if depth > 0 && g.Chance(0.3) {
		list := bson.A{}
		for range 1 + g.R.IntN(3) {
			list = append(list, g.comparison(depth-1))
		}
		if g.Chance(0.1) {
			return bson.D{{Key: "$not", Value: list[:1]}}
		}
		return bson.D{{Key: pick(g, "$and", "$or"), Value: list}}
	}
	var v any
	switch n := g.R.IntN(10); {
	case n == 0:
		v = nil
	case n == 1:
		v = pick[any](g, bson.MinKey{}, bson.MaxKey{}, bson.Undefined{})
	case n < 4:
		v = g.Value(1)
	default:
		v = g.Scalar()
	}
	if g.Chance(0.15) {
		return bson.D{{Key: "$in", Value: bson.A{"$" + g.Path(), pick[any](g, bson.A{literal(v), literal(g.Scalar()), literal(g.operand())}, bson.A{literal(g.Scalar())}, literal(bson.A{g.Scalar(), nil, g.Number()}), bson.A{})}}}
	}
	sides := bson.A{"$" + g.Path(), literal(v)}
	if g.Chance(0.2) {
		sides[0], sides[1] = sides[1], sides[0]
	}
	return bson.D{{Key: pick(g, "$eq", "$eq", "$gt", "$gte", "$lt", "$lte", "$ne"), Value: sides}}
}

// operand returns a value to compare with; a plain regular expression would be a pattern.
func (g *Gen) operand() any {
	switch v := g.Value(1).(type) {
	case bson.Regex, bson.Undefined:
		return int32(3)
	default:
		return v
	}
}

func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

func (g *Gen) elem() bson.D {
	out := bson.D{{Key: pick(g, "x", "y"), Value: pick[any](g, g.operand(), bson.D{{Key: pick(g, "$gt", "$lte", "$ne"), Value: g.operand()}})}}
	if g.Chance(0.5) {
		out = with(out, bson.E{Key: pick(g, "x", "y"), Value: bson.D{g.op()}})
	}
	return out
}

// op returns an operator on one path.
func (g *Gen) op() bson.E {
	list := func() bson.A {
		out := bson.A{}
		for range g.R.IntN(4) {
			out = append(out, g.operand())
		}
		if g.Chance(0.1) {
			out = append(out, bson.Regex{Pattern: "^ab"})
		}
		return out
	}
	switch g.R.IntN(22) {
	case 0, 1:
		return bson.E{Key: "$ne", Value: g.operand()}
	case 2, 3, 4, 5:
		return bson.E{Key: "$in", Value: list()}
	case 6:
		return bson.E{Key: "$nin", Value: list()}
	case 7:
		return bson.E{Key: "$exists", Value: g.Chance(0.5)}
	case 8:
		return bson.E{Key: "$type", Value: pick[any](g, "number", "string", "null", "array", "object", "double", bson.A{"int", "string"}, "bool", "minKey")}
	case 9:
		return bson.E{Key: "$regex", Value: pick(g, bson.Regex{Pattern: "^a"}, bson.Regex{Pattern: "b"}, bson.Regex{Pattern: "^AB", Options: "i"}, bson.Regex{Pattern: "^abc$"}, bson.Regex{Pattern: "^(a|b)"}, bson.Regex{Pattern: "^ab?"}, bson.Regex{Pattern: "^x y"})}
	case 10:
		return bson.E{Key: "$mod", Value: bson.A{2, g.R.IntN(2)}}
	case 11:
		return bson.E{Key: "$size", Value: g.R.IntN(3)}
	case 12:
		return bson.E{Key: "$all", Value: pick(g, bson.A{g.Scalar()}, bson.A{g.Number(), g.Number()})}
	case 13:
		return bson.E{Key: pick(g, "$bitsAllSet", "$bitsAnyClear", "$bitsAnySet", "$bitsAllClear"), Value: g.R.IntN(4)}
	case 14:
		return bson.E{Key: "$elemMatch", Value: bson.D{{Key: pick(g, "$gt", "$lt", "$ne", "$gte"), Value: g.operand()}, {Key: "$in", Value: bson.A{g.operand(), g.operand(), g.operand()}}}}
	case 15:
		return bson.E{Key: "$eq", Value: g.operand()}
	}
	return bson.E{Key: pick(g, "$gt", "$gte", "$lt", "$lte"), Value: g.operand()}
}

func (g *Gen) geoLeaf() bson.E {
	x, y := g.coordinate(), g.coordinate()
	square := bson.D{{Key: "type", Value: "Polygon"}, {Key: "coordinates", Value: bson.A{bson.A{bson.A{x, y}, bson.A{x + 8, y}, bson.A{x + 8, y + 6}, bson.A{x, y + 6}, bson.A{x, y}}}}}
	switch g.R.IntN(7) {
	case 4:
		return bson.E{Key: "geo", Value: bson.D{{Key: "$geoWithin", Value: bson.D{{Key: "$centerSphere", Value: bson.A{bson.A{x, y}, g.R.Float64() / 3}}}}}}
	case 5:
		return bson.E{Key: "xy", Value: bson.D{{Key: "$geoWithin", Value: bson.D{{Key: "$polygon", Value: bson.A{bson.A{x, y}, bson.A{x + 9, y}, bson.A{x, y + 7}}}}}}}
	case 6:
		line := bson.D{{Key: "type", Value: "LineString"}, {Key: "coordinates", Value: bson.A{bson.A{x, y}, bson.A{y, x + 0.25}}}}
		if g.Chance(0.5) {
			line = bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{x, y}}}
		}
		return bson.E{Key: "geo", Value: bson.D{{Key: "$geoIntersects", Value: bson.D{{Key: "$geometry", Value: line}}}}}
	case 0:
		return bson.E{Key: "xy", Value: bson.D{{Key: "$geoWithin", Value: bson.D{{Key: "$box", Value: bson.A{bson.A{x, y}, bson.A{x + 5, y + 9}}}}}}}
	case 1:
		return bson.E{Key: "xy", Value: bson.D{{Key: "$geoWithin", Value: bson.D{{Key: "$center", Value: bson.A{bson.A{x, y}, 4.5}}}}}}
	case 2:
		return bson.E{Key: "geo", Value: bson.D{{Key: "$geoIntersects", Value: bson.D{{Key: "$geometry", Value: square}}}}}
	}
	return bson.E{Key: "geo", Value: bson.D{{Key: "$geoWithin", Value: bson.D{{Key: "$geometry", Value: square}}}}}
}

// Projection returns a projection, nil for whole documents.
func (g *Gen) Projection() bson.D {
	switch g.R.IntN(8) {
	case 0, 1, 2:
		out := bson.D{}
		if g.Chance(0.7) {
			out = append(out, bson.E{Key: "_id", Value: 0})
		}
		for range 1 + g.R.IntN(2) {
			out = with(out, bson.E{Key: pick(g, "a", "b", "c", "n.x", "n.y", "s"), Value: 1})
		}
		return out
	case 3:
		return bson.D{{Key: pick(g, "a", "n.x", "n"), Value: 0}, {Key: "s", Value: 0}}
	case 4:
		return bson.D{{Key: "z", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$a", "none"}}}}, {Key: "b", Value: 1}}
	case 5:
		return bson.D{{Key: "n", Value: bson.D{{Key: "$slice", Value: 1}}}}
	}
	return nil
}
