package mapreduce

import (
	"github.com/shoaldb/shoal/query/js"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Command is a parsed mapReduce command.
type Command struct {
	Inline bool
	DB     string // of the output, "" for the command's own
	Coll   string // the output collection

	mode                 string // replace, merge or reduce
	coll                 string
	query, sort          value.Value
	limit                int64
	mapFn, reduce, final value.Value
	scope                value.Value
}

// Parse reads the arguments of the command on collection coll; get returns them by name.
func Parse(coll string, get func(name string) value.Value) (*Command, error) {
	c := &Command{coll: coll, query: get("query"), sort: get("sort"), scope: get("scope")}
	if limit := get("limit"); limit.T.Numeric() {
		if c.limit, _ = limit.AsInt64(); c.limit < 0 {
			return nil, mongoerr.New(mongoerr.BadValue, "limit must be a non-negative number")
		}
	}
	for _, f := range []struct {
		dst  *value.Value
		name string
		need bool
	}{{&c.mapFn, "map", true}, {&c.reduce, "reduce", true}, {&c.final, "finalize", false}} {
		v := get(f.name)
		switch {
		case v.IsNullish() && !f.need:
			continue
		case v.T != value.String && v.T != value.JavaScript:
			return nil, mongoerr.Newf(mongoerr.BadValue, "'%s' must be of string or code type", f.name)
		}
		if _, err := js.Compile(v.Str()); err != nil {
			return nil, err
		}
		*f.dst = v
	}
	return c, c.parseOut(get("out"))
}

// parseOut reads the destination of the result.
func (c *Command) parseOut(out value.Value) error {
	switch out.T {
	case value.String:
		c.mode, c.Coll = "replace", out.Str()
		return nil
	case value.Document:
	default:
		return mongoerr.New(mongoerr.BadValue, "'out' must be either a string or an object")
	}
	modes := 0
	for k, v := range value.Elements(out.Doc()) {
		switch k {
		case "inline":
			if n, ok := v.AsInt64(); !ok || n != 1 {
				return mongoerr.New(mongoerr.BadValue, "'inline' takes only numeric '1'")
			}
			c.Inline = true
			modes++
		case "replace", "merge", "reduce":
			if v.T != value.String {
				return mongoerr.Newf(mongoerr.BadValue, "'%s' supports only string type", k)
			}
			c.mode, c.Coll = k, v.Str()
			modes++
		case "db":
			if v.T != value.String {
				return mongoerr.New(mongoerr.BadValue, "'db' supports only string type")
			}
			c.DB = v.Str()
		case "sharded", "nonAtomic":
			if v.T != value.Boolean && !v.T.Numeric() {
				return mongoerr.Newf(mongoerr.BadValue, "'%s' supports only boolean type", k)
			}
			if !v.Truthy() {
				return mongoerr.Newf(mongoerr.BadValue, "The %s:false option is no longer allowed in mapReduce", k)
			}
		default:
			return mongoerr.Newf(mongoerr.BadValue, "unrecognized option %s in 'out'", k)
		}
	}
	if modes != 1 {
		return mongoerr.New(mongoerr.BadValue, "'out' must have exactly one of 'inline', 'replace', 'merge' and 'reduce'")
	}
	return nil
}

func doc(fs ...value.Field) value.Value          { return value.NewDocument(value.Doc(fs...)) }
func f(name string, v value.Value) value.Field   { return value.F(name, v) }
func str(s string) value.Value                   { return value.NewString(s) }
func one(name string, v value.Value) value.Value { return doc(f(name, v)) }
func array(vs ...value.Value) value.Value        { return value.NewArray(value.ArrayOf(vs...)) }

// source returns a function's text as a literal string, so that expressions do not interpret it as a path.
func source(v value.Value) value.Value { return one("$literal", str(v.Str())) }

// Pipeline returns the aggregation that computes the command; db is the command's database.
func (c *Command) Pipeline(db string) value.Value {
	var p []value.Value
	if c.query.T == value.Document && value.Count(c.query.Doc()) > 0 {
		p = append(p, one("$match", c.query))
	}
	if c.sort.T == value.Document && value.Count(c.sort.Doc()) > 0 {
		p = append(p, one("$sort", c.sort))
	}
	if c.limit > 0 {
		p = append(p, one("$limit", value.NewInt64(c.limit)))
	}
	emits := one("$_internalJsEmit", doc(f("this", str("$$ROOT")), f("eval", str(c.mapFn.Str()))))
	p = append(p,
		one("$project", doc(f("_id", value.NewInt32(0)), f("emits", emits))),
		one("$unwind", str("$emits")),
		one("$group", doc(f("_id", str("$emits.k")), f("value", one("$_internalJsReduce", doc(f("data", str("$emits")), f("eval", source(c.reduce))))))))
	if !c.final.IsNullish() {
		p = append(p, c.finalize())
	}
	if !c.Inline {
		p = append(p, c.write(db))
	}
	return array(p...)
}

func (c *Command) finalize() value.Value {
	return one("$project", one("value", function(c.final, str("$_id"), str("$value"))))
}

func function(body value.Value, args ...value.Value) value.Value {
	return one("$function", doc(f("body", str(body.Str())), f("args", array(args...)), f("lang", str("js"))))
}

// write returns the stage that stores the result.
func (c *Command) write(db string) value.Value {
	if c.DB != "" {
		db = c.DB
	}
	to := doc(f("db", str(db)), f("coll", str(c.Coll)))
	switch c.mode {
	case "replace":
		return one("$out", to)
	case "merge":
		return one("$merge", doc(f("into", to), f("on", str("_id")), f("whenMatched", str("replace")), f("whenNotMatched", str("insert"))))
	}
	again := array(one("$project", one("value", function(c.reduce, str("$_id"), array(str("$value"), str("$$new.value"))))))
	if !c.final.IsNullish() {
		again = array(append(value.Values(again.Doc()), c.finalize())...)
	}
	return one("$merge", doc(f("into", to), f("on", str("_id")), f("whenMatched", again), f("whenNotMatched", str("insert"))))
}

// Constants returns the runtimeConstants of the aggregate.
func (c *Command) Constants() value.Value {
	fs := []value.Field{f("isMapReduce", value.NewBool(true))}
	if c.scope.T == value.Document {
		fs = append(fs, f("jsScope", c.scope))
	}
	return doc(fs...)
}

// Aggregate returns the aggregate command that computes the command; extra has elements of the mapReduce command
// that have the same meaning there.
func (c *Command) Aggregate(db string, extra []byte) []byte {
	b, mark := value.Begin(nil)
	b = value.Append(b, "aggregate", str(c.coll))
	b = value.Append(b, "pipeline", c.Pipeline(db))
	b = value.Append(b, "cursor", one("batchSize", value.NewInt32(1<<31-1)))
	b = value.Append(b, "allowDiskUse", value.NewBool(true))
	b = value.Append(b, "isMapReduceCommand", value.NewBool(true))
	b = value.Append(b, "runtimeConstants", c.Constants())
	b = append(b, extra...)
	return value.End(value.Append(b, "$db", str(db)), mark)
}

// Reply writes the command's reply from the aggregate's.
func (c *Command) Reply(dst, aggregated []byte) ([]byte, error) {
	if !c.Inline {
		if c.DB == "" {
			return value.Append(dst, "result", str(c.Coll)), nil
		}
		return value.Append(dst, "result", doc(f("db", str(c.DB)), f("collection", str(c.Coll)))), nil
	}
	cursor := value.Lookup(aggregated, "cursor").Doc()
	if value.Lookup(cursor, "id").Int64() != 0 {
		return dst, mongoerr.New(mongoerr.BSONObjectTooLarge, "the inline result of the mapReduce command is larger than a document may be")
	}
	return value.Append(dst, "results", value.Lookup(cursor, "firstBatch")), nil
}
