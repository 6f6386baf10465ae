package jsonschema

import (
	"math/big"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
)

// Schema is a compiled schema.
type Schema struct {
	raw []byte

	types       *value.TypeSet
	typeKeyword string // "bsonType" or "type"
	typeArg     value.Value
	enum        []value.Value
	encrypted   bool

	number  numberRules
	text    textRules
	array   arrayRules
	object  objectRules
	allOf   []*Schema
	anyOf   []*Schema
	oneOf   []*Schema
	not     *Schema
	hasNums bool
}

type numberRules struct {
	minimum, maximum value.Value // Missing: none
	exclusiveMin     bool
	exclusiveMax     bool
	multipleOf       value.Value
	multipleC        *big.Int // multipleOf as coefficient and exponent
	multipleE        int
}

type textRules struct {
	min, max int64 // -1: none
	pattern  *regex.Regexp
}

type arrayRules struct {
	min, max      int64
	unique        bool
	items         *Schema   // of every element
	tuple         []*Schema // of the first elements
	isTuple       bool
	additional    *Schema // of elements after the tuple
	noAdditional  bool
	hasAdditional bool
}

type objectRules struct {
	min, max      int64
	required      []string
	properties    []property
	byName        map[string]*Schema
	patterns      []pattern
	additional    *Schema
	noAdditional  bool
	hasAdditional bool
	dependencies  []dependency
}

type property struct {
	name   string
	schema *Schema
}

type pattern struct {
	re     *regex.Regexp
	schema *Schema
}

// dependency requires, if a field is present, other fields, or that the whole object satisfies a schema.
type dependency struct {
	name   string
	fields []string
	schema *Schema
}

// Document returns the schema as written.
func (s *Schema) Document() []byte { return s.raw }

// watch checks whether a validation has to stop, and keeps the error.
type watch struct {
	value.Pace
	err error
}

// Match reports whether a document satisfies the schema. The error is that of an operation that has to stop.
func (s *Schema) Match(doc []byte, work value.Work) (bool, error) {
	w := &watch{Pace: value.Pace{Work: work}}
	ok := s.check(w, value.NewDocument(doc))
	return ok && w.err == nil, w.err
}

func (s *Schema) check(w *watch, v value.Value) bool {
	if w.err == nil {
		w.err = w.Check()
	}
	switch {
	case w.err != nil:
		return false
	case s.types != nil && !s.types.Has(v.T):
		return false
	case s.encrypted && !(v.T == value.Binary && v.Subtype() == 6):
		return false
	case s.enum != nil && !contains(s.enum, v):
		return false
	}
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		if s.hasNums && !s.number.check(w, v) {
			return false
		}
	case value.String:
		if !s.text.check(w, v.Bytes()) {
			return false
		}
	case value.Array:
		if !s.array.check(w, v.Doc()) {
			return false
		}
	case value.Document:
		if !s.object.check(w, v) {
			return false
		}
	}
	return s.combinations(w, v)
}

func (s *Schema) combinations(w *watch, v value.Value) bool {
	for _, c := range s.allOf {
		if !c.check(w, v) {
			return false
		}
	}
	if s.anyOf != nil && count(w, s.anyOf, v, 1) == 0 {
		return false
	}
	if s.oneOf != nil && count(w, s.oneOf, v, 2) != 1 {
		return false
	}
	return s.not == nil || !s.not.check(w, v)
}

// count returns how many of the schemas v satisfies; it stops at limit.
func count(w *watch, schemas []*Schema, v value.Value, limit int) (n int) {
	for _, c := range schemas {
		if c.check(w, v) {
			if n++; n == limit {
				break
			}
		}
	}
	return n
}

func contains(list []value.Value, v value.Value) bool {
	for _, e := range list {
		if equalUnordered(e, v) {
			return true
		}
	}
	return false
}

func (r *numberRules) check(w *watch, v value.Value) bool {
	return r.minimumOK(v) && r.maximumOK(v) && r.multipleOK(v)
}

func (r *numberRules) minimumOK(v value.Value) bool {
	if r.minimum.T == value.Missing {
		return true
	}
	c, ok := compareNumbers(v, r.minimum)
	return ok && (c > 0 || c == 0 && !r.exclusiveMin)
}

func (r *numberRules) maximumOK(v value.Value) bool {
	if r.maximum.T == value.Missing {
		return true
	}
	c, ok := compareNumbers(v, r.maximum)
	return ok && (c < 0 || c == 0 && !r.exclusiveMax)
}

// compareNumbers orders numbers; NaN is comparable only with NaN.
func compareNumbers(a, b value.Value) (int, bool) {
	if a.IsNaN() != b.IsNaN() {
		return 0, false
	}
	return value.Compare(a, b), true
}

func (r *numberRules) multipleOK(v value.Value) bool {
	if r.multipleC == nil {
		return true
	}
	c, e, ok := decimalParts(v)
	if !ok {
		return false
	}
	m := r.multipleC
	switch {
	case c.Sign() == 0:
		return true
	case e-r.multipleE > 400 || r.multipleE-e > 400:
		return false // magnitudes too far apart for a remainder of 34 digits to be exact
	case e > r.multipleE:
		c = new(big.Int).Mul(c, pow10(e-r.multipleE))
	case e < r.multipleE:
		m = new(big.Int).Mul(m, pow10(r.multipleE-e))
	}
	return new(big.Int).Rem(c, m).Sign() == 0
}

func (r *textRules) check(w *watch, s []byte) bool {
	if r.min >= 0 || r.max >= 0 {
		n := codePoints(s)
		if r.min >= 0 && n < r.min || r.max >= 0 && n > r.max {
			return false
		}
	}
	return r.patternOK(w, s)
}

func (r *textRules) patternOK(w *watch, s []byte) bool {
	if r.pattern == nil {
		return true
	}
	return w.matches(r.pattern, s)
}

// matches runs a pattern. One that exceeds its limits does not match.
func (w *watch) matches(re *regex.Regexp, s []byte) bool {
	ok, err := re.Match(s, w.Work)
	if err != nil && w.err == nil && w.Work != nil {
		w.err = w.Work.Check()
	}
	return ok && err == nil
}

func (r *arrayRules) check(w *watch, arr []byte) bool {
	var n int64
	for it := value.Walk(arr); ; n++ {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		if s := r.itemSchema(int(n)); s != nil && !s.check(w, e) {
			return false
		}
		if r.isTuple && r.noAdditional && n >= int64(len(r.tuple)) {
			return false
		}
	}
	if r.min >= 0 && n < r.min || r.max >= 0 && n > r.max {
		return false
	}
	return !r.unique || distinct(w, arr)
}

// itemSchema returns the schema for the element at an index; nil if there is none.
func (r *arrayRules) itemSchema(i int) *Schema {
	switch {
	case !r.isTuple:
		return r.items
	case i < len(r.tuple):
		return r.tuple[i]
	}
	return r.additional
}

func (r *objectRules) check(w *watch, v value.Value) bool {
	doc := v.Doc()
	for _, name := range r.required {
		if value.Lookup(doc, name).T == value.Missing {
			return false
		}
	}
	if !r.fieldsOK(w, doc) {
		return false
	}
	for i := range r.dependencies {
		if !r.dependencies[i].check(w, v) {
			return false
		}
	}
	return true
}

// fieldsOK walks the document once for properties, patterns, additionalProperties and the number of fields.
func (r *objectRules) fieldsOK(w *watch, doc []byte) bool {
	if r.byName == nil && r.patterns == nil && !r.hasAdditional && r.min < 0 && r.max < 0 {
		return true
	}
	var n int64
	for it := value.Walk(doc); ; n++ {
		key, v, ok := it.Next()
		if !ok {
			break
		}
		s, known := r.byName[string(key)]
		if known && !s.check(w, v) {
			return false
		}
		for _, p := range r.patterns {
			if w.matches(p.re, key) {
				known = true
				if !p.schema.check(w, v) {
					return false
				}
			}
		}
		if !known && (r.noAdditional || r.additional != nil && !r.additional.check(w, v)) {
			return false
		}
	}
	return (r.min < 0 || n >= r.min) && (r.max < 0 || n <= r.max)
}

func (d *dependency) check(w *watch, v value.Value) bool {
	if value.Lookup(v.Doc(), d.name).T == value.Missing {
		return true
	}
	if d.schema != nil {
		return d.schema.check(w, v)
	}
	for _, f := range d.fields {
		if value.Lookup(v.Doc(), f).T == value.Missing {
			return false
		}
	}
	return true
}
