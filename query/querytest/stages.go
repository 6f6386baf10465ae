package querytest

import "go.mongodb.org/mongo-driver/v2/bson"

// rare adds a rarely used stage, or a few that belong together.
func (g *Gen) rare(p *Pipeline, s *state, others []string) {
	add := func(name string, spec any) { p.Stages = append(p.Stages, stage(name, spec)) }
	switch g.R.IntN(10) {
	case 0:
		add("$match", stage("$expr", g.Expr(2)))
	case 1:
		add("$redact", stage("$cond", bson.A{stage(pick(g, "$gt", "$lte"), bson.A{"$v", g.R.IntN(9)}), pick(g, "$$KEEP", "$$DESCEND"), "$$PRUNE"}))
		if g.Chance(0.7) {
			add("$match", g.Filter())
		}
	case 2:
		add("$fill", g.fill(s))
	case 3:
		g.densify(p, s)
	case 4:
		g.windows(p, s)
	case 5:
		g.sample(p, s)
	case 6:
		g.facet(p, s, others)
	case 7:
		g.graph(p, others)
	case 8:
		g.union(p, s, others)
	case 9:
		g.subLookup(p, others)
	}
}

func (g *Gen) fill(s *state) bson.D {
	spec := bson.D{{Key: "sortBy", Value: order(s.key)}, {Key: "output", Value: bson.D{{Key: pick(g, "a", "v", "s"), Value: bson.D{{Key: "method", Value: "locf"}}}, {Key: "b", Value: bson.D{{Key: "value", Value: g.Expr(1)}}}}}}
	switch g.R.IntN(3) {
	case 0:
		spec = append(spec, bson.E{Key: "partitionByFields", Value: bson.A{"s"}})
	case 1:
		spec = append(spec, bson.E{Key: "partitionBy", Value: bson.D{{Key: "x", Value: "$s"}}})
	}
	return spec
}

// densify adds documents between the existing ones; after it nothing is known about the fields.
func (g *Gen) densify(p *Pipeline, s *state) {
	bounds := pick[any](g, "full", "partition", bson.A{0, 6})
	spec := bson.D{{Key: "field", Value: "v"}, {Key: "range", Value: bson.D{{Key: "step", Value: pick[any](g, 1, 0.5, 3)}, {Key: "bounds", Value: bounds}}}}
	if bounds == "partition" || g.Chance(0.4) {
		spec = append(spec, bson.E{Key: "partitionByFields", Value: bson.A{"s"}})
	}
	p.Stages = append(p.Stages, stage("$set", bson.D{{Key: "s", Value: stage("$ifNull", bson.A{"$s", "none"})}})) // a sort treats null and missing as equal
	p.Stages, p.Ordered = append(p.Stages, stage("$densify", spec)), false
	*s = state{key: append(s.key, "v", "s")}
}

// windows is $setWindowFields with functions that window does not use; each result is independent of the order of ties.
func (g *Gen) windows(p *Pipeline, s *state) {
	near := bson.D{{Key: "range", Value: bson.A{pick[any](g, -1, "unbounded", -0.5), pick[any](g, 1, "current", 2.5)}}}
	byValue := func() bson.D {
		switch g.R.IntN(5) {
		case 0:
			return bson.D{{Key: pick(g, "$rank", "$denseRank"), Value: bson.D{}}}
		case 1:
			return bson.D{{Key: pick(g, "$sum", "$avg", "$min", "$max"), Value: "$v"}, {Key: "window", Value: near}}
		case 2:
			return bson.D{{Key: "$count", Value: bson.D{}}, {Key: "window", Value: near}}
		case 3:
			return bson.D{{Key: pick(g, "$minN", "$maxN"), Value: bson.D{{Key: "input", Value: "$v"}, {Key: "n", Value: 2}}}, {Key: "window", Value: near}}
		}
		return bson.D{{Key: pick(g, "$stdDevPop", "$sum"), Value: literal(1)}, {Key: "window", Value: near}}
	}
	total := func() bson.D {
		around := bson.E{Key: "window", Value: bson.D{{Key: "documents", Value: bson.A{pick[any](g, -2, "unbounded", 0), pick[any](g, 1, "current", "unbounded")}}}}
		switch g.R.IntN(5) {
		case 0:
			return bson.D{{Key: pick(g, "$push", "$first", "$last"), Value: "$_id"}, around}
		case 1:
			return bson.D{{Key: "$expMovingAvg", Value: bson.D{{Key: "input", Value: "$v"}, {Key: "N", Value: 2}}}}
		case 2:
			return bson.D{{Key: "$locf", Value: "$b"}}
		case 3:
			return bson.D{{Key: pick(g, "$firstN", "$lastN"), Value: bson.D{{Key: "input", Value: "$_id"}, {Key: "n", Value: 2}}}, around}
		}
		return bson.D{{Key: pick(g, "$covariancePop", "$covarianceSamp"), Value: bson.A{"$v", "$v"}}, around}
	}
	spec := bson.D{{Key: "sortBy", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "output", Value: bson.D{{Key: "w", Value: byValue()}, {Key: "x", Value: byValue()}}}}
	if g.Chance(0.5) {
		spec = bson.D{{Key: "sortBy", Value: order(s.key)}, {Key: "output", Value: bson.D{{Key: "w", Value: total()}, {Key: "x", Value: total()}}}}
	}
	if g.Chance(0.4) {
		spec = append(spec, bson.E{Key: "partitionBy", Value: pick[any](g, "$s", bson.D{{Key: "x", Value: "$s"}})})
	}
	p.Stages, p.Ordered = append(p.Stages, stage("$setWindowFields", spec)), false
}

// sample returns all documents in any order, or reduces them to their number.
func (g *Gen) sample(p *Pipeline, s *state) {
	if g.Chance(0.5) {
		p.Stages, p.Ordered = append(p.Stages, stage("$sample", bson.D{{Key: "size", Value: 100000}})), false
		return
	}
	p.Stages, p.Ordered, p.Cut = append(p.Stages, stage("$sample", bson.D{{Key: "size", Value: 1 + g.R.IntN(40)}}), stage("$count", "v")), false, true
	*s = state{key: []string{"v"}}
}

// sub returns a sub-pipeline whose results have a defined order, unless its state has no key.
func (g *Gen) sub(n int, others []string) (Pipeline, state) {
	p := Pipeline{}
	s := state{key: []string{"_id"}, whole: true}
	for range g.R.IntN(n + 1) {
		g.stage(&p, &s, others)
	}
	if len(s.key) > 0 {
		p.Stages = append(p.Stages, stage("$sort", order(s.key)))
	}
	return p, s
}

func (g *Gen) facet(p *Pipeline, s *state, others []string) {
	spec := bson.D{}
	for _, name := range []string{"x", "y", "z"}[:1+g.R.IntN(3)] {
		in := Pipeline{Ordered: p.Ordered}
		st := state{key: s.key, whole: s.whole, groups: s.groups}
		for range 1 + g.R.IntN(2) {
			g.stage(&in, &st, nil)
		}
		if len(st.key) == 0 || len(in.Stages) == 0 || hasStage(in.Stages, "$facet") {
			in.Stages = bson.A{stage("$count", "n")}
		} else {
			in.Stages = append(in.Stages, stage("$sort", order(st.key)))
		}
		p.Cut = p.Cut || in.Cut
		spec = append(spec, bson.E{Key: name, Value: in.Stages})
	}
	p.Stages, p.Ordered = append(p.Stages, stage("$facet", spec)), true
	*s = state{key: []string{"x"}}
}

func hasStage(stages bson.A, name string) bool {
	for _, s := range stages {
		if s.(bson.D)[0].Key == name {
			return true
		}
	}
	return false
}

// graph follows links over several hops: documents have _ids of others, one or a list, at "link".
func (g *Gen) graph(p *Pipeline, others []string) {
	if len(others) == 0 {
		return
	}
	spec := bson.D{{Key: "from", Value: pick(g, others...)}, {Key: "startWith", Value: pick(g, "$link", "$_id", "$v")}, {Key: "as", Value: "j"}, {Key: "depthField", Value: "depth"}}
	if g.Chance(0.7) {
		spec = append(spec, bson.E{Key: "connectFromField", Value: "link"}, bson.E{Key: "connectToField", Value: "_id"})
	} else {
		spec = append(spec, bson.E{Key: "connectFromField", Value: "_id"}, bson.E{Key: "connectToField", Value: "link"})
	}
	if g.Chance(0.6) {
		spec = append(spec, bson.E{Key: "maxDepth", Value: g.R.IntN(5)})
	}
	if g.Chance(0.4) {
		spec = append(spec, bson.E{Key: "restrictSearchWithMatch", Value: g.Filter()})
	}
	shown := stage("$map", bson.D{{Key: "input", Value: stage("$sortArray", bson.D{{Key: "input", Value: "$j"}, {Key: "sortBy", Value: bson.D{{Key: "_id", Value: 1}}}})},
		{Key: "in", Value: bson.D{{Key: "i", Value: "$$this._id"}, {Key: "d", Value: "$$this.depth"}}}})
	p.Stages = append(p.Stages, stage("$graphLookup", spec), stage("$addFields", bson.D{{Key: "j", Value: shown}}))
}

// union adds the results of another pipeline.
func (g *Gen) union(p *Pipeline, s *state, others []string) {
	if len(others) == 0 {
		return
	}
	in, st := g.sub(2, others)
	in.Stages = append(in.Stages, stage("$addFields", bson.D{{Key: "u", Value: g.R.Int32()}}))
	p.Stages = append(p.Stages, stage("$unionWith", bson.D{{Key: "coll", Value: pick(g, others...)}, {Key: "pipeline", Value: in.Stages}}))
	p.Ordered, p.Cut = false, p.Cut || in.Cut
	key := append(append([]string{}, s.key...), "u")
	for _, k := range st.key {
		if !contains(key, k) {
			key = append(key, k)
		}
	}
	*s = state{key: key, whole: s.whole && st.whole, groups: s.groups || st.groups}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// subLookup joins by a pipeline, which may join in its turn.
func (g *Gen) subLookup(p *Pipeline, others []string) {
	if len(others) == 0 {
		return
	}
	in, st := g.sub(2, others)
	if len(st.key) == 0 {
		in, st = Pipeline{Stages: bson.A{stage("$sort", order([]string{"_id"}))}}, state{key: []string{"_id"}}
	}
	link := bson.A{stage("$match", stage("$expr", stage(pick(g, "$eq", "$gte", "$in"), bson.A{"$_id", "$$w"})))}
	vars := bson.D{{Key: "w", Value: "$link"}}
	if op := link[0].(bson.D)[0].Value.(bson.D)[0].Value.(bson.D); op[0].Key == "$in" {
		vars[0].Value = stage("$cond", bson.A{stage("$isArray", bson.A{"$link"}), "$link", bson.A{"$link"}})
	}
	spec := bson.D{{Key: "from", Value: pick(g, others...)}, {Key: "as", Value: "j"}}
	if g.Chance(0.7) {
		spec = append(spec, bson.E{Key: "let", Value: vars})
		in.Stages = append(link, in.Stages...)
	}
	if g.Chance(0.3) {
		spec = append(spec, bson.E{Key: "localField", Value: pick(g, "link", "a", "k")}, bson.E{Key: "foreignField", Value: pick(g, "_id", "k", "n.x")})
	}
	if g.Chance(0.5) {
		in.Stages = append(in.Stages, stage("$limit", 1+g.R.IntN(4)))
		p.Cut = true
	}
	p.Cut = p.Cut || in.Cut
	p.Stages = append(p.Stages, stage("$lookup", append(spec, bson.E{Key: "pipeline", Value: in.Stages})))
}

// listExpr returns an expression over lists.
func (g *Gen) listExpr(path string, sub func() any) any {
	list := stage("$cond", bson.A{stage("$isArray", bson.A{path}), path, bson.A{path, sub()}})
	switch g.R.IntN(6) {
	case 0:
		return stage("$map", bson.D{{Key: "input", Value: list}, {Key: "in", Value: bson.A{"$$this", "$v"}}})
	case 1:
		return stage("$filter", bson.D{{Key: "input", Value: list}, {Key: "cond", Value: stage("$gt", bson.A{"$$this", sub()})}})
	case 2:
		return stage("$reduce", bson.D{{Key: "input", Value: list}, {Key: "initialValue", Value: bson.A{}}, {Key: "in", Value: stage("$concatArrays", bson.A{bson.A{"$$this"}, "$$value"})}})
	case 3:
		return stage("$size", list)
	case 4:
		return stage("$sortArray", bson.D{{Key: "input", Value: list}, {Key: "sortBy", Value: pick(g, 1, -1)}})
	}
	return stage("$in", bson.A{sub(), list})
}
