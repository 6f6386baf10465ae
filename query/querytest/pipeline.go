package querytest

import "go.mongodb.org/mongo-driver/v2/bson"

// Pipeline is a list of stages, and whether its results have a defined order.
type Pipeline struct {
	Stages  bson.A
	Ordered bool
	// Cut is set if a limit or skip determines which documents later stages process: then there may be an error or not.
	Cut bool
}

// state holds what is known about the documents at one position of a pipeline.
type state struct {
	key    []string // paths that distinguish any two documents
	whole  bool     // the documents still have the fields that Doc makes
	groups bool     // _id is a group's key: it is undefined which of equal values is shown
}

// Pipeline returns a pipeline of up to n stages. The documents have a number at "v". others are the collections that $lookup and similar stages may read.
func (g *Gen) Pipeline(n int, others ...string) Pipeline {
	p := Pipeline{}
	s := state{key: []string{"_id"}, whole: true}
	for range 1 + g.R.IntN(n) {
		g.stage(&p, &s, others)
	}
	return p
}

func stage(name string, spec any) bson.D { return bson.D{{Key: name, Value: spec}} }

func (g *Gen) stage(p *Pipeline, s *state, others []string) {
	add := func(name string, spec any) { p.Stages = append(p.Stages, stage(name, spec)) }
	if !s.whole {
		g.tail(p, s)
		return
	}
	switch g.R.IntN(24) {
	default:
		g.rare(p, s, others)
	case 0, 1, 2, 3:
		add("$match", g.Filter())
	case 4:
		if g.Chance(0.5) { // a field gets another name, to which the filter refers
			name := pick(g, "a", "b", "e", "f")
			add(pick(g, "$addFields", "$set"), bson.D{{Key: name, Value: pick(g, "$a", "$b", "$n", "$d", "$e")}, {Key: pick(g, "g", "h"), Value: pick(g, "$a", "$b")}})
			add("$match", pick(g, bson.D{{Key: name, Value: g.operand()}}, bson.D{{Key: name, Value: bson.D{g.op()}}, {Key: "g", Value: bson.D{g.op()}}}, g.Filter()))
			return
		}
		add(pick(g, "$addFields", "$set"), bson.D{{Key: pick(g, "a", "b", "e", "n.z"), Value: g.Expr(2)}})
	case 5:
		add(pick(g, "$addFields", "$set"), bson.D{{Key: pick(g, "a", "b", "e", "n.z"), Value: g.Expr(2)}})
	case 6:
		add("$project", g.inclusion())
	case 7:
		add("$unset", pick[any](g, "c", bson.A{"d", "n.x"}))
	case 8, 9:
		f := pick(g, "a", "n", "b")
		add("$unwind", bson.D{{Key: "path", Value: "$" + f}, {Key: "includeArrayIndex", Value: "at" + f}, {Key: "preserveNullAndEmptyArrays", Value: g.Chance(0.5)}})
		s.key = append(s.key, "at"+f)
	case 10, 11:
		g.cut(p, s)
	case 12, 13:
		g.group(p, s)
	case 14:
		g.join(p, s, others)
	case 15:
		add("$replaceRoot", bson.D{{Key: "newRoot", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{"$$ROOT", bson.D{{Key: "r", Value: g.Expr(1)}}}}}}})
	case 16:
		g.window(p, s)
	case 17:
		g.summary(p, s)
	}
}

// cut sorts by the key that distinguishes documents and may skip or limit.
func (g *Gen) cut(p *Pipeline, s *state) {
	sort := bson.D{}
	for _, e := range g.Sort() {
		if len(sort) == 0 { // two might be parallel arrays
			sort = append(sort, e)
		}
	}
	if !s.whole {
		sort = bson.D{}
	}
	for _, k := range s.key {
		sort = with(sort, bson.E{Key: k, Value: pick(g, 1, -1)})
	}
	p.Stages, p.Ordered = append(p.Stages, stage("$sort", sort)), true
	if g.Chance(0.3) {
		p.Stages, p.Cut = append(p.Stages, stage("$skip", g.R.IntN(8))), true
	}
	if g.Chance(0.5) {
		p.Stages, p.Cut = append(p.Stages, stage("$limit", 1+g.R.IntN(25))), true
	}
}

func (g *Gen) inclusion() bson.D {
	out := bson.D{{Key: "v", Value: 1}, {Key: "ata", Value: 1}, {Key: "atb", Value: 1}, {Key: "atn", Value: 1}}
	for range 1 + g.R.IntN(3) {
		out = with(out, bson.E{Key: pick(g, "a", "b", "n.x", "s", "k"), Value: 1})
	}
	if g.Chance(0.3) {
		out = append(out, bson.E{Key: "e", Value: g.Expr(2)})
	}
	return out
}

// group groups documents; its result does not depend on their order.
func (g *Gen) group(p *Pipeline, s *state) {
	acc := func() bson.D {
		switch g.R.IntN(7) {
		case 0:
			return stage("$sum", "$v")
		case 1:
			return stage("$avg", "$v")
		case 2:
			return stage(pick(g, "$min", "$max"), g.Expr(1))
		case 3:
			return stage(pick(g, "$minN", "$maxN"), bson.D{{Key: "input", Value: "$v"}, {Key: "n", Value: 3}})
		case 4:
			by := bson.D{}
			for _, k := range s.key {
				by = append(by, bson.E{Key: k, Value: pick(g, 1, -1)})
			}
			return stage(pick(g, "$topN", "$bottomN"), bson.D{{Key: "sortBy", Value: by}, {Key: "output", Value: "$_id"}, {Key: "n", Value: 2}})
		case 5:
			return stage("$count", bson.D{})
		}
		return stage("$sum", 1)
	}
	spec := bson.D{{Key: "_id", Value: pick[any](g, nil, bson.D{{Key: "x", Value: "$" + g.Path()}}, bson.D{{Key: "x", Value: "$b"}, {Key: "y", Value: "$s"}}, bson.D{{Key: "x", Value: g.Expr(1)}})}, {Key: "v", Value: acc()}}
	if p.Ordered && g.Chance(0.5) {
		spec = append(spec, bson.E{Key: "w", Value: stage(pick(g, "$first", "$last", "$push"), "$_id")})
	}
	if g.Chance(0.5) {
		spec = append(spec, bson.E{Key: "m", Value: acc()})
	}
	p.Stages, p.Ordered = append(p.Stages, stage("$group", spec)), false
	*s = state{key: []string{"_id"}, groups: true}
}

// tail continues after a group.
func (g *Gen) tail(p *Pipeline, s *state) {
	switch g.R.IntN(5) {
	case 0, 1:
		g.cut(p, s)
	case 2:
		p.Stages = append(p.Stages, stage("$match", bson.D{{Key: "v", Value: bson.D{{Key: "$gt", Value: g.R.IntN(5)}}}}))
	case 3:
		p.Stages = append(p.Stages, stage("$project", bson.D{{Key: "v", Value: 1}}))
	case 4:
		p.Stages = append(p.Stages, stage("$addFields", bson.D{{Key: "t", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$v", 0}}}}}))
	}
}

// join reads other collections.
func (g *Gen) join(p *Pipeline, s *state, others []string) {
	if len(others) == 0 {
		return
	}
	from := pick(g, others...)
	byID := func() bson.D { return stage("$sort", bson.D{{Key: "_id", Value: 1}}) }
	switch g.R.IntN(6) {
	case 0, 1:
		spec := bson.D{{Key: "from", Value: from}, {Key: "localField", Value: pick(g, "a", "n.x", "v", "b")}, {Key: "foreignField", Value: pick(g, "_id", "a", "n.x")},
			{Key: "pipeline", Value: bson.A{byID(), stage("$project", bson.D{{Key: "v", Value: 1}})}}, {Key: "as", Value: "j"}}
		p.Stages = append(p.Stages, stage("$lookup", spec))
		if g.Chance(0.4) {
			p.Stages = append(p.Stages, stage("$unwind", bson.D{{Key: "path", Value: "$j"}, {Key: "includeArrayIndex", Value: "atj"}}))
			s.key = append(s.key, "atj")
		}
		if g.Chance(0.4) {
			p.Stages = append(p.Stages, stage("$match", bson.D{{Key: "j.v", Value: bson.D{{Key: "$gt", Value: 2}}}, g.leaf()}))
		}
	case 2:
		p.Stages = append(p.Stages, stage("$lookup", bson.D{{Key: "from", Value: from}, {Key: "let", Value: bson.D{{Key: "v", Value: "$v"}}}, {Key: "as", Value: "j"},
			{Key: "pipeline", Value: bson.A{stage("$match", stage("$expr", stage("$eq", bson.A{"$v", "$$v"}))), byID(), stage("$limit", 3), stage("$project", bson.D{{Key: "_id", Value: 1}})}}}))
	case 3:
		p.Stages = append(p.Stages, stage("$unionWith", bson.D{{Key: "coll", Value: from}, {Key: "pipeline", Value: bson.A{stage("$match", g.Filter()), stage("$addFields", bson.D{{Key: "u", Value: 1}})}}}))
		s.key, p.Ordered = append(s.key, "u"), false
	case 4:
		p.Stages = append(p.Stages, stage("$graphLookup", bson.D{{Key: "from", Value: from}, {Key: "startWith", Value: "$v"}, {Key: "connectFromField", Value: "v"},
			{Key: "connectToField", Value: "_id"}, {Key: "maxDepth", Value: 1}, {Key: "as", Value: "j"}}), stage("$addFields", bson.D{{Key: "j", Value: stage("$size", "$j")}}))
	case 5:
		p.Stages = append(p.Stages, stage("$facet", bson.D{{Key: "n", Value: bson.A{stage("$match", g.Filter()), stage("$count", "n")}},
			{Key: "top", Value: bson.A{stage("$sort", order(s.key)), stage("$limit", 3), stage("$project", bson.D{{Key: "v", Value: 1}})}}}))
		*s = state{}
	}
}

func order(key []string) bson.D {
	out := bson.D{}
	for _, k := range key {
		out = append(out, bson.E{Key: k, Value: 1})
	}
	return out
}

func (g *Gen) window(p *Pipeline, s *state) {
	out := bson.D{{Key: "w", Value: pick(g,
		bson.D{{Key: "$sum", Value: "$v"}, {Key: "window", Value: bson.D{{Key: "documents", Value: bson.A{-2, 1}}}}},
		bson.D{{Key: "$documentNumber", Value: bson.D{}}},
		bson.D{{Key: "$shift", Value: bson.D{{Key: "output", Value: "$v"}, {Key: "by", Value: -1}}}},
		bson.D{{Key: "$max", Value: "$v"}})}}
	spec := bson.D{{Key: "sortBy", Value: order(s.key)}, {Key: "output", Value: out}}
	if out[0].Value.(bson.D)[0].Key == "$documentNumber" && len(s.key) > 1 {
		spec[0].Value = bson.D{{Key: "_id", Value: 1}, {Key: s.key[1], Value: 1}}
	}
	if g.Chance(0.4) {
		spec = append(spec, bson.E{Key: "partitionBy", Value: "$s"})
	}
	p.Stages, p.Ordered = append(p.Stages, stage("$setWindowFields", spec)), false
}

// summary is a stage that returns few documents.
func (g *Gen) summary(p *Pipeline, s *state) {
	switch g.R.IntN(4) {
	case 0:
		p.Stages = append(p.Stages, stage("$count", "v"))
	case 1:
		p.Stages = append(p.Stages, stage("$bucket", bson.D{{Key: "groupBy", Value: "$v"}, {Key: "boundaries", Value: bson.A{0, 3, 5}}, {Key: "default", Value: "more"}, {Key: "output", Value: bson.D{{Key: "v", Value: stage("$sum", 1)}}}}))
	case 2:
		p.Stages = append(p.Stages, stage("$sortByCount", "$s"))
	case 3:
		p.Stages = append(p.Stages, stage("$bucketAuto", bson.D{{Key: "groupBy", Value: "$v"}, {Key: "buckets", Value: 3}}))
	}
	p.Ordered = false
	*s = state{key: []string{"_id"}, groups: true}
	if last := p.Stages[len(p.Stages)-1].(bson.D); last[0].Key == "$count" {
		s.key = []string{"v"}
	}
}

// Expr returns an expression that fails on no document.
func (g *Gen) Expr(depth int) any {
	path := "$" + pick(g, "a", "b", "n.x", "v", "s", "k")
	if depth == 0 {
		return pick[any](g, path, path, "$v", literal(g.Number()))
	}
	sub := func() any { return g.Expr(depth - 1) }
	switch g.R.IntN(14) {
	case 8, 9:
		return g.listExpr(path, sub)
	case 10:
		return stage("$switch", bson.D{{Key: "branches", Value: bson.A{bson.D{{Key: "case", Value: stage("$eq", bson.A{path, sub()})}, {Key: "then", Value: sub()}}}}, {Key: "default", Value: sub()}})
	case 11:
		return stage("$let", bson.D{{Key: "vars", Value: bson.D{{Key: "w", Value: sub()}}}, {Key: "in", Value: bson.A{"$$w", path}}})
	case 12:
		return stage("$convert", bson.D{{Key: "input", Value: path}, {Key: "to", Value: pick(g, "double", "bool", "decimal", "int", "long")}, {Key: "onError", Value: "bad"}, {Key: "onNull", Value: 0}})
	case 13:
		if g.Limit {
			return stage(pick(g, "$gt", "$lt"), bson.A{path, "$$lim"})
		}
		return stage("$type", path)
	case 0:
		return stage("$cond", bson.A{stage(pick(g, "$gt", "$lte", "$eq"), bson.A{sub(), sub()}), sub(), sub()})
	case 1:
		return stage("$ifNull", bson.A{sub(), "none"})
	case 2:
		return stage("$isNumber", sub())
	case 3:
		return stage(pick(g, "$and", "$or"), bson.A{sub(), sub()})
	case 4:
		return stage(pick(g, "$add", "$multiply"), bson.A{"$v", 2})
	case 5:
		return stage("$isArray", bson.A{sub()})
	case 6:
		return stage("$cmp", bson.A{sub(), sub()})
	}
	return path
}
