package match

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// operator parses one operator on a path; it may return nil if it adds no predicate.
type operator func(p *parser, path, name string, v value.Value, all []byte) (*Node, error)

// operators are the operators on fields, by name.
var operators map[string]operator

func init() {
	operators = map[string]operator{
		"$eq": compareOp(Eq), "$lt": compareOp(Lt), "$lte": compareOp(Lte), "$gt": compareOp(Gt), "$gte": compareOp(Gte),
		"$ne": parseNe, "$in": parseIn, "$nin": parseIn,
		"$not": parseNot, "$exists": parseExists, "$type": parseType, "$size": parseSize, "$mod": parseMod,
		"$regex": parseRegex, "$options": parseOptions,
		"$all": parseAll, "$elemMatch": parseElemMatch,
		"$bitsAllSet": bitsOp(BitsAllSet), "$bitsAllClear": bitsOp(BitsAllClear),
		"$bitsAnySet": bitsOp(BitsAnySet), "$bitsAnyClear": bitsOp(BitsAnyClear),
		"$geoWithin": parseGeo, "$geoIntersects": parseGeo, "$within": parseGeo,
		"$near": misplacedNear, "$nearSphere": misplacedNear, "$geoNear": misplacedNear, "$maxDistance": skipBound, "$minDistance": skipBound,
	}
}

// topLevelOperators are used in place of a field name; see topLevel.
var topLevelOperators = []string{"$and", "$or", "$nor", "$comment", "$expr", "$where", "$text", "$jsonSchema", "$alwaysTrue", "$alwaysFalse", "$sampleRate"}

// Operators lists the operators of filters.
func Operators() []string { return append(slices.Sorted(maps.Keys(operators)), topLevelOperators...) }

// operators parses {path: {$op: …, …}}, adding a node for each operator.
func (p *parser) operators(and *Node, path string, doc []byte) error {
	if isNear(firstKey(value.NewDocument(doc))) {
		n, err := p.parseNear(path, doc)
		if err == nil {
			and.Children = append(and.Children, n)
		}
		return err
	}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return nil
		}
		op, known := operators[string(k)]
		if !known {
			return badValue("unknown operator: %s", k)
		}
		n, err := op(p, path, string(k), v, doc)
		if err != nil {
			return err
		}
		if n != nil {
			n.op, n.written = string(k), v
			and.Children = append(and.Children, n)
		}
	}
}

// leaf starts a predicate on a path. The operators of an $elemMatch on values have no path, not even the empty one,
// which names the field "".
func (p *parser) leaf(k Kind, path string) *Node {
	if p.bare {
		return &Node{Kind: k}
	}
	n := &Node{Kind: k, Path: path}
	n.parts = appendParts(n.one[:0], path)
	return n
}

// sibling starts a predicate on the same path as n.
func (n *Node) sibling(k Kind) *Node {
	return &Node{Kind: k, Path: n.Path, components: components{parts: n.parts}}
}

func not(n *Node) *Node { return &Node{Kind: Not, Children: []*Node{n}} }

func compareOp(k Kind) operator {
	return func(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
		return p.comparison(k, path, v)
	}
}

func (p *parser) comparison(k Kind, path string, v value.Value) (*Node, error) {
	switch {
	case v.T == value.Undefined:
		return nil, badValue("cannot compare to undefined")
	case v.T == value.Regex && k != Eq:
		return nil, badValue("Can't have RegEx as arg to predicate over field '%s'.", path)
	}
	n := p.leaf(k, path)
	n.Value = v
	return n, nil
}

func parseNe(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T == value.Regex {
		return nil, badValue("Can't have regex as arg to $ne.")
	}
	n, err := p.comparison(Eq, path, v)
	if err != nil {
		return nil, err
	}
	return not(n), nil
}

func parseIn(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T != value.Array {
		return nil, badValue("%s needs an array", name)
	}
	n, pace := p.leaf(In, path), p.pace()
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		switch {
		case isOperatorDoc(e):
			return nil, badValue("cannot nest $ under %s", name)
		case e.T == value.Regex:
			pattern, options := e.Regex()
			re, err := compileRegex(pattern, options)
			if err != nil {
				return nil, err
			}
			n.Regexes = append(n.Regexes, re)
			if err := pace.Now(); err != nil {
				return nil, err
			}
		case e.T == value.Undefined:
			return nil, badValue("InMatchExpression equality cannot be undefined")
		default:
			n.Values = append(n.Values, e)
		}
	}
	if err := n.prepareIn(p.o.Collator, pace); err != nil {
		return nil, err
	}
	if name == "$nin" {
		return not(n), nil
	}
	return n, nil
}

// prepareIn sorts the operands, drops duplicates, and notes whether null is among them.
func (n *Node) prepareIn(c value.Collator, pace *value.Pace) error {
	err := value.SortStable(n.Values, pace, func(a, b value.Value) int { return value.CompareCollated(a, b, c) })
	if err != nil {
		return err
	}
	out := n.Values[:0]
	for i, v := range n.Values {
		if i > 0 && value.CompareCollated(v, out[len(out)-1], c) == 0 {
			continue
		}
		out = append(out, v)
		n.hasNil = n.hasNil || v.T == value.Null
	}
	n.Values = out
	return nil
}

func parseNot(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T == value.Regex {
		n, err := p.regexLiteral(path, v)
		if err != nil {
			return nil, err
		}
		return not(n), nil
	}
	if v.T != value.Document {
		return nil, badValue("$not needs a regex or a document")
	}
	if value.Count(v.Doc()) == 0 {
		return nil, badValue("$not cannot be empty")
	}
	if p.depth++; p.depth > maxDepth {
		return nil, badValue("exceeded maximum query tree depth of %d at %s", maxDepth, path)
	}
	defer func() { p.depth-- }()
	and := &Node{Kind: And}
	if err := p.operators(and, path, v.Doc()); err != nil {
		return nil, err
	}
	return not(and), nil
}

func parseExists(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T == value.Undefined {
		return nil, badValue("Cannot use undefined as argument to $exists")
	}
	n := p.leaf(Exists, path)
	if v.Truthy() {
		return n, nil
	}
	return not(n), nil
}

func parseType(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	set, err := parseTypeSet(path, v)
	if err != nil {
		return nil, err
	}
	n := p.leaf(TypeIs, path)
	n.Types = set
	return n, nil
}

func parseTypeSet(path string, v value.Value) (set value.TypeSet, err error) {
	if v.T != value.Array {
		return set, addType(&set, v)
	}
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		if err := addType(&set, e); err != nil {
			return set, err
		}
	}
	if set.Empty() {
		return set, mongoerr.Newf(mongoerr.FailedToParse, "%s must match at least one type", path)
	}
	return set, nil
}

func addType(set *value.TypeSet, v value.Value) error {
	switch {
	case v.T == value.String:
		if v.Str() == "number" {
			set.AddNumber()
			return nil
		}
		t, ok := value.TypeByName(v.Str())
		if !ok {
			return badValue("Unknown type name alias: %s", v.Str())
		}
		set.Add(t)
	case v.T.Numeric():
		i, ok := v.AsInt64()
		t, known := value.TypeByNumber(i)
		if !ok || !known {
			return badValue("Invalid numerical type code: %s", showNumber(v))
		}
		set.Add(t)
	default:
		return mongoerr.New(mongoerr.TypeMismatch, "type must be represented as a number or a string")
	}
	return nil
}

func showNumber(v value.Value) string {
	if v.T == value.Decimal128 {
		return v.DecimalString()
	}
	if i, ok := v.AsInt64(); ok {
		return fmt.Sprint(i)
	}
	return fmt.Sprint(v.AsFloat64())
}

func parseSize(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if !v.T.Numeric() {
		return nil, badValue("Failed to parse $size. Expected a number in: $size: %s", value.Show(v))
	}
	size, ok := v.AsInt64()
	switch {
	case !ok:
		return nil, badValue("Failed to parse $size. Expected an integer: $size: %s", value.Show(v))
	case size < 0:
		return nil, badValue("Failed to parse $size. Expected a non-negative number in: $size: %s", value.Show(v))
	case size > math.MaxInt32:
		return nil, badValue("Failed to parse $size. Cannot represent as a 32-bit integer: $size: %s", value.Show(v))
	}
	n := p.leaf(Size, path)
	n.Num = size
	return n, nil
}

func parseMod(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T != value.Array {
		return nil, badValue("malformed mod, needs to be an array")
	}
	args := value.Values(v.Doc())
	switch {
	case len(args) < 2:
		return nil, badValue("malformed mod, not enough elements")
	case len(args) > 2:
		return nil, badValue("malformed mod, too many elements")
	case !args[0].T.Numeric():
		return nil, badValue("malformed mod, divisor not a number")
	case !args[1].T.Numeric():
		return nil, badValue("malformed mod, remainder not a number")
	}
	n := p.leaf(Mod, path)
	var err error
	if n.Num, err = truncated(args[0], "divisor"); err != nil {
		return nil, err
	}
	if n.Rem, err = truncated(args[1], "remainder"); err != nil {
		return nil, err
	}
	if n.Num == 0 {
		return nil, badValue("divisor cannot be 0")
	}
	return n, nil
}

// truncated truncates an argument of $mod to an integer.
func truncated(v value.Value, what string) (int64, error) {
	i, ok := v.Truncate()
	if ok {
		return i, nil
	}
	reason := "Out of bounds coercing to integral value"
	if f := v.AsFloat64(); math.IsNaN(f) || v.IsInfinite() {
		reason = "Unable to coerce NaN/Inf to integral type"
	}
	return 0, badValue("malformed mod, %s value is invalid :: caused by :: %s", what, reason)
}

func compileRegex(pattern, options string) (*regex.Regexp, error) {
	re, err := regex.Compile(pattern, options)
	if err == nil {
		return re, nil
	}
	var flag *regex.OptionError
	if errors.As(err, &flag) {
		return nil, mongoerr.New(51108, err.Error())
	}
	return nil, mongoerr.New(51091, err.Error())
}

func (p *parser) regexNode(path, pattern, options string) (*Node, error) {
	re, err := compileRegex(pattern, options)
	if err != nil {
		return nil, err
	}
	n := p.leaf(RegexMatch, path)
	n.Regexes = []*regex.Regexp{re}
	return n, nil
}

func (p *parser) regexLiteral(path string, v value.Value) (*Node, error) {
	pattern, options := v.Regex()
	return p.regexNode(path, pattern, options)
}

// parseRegex reads $regex together with the $options beside it, whichever comes first.
func parseRegex(p *parser, path, name string, v value.Value, all []byte) (*Node, error) {
	var pattern, options string
	switch v.T {
	case value.String:
		if pattern = v.Str(); strings.IndexByte(pattern, 0) >= 0 {
			return nil, badValue("Regular expression cannot contain an embedded null byte")
		}
	case value.Regex:
		pattern, options = v.Regex()
	default:
		return nil, badValue("$regex has to be a string")
	}
	before := true
	for it := value.Walk(all); ; {
		k, o, ok := it.Next()
		if !ok {
			break
		}
		if string(k) == "$regex" {
			before = false
		}
		if string(k) != "$options" {
			continue
		}
		if o.T != value.String {
			return nil, badValue("$options has to be a string")
		}
		if options != "" {
			if before {
				return nil, mongoerr.New(51074, "options set in both $regex and $options")
			}
			return nil, mongoerr.New(51075, "options set in both $regex and $options")
		}
		options = o.Str()
		if i := strings.IndexByte(options, 0); i >= 0 {
			return nil, mongoerr.New(51108, "Regular expression options string cannot contain an embedded null byte")
		}
	}
	return p.regexNode(path, pattern, options)
}

// parseOptions only checks that there is a $regex for it; parseRegex reads the options.
func parseOptions(p *parser, path, name string, v value.Value, all []byte) (*Node, error) {
	if value.Lookup(all, "$regex").IsMissing() {
		return nil, badValue("$options needs a $regex")
	}
	return nil, nil
}

func parseAll(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T != value.Array {
		return nil, badValue("$all needs an array")
	}
	items := value.Values(v.Doc())
	if len(items) == 0 {
		return &Node{Kind: AlwaysFalse}, nil
	}
	if firstKey(items[0]) == "$elemMatch" {
		return p.allElemMatch(path, items)
	}
	and := &Node{Kind: And}
	for _, e := range items {
		if k := firstKey(e); k != "" && k[0] == '$' && isOperatorDoc(e) && operators[k] != nil {
			return nil, badValue("no $ expressions in $all")
		}
		n, err := p.equality(path, e)
		if err != nil {
			return nil, err
		}
		and.Children = append(and.Children, n)
	}
	return and, nil
}

func (p *parser) allElemMatch(path string, items []value.Value) (*Node, error) {
	and := &Node{Kind: And}
	for _, e := range items {
		if firstKey(e) != "$elemMatch" {
			return nil, badValue("$all/$elemMatch has to be consistent")
		}
		if value.Count(e.Doc()) > 1 {
			return nil, badValue("$all/$elemMatch has to be consistent")
		}
		n, err := parseElemMatch(p, path, "$elemMatch", value.Lookup(e.Doc(), "$elemMatch"), nil)
		if err != nil {
			return nil, err
		}
		and.Children = append(and.Children, n)
	}
	return and, nil
}

func firstKey(v value.Value) string {
	if v.T != value.Document {
		return ""
	}
	it := value.Walk(v.Doc())
	k, _, _ := it.Next()
	return string(k)
}

func parseElemMatch(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
	if v.T != value.Document {
		return nil, badValue("$elemMatch needs an Object")
	}
	p.elem++
	p.depth++
	defer func() { p.elem--; p.depth-- }()
	if p.depth > maxDepth {
		return nil, badValue("exceeded maximum query tree depth of %d at %s", maxDepth, path)
	}
	switch first := firstKey(v); {
	case first == "$and", first == "$or", first == "$nor", first == "$where", first == "$jsonSchema", !isOperatorDoc(v):
		sub, err := p.document(v.Doc())
		if err != nil {
			return nil, err
		}
		n := p.leaf(ElemMatchObject, path)
		n.Children = []*Node{sub}
		return n, nil
	}
	n := p.leaf(ElemMatchValue, path)
	return n, p.bareOperators(n, v.Doc())
}

// bareOperators parses operators that test a value itself.
func (p *parser) bareOperators(and *Node, doc []byte) error {
	outer := p.bare
	p.bare = true
	defer func() { p.bare = outer }()
	return p.operators(and, "", doc)
}
