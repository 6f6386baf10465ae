package update

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// compiler builds the tree of one operator update.
type compiler struct {
	root     *node
	paths    []string
	filters  map[string]*arrayFilter
	collator value.Collator
	scope    *expr.Scope
	position bool
}

type arrayFilter struct {
	matcher *match.Matcher
	used    bool
}

// opSpec is a row of the table of update operators.
type opSpec struct {
	parse func(c *compiler, path string, v value.Value) (operator, error)
	flag  opFlags
}

// The table is filled in init because $rename's parser refers back to it through the compiler.
var table map[string]opSpec

func init() {
	table = map[string]opSpec{
		"$set":         {parseSet, creates},
		"$setOnInsert": {parseSet, creates | insertOnly},
		"$unset":       {parseUnset, anyPath},
		"$inc":         {parseInc, creates},
		"$mul":         {parseMul, creates},
		"$min":         {parseMin, creates},
		"$max":         {parseMax, creates},
		"$currentDate": {parseCurrentDate, creates},
		"$bit":         {parseBit, creates},
		"$push":        {parsePush, creates},
		"$addToSet":    {parseAddToSet, creates},
		"$pop":         {parsePop, 0},
		"$pull":        {parsePull, 0},
		"$pullAll":     {parsePullAll, 0},
	}
}

func compileOperators(u value.Value, opts Options) (*Update, error) {
	filters, err := parseArrayFilters(opts)
	if err != nil {
		return nil, err
	}
	c := &compiler{root: &node{}, filters: filters, collator: opts.Collator, scope: opts.Scope}
	for it := value.Walk(u.Doc()); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if err := c.addOperator(string(k), v); err != nil {
			return nil, err
		}
	}
	for _, af := range opts.ArrayFilters {
		if id, _ := filterName(af.Doc()); !filters[id].used {
			return nil, mongoerr.Newf(mongoerr.FailedToParse,
				"The array filter for identifier '%s' was not used in the update %s", id, value.Show(u))
		}
	}
	return &Update{form: operators, root: c.root, paths: c.paths, position: c.position}, nil
}

func (c *compiler) addOperator(name string, v value.Value) error {
	spec, known := table[name]
	if !known && name != "$rename" {
		return mongoerr.Newf(mongoerr.FailedToParse,
			"Unknown modifier: %s. Expected a valid update modifier or pipeline-style update specified as an array", name)
	}
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.FailedToParse,
			"Modifiers operate on fields but we found type %s instead. For example: {$mod: {<field>: ...}} not {%s: %s}",
			v.T.Name(), name, value.Show(v))
	}
	for it := value.Walk(v.Doc()); ; {
		k, arg, ok := it.Next()
		if !ok {
			return nil
		}
		path := string(k)
		var err error
		if name == "$rename" {
			err = c.addRename(path, arg)
		} else {
			err = c.addLeaf(spec, path, arg)
		}
		if err != nil {
			return err
		}
	}
}

func (c *compiler) addLeaf(spec opSpec, path string, arg value.Value) error {
	if err := c.checkPath(path); err != nil {
		return err
	}
	op, err := spec.parse(c, path, arg)
	if err != nil {
		return err
	}
	return c.insert(path, op, spec.flag)
}

// checkPath refuses invalid update paths.
func (c *compiler) checkPath(path string) error {
	if path == "" {
		return mongoerr.New(mongoerr.EmptyFieldName, "An empty update path is not valid.")
	}
	if strings.IndexByte(path, 0) >= 0 {
		return mongoerr.New(9867600, "An update path must not contain null bytes")
	}
	positional, first := 0, true
	for rest, more := path, true; more; first = false {
		var head string
		head, rest, more = strings.Cut(rest, ".")
		if head == "" {
			return mongoerr.Newf(mongoerr.EmptyFieldName,
				"The update path '%s' contains an empty field name, which is not allowed.", path)
		}
		if head[0] != '$' {
			continue
		}
		id, isFilter := filterID(head)
		switch {
		case head == "$" && first:
			return mongoerr.Newf(mongoerr.BadValue,
				"Cannot have positional (i.e. '$') element in the first position in path '%s'", path)
		case isFilter && first:
			return mongoerr.Newf(mongoerr.BadValue,
				"Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '%s'", path)
		case head == "$":
			positional++
			c.position = true
		case isFilter && id != "" && c.filters[id] == nil:
			return mongoerr.Newf(mongoerr.BadValue, "No array filter found for identifier '%s' in path '%s'", id, path)
		}
	}
	if positional > 1 {
		return mongoerr.Newf(mongoerr.BadValue, "Too many positional (i.e. '$') elements found in path '%s'", path)
	}
	return nil
}

// addRename adds two operators to the tree: one that removes the source and one that sets the target.
func (c *compiler) addRename(from string, arg value.Value) error {
	shown := func() string { return from + ": " + value.Show(arg) }
	if arg.T != value.String {
		return mongoerr.Newf(mongoerr.BadValue, "The 'to' field for $rename must be a string: %s", shown())
	}
	to := arg.Str()
	if strings.IndexByte(to, 0) >= 0 {
		return mongoerr.New(9867600, "The 'to' field for $rename cannot contain an embedded null byte")
	}
	for _, p := range []string{from, to} {
		if err := c.checkPath(p); err != nil {
			return err
		}
	}
	switch {
	case from == to:
		return mongoerr.Newf(mongoerr.BadValue, "The source and target field for $rename must differ: %s", shown())
	case strings.HasPrefix(from, to+"."), strings.HasPrefix(to, from+"."):
		return mongoerr.Newf(mongoerr.BadValue,
			"The source and target field for $rename must not be on the same path: %s", shown())
	case isDynamic(from):
		return mongoerr.Newf(mongoerr.BadValue, "The source field for $rename may not be dynamic: %s", from)
	case isDynamic(to):
		return mongoerr.Newf(mongoerr.BadValue, "The destination field for $rename may not be dynamic: %s", to)
	}
	source := &renameSource{path: from}
	if err := c.insert(from, source, anyPath); err != nil {
		return err
	}
	return c.insert(to, &renameTarget{source: source, path: to}, creates)
}

// parseArrayFilters compiles a statement's arrayFilters by their identifiers.
func parseArrayFilters(opts Options) (map[string]*arrayFilter, error) {
	if len(opts.ArrayFilters) == 0 {
		return nil, nil
	}
	out := make(map[string]*arrayFilter, len(opts.ArrayFilters))
	for _, v := range opts.ArrayFilters {
		if v.T != value.Document {
			return nil, mongoerr.Newf(mongoerr.TypeMismatch,
				"BSON field 'update.updates.arrayFilters.0' is the wrong type '%s', expected type 'object'", v.T.Name())
		}
		if err := scanFilter(v.Doc()); err != nil {
			return nil, err
		}
		m, err := match.Compile(v.Doc(), &match.Options{Collator: opts.Collator, Expr: opts.Scope, Deny: match.DenyExpr})
		if err != nil {
			return nil, mongoerr.From(err).Prefix("Error parsing array filter :: caused by :: ")
		}
		id, err := filterName(v.Doc())
		if err != nil {
			return nil, err
		}
		if out[id] != nil {
			return nil, mongoerr.Newf(mongoerr.FailedToParse,
				"Found multiple array filters with the same top-level field name %s", id)
		}
		out[id] = &arrayFilter{matcher: m}
	}
	return out, nil
}

// scanFilter refuses predicates that only the filter of a whole query may have.
func scanFilter(filter []byte) error {
	for k, v := range value.Elements(filter) {
		switch k {
		case "$text", "$where":
			return mongoerr.Newf(mongoerr.BadValue, "Error parsing array filter :: caused by :: %s is not allowed in this context", k)
		case "$near", "$nearSphere", "$geoNear":
			return mongoerr.New(5626500, "Error parsing array filter :: caused by :: $geoNear, $near, and $nearSphere are not allowed in this context")
		case "$and", "$or", "$nor":
			for _, e := range value.Values(v.Doc()) {
				if err := scanFilter(e.Doc()); err != nil {
					return err
				}
			}
		default:
			if v.T == value.Document {
				if err := scanFilter(v.Doc()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// filterName returns the identifier of an array filter: the common first component of all its paths.
func filterName(filter []byte) (string, error) {
	name := ""
	if err := collectName(filter, &name); err != nil {
		return "", err
	}
	if name == "" {
		return "", mongoerr.New(mongoerr.FailedToParse,
			"Cannot use an expression without a top-level field name in arrayFilters")
	}
	if !validIdentifier(name) {
		return "", mongoerr.Newf(mongoerr.BadValue, "Error parsing array filter :: caused by :: The top-level field name must be "+
			"an alphanumeric string beginning with a lowercase letter, found '%s'", name)
	}
	return name, nil
}

func collectName(filter []byte, name *string) error {
	for it := value.Walk(filter); ; {
		k, v, ok := it.Next()
		if !ok {
			return nil
		}
		key := string(k)
		if key == "$and" || key == "$or" || key == "$nor" {
			for _, e := range value.Values(v.Doc()) {
				if err := collectName(e.Doc(), name); err != nil {
					return err
				}
			}
			continue
		}
		if strings.HasPrefix(key, "$") {
			continue
		}
		head, _ := cutDot(key)
		if *name != "" && *name != head {
			return mongoerr.Newf(mongoerr.FailedToParse, "Error parsing array filter :: caused by :: Expected a single "+
				"top-level field name, found '%s' and '%s'", *name, head)
		}
		*name = head
	}
}

func validIdentifier(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		lower, other := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !lower && (i == 0 || !other) {
			return false
		}
	}
	return s != ""
}

// isDynamic reports whether a path has positional components.
func isDynamic(path string) bool {
	for rest, more := path, true; more; {
		var head string
		head, rest, more = strings.Cut(rest, ".")
		if _, filter := filterID(head); filter || head == "$" {
			return true
		}
	}
	return false
}
