package jsonschema

import (
	"github.com/shoaldb/shoal/query/value"
)

// Explain returns why a document does not satisfy the schema, in the form of errInfo.details; nil if it does.
func (s *Schema) Explain(doc []byte) []byte {
	v := value.NewDocument(doc)
	rules := s.explain(v)
	if len(rules) == 0 {
		return nil
	}
	fs := []value.Field{value.F("operatorName", value.NewString("$jsonSchema"))}
	fs = append(fs, s.titles()...)
	return value.Doc(append(fs, value.F("schemaRulesNotSatisfied", list(rules)))...)
}

func (s *Schema) titles() []value.Field {
	return []value.Field{value.F("title", value.Lookup(s.raw, "title")), value.F("description", value.Lookup(s.raw, "description"))}
}

func list(docs [][]byte) value.Value {
	vs := make([]value.Value, len(docs))
	for i, d := range docs {
		vs[i] = value.NewDocument(d)
	}
	return value.NewArray(value.ArrayOf(vs...))
}

func text(s string) value.Value { return value.NewString(s) }

// broken describes one keyword that does not hold.
func (s *Schema) broken(keyword, reason string, more ...value.Field) []byte {
	fs := []value.Field{value.F("operatorName", text(keyword)),
		value.F("specifiedAs", value.NewDocument(value.Doc(value.F(keyword, value.Lookup(s.raw, keyword)))))}
	if reason != "" {
		fs = append(fs, value.F("reason", text(reason)))
	}
	return value.Doc(append(fs, more...)...)
}

// explain lists the keywords of a schema that v does not satisfy, in a fixed order.
func (s *Schema) explain(v value.Value) (out [][]byte) {
	considered := value.F("consideredValue", v)
	if s.types != nil && !s.types.Has(v.T) {
		out = append(out, s.broken(s.typeKeyword, "type did not match", considered, value.F("consideredType", text(v.T.Name()))))
	}
	if s.encrypted && !(v.T == value.Binary && v.Subtype() == 6) {
		out = append(out, s.broken("encrypt", "value was not encrypted", considered))
	}
	if s.enum != nil && !contains(s.enum, v) {
		out = append(out, s.broken("enum", "value was not found in enum", considered))
	}
	switch {
	case v.T.Numeric():
		out = append(out, s.explainNumber(v)...)
	case v.T == value.String:
		out = append(out, s.explainText(v)...)
	case v.T == value.Array:
		out = append(out, s.explainArray(v)...)
	case v.T == value.Document:
		out = append(out, s.explainObject(v)...)
	}
	return append(out, s.explainCombinations(v)...)
}

func (s *Schema) explainNumber(v value.Value) (out [][]byte) {
	considered := value.F("consideredValue", v)
	if !s.number.minimumOK(v) {
		out = append(out, s.brokenBound("minimum", "exclusiveMinimum", s.number.exclusiveMin, considered))
	}
	if !s.number.maximumOK(v) {
		out = append(out, s.brokenBound("maximum", "exclusiveMaximum", s.number.exclusiveMax, considered))
	}
	if !s.number.multipleOK(v) {
		out = append(out, s.broken("multipleOf", "considered value is not a multiple of the specified value", considered))
	}
	return out
}

// brokenBound shows an exclusive bound together with the keyword that makes it exclusive.
func (s *Schema) brokenBound(keyword, exclusive string, isExclusive bool, considered value.Field) []byte {
	if !isExclusive {
		return s.broken(keyword, "comparison failed", considered)
	}
	spec := value.Doc(value.F(keyword, value.Lookup(s.raw, keyword)), value.F(exclusive, value.NewBool(true)))
	return value.Doc(value.F("operatorName", text(keyword)), value.F("specifiedAs", value.NewDocument(spec)), value.F("reason", text("comparison failed")), considered)
}

func (s *Schema) explainText(v value.Value) (out [][]byte) {
	considered := value.F("consideredValue", v)
	n := codePoints(v.Bytes())
	if s.text.min >= 0 && n < s.text.min {
		out = append(out, s.broken("minLength", "specified string length was not satisfied", considered))
	}
	if s.text.max >= 0 && n > s.text.max {
		out = append(out, s.broken("maxLength", "specified string length was not satisfied", considered))
	}
	if !s.text.patternOK(new(watch), v.Bytes()) {
		out = append(out, s.broken("pattern", "regular expression did not match", considered))
	}
	return out
}

func (s *Schema) explainArray(v value.Value) (out [][]byte) {
	considered := value.F("consideredValue", v)
	r := &s.array
	elems := value.Values(v.Doc())
	n := int64(len(elems))
	if r.min >= 0 && n < r.min {
		out = append(out, s.broken("minItems", "array did not match specified length", considered))
	}
	if r.max >= 0 && n > r.max {
		out = append(out, s.broken("maxItems", "array did not match specified length", considered))
	}
	if r.unique && !distinct(new(watch), v.Doc()) {
		out = append(out, s.broken("uniqueItems", "found a duplicate item", considered))
	}
	if r.isTuple && r.noAdditional && len(elems) > len(r.tuple) {
		extra := value.NewArray(value.ArrayOf(elems[len(r.tuple):]...))
		out = append(out, s.broken("additionalItems", "found additional items", value.F("additionalItems", extra)))
	}
	for i, e := range elems {
		sub := r.itemSchema(i)
		if sub == nil || sub.check(new(watch), e) {
			continue
		}
		keyword := "items"
		if r.isTuple && i >= len(r.tuple) {
			keyword = "additionalItems"
		}
		return append(out, value.Doc(value.F("operatorName", text(keyword)), value.F("reason", text("At least one item did not match the sub-schema")),
			value.F("itemIndex", value.NewInt32(int32(i))), value.F("details", list(sub.explain(e)))))
	}
	return out
}

func (s *Schema) explainObject(v value.Value) (out [][]byte) {
	r, doc := &s.object, v.Doc()
	if n := int64(value.Count(doc)); r.min >= 0 && n < r.min {
		out = append(out, s.broken("minProperties", "specified number of properties was not satisfied", value.F("numberOfProperties", value.NewInt64(n))))
	} else if r.max >= 0 && n > r.max {
		out = append(out, s.broken("maxProperties", "specified number of properties was not satisfied", value.F("numberOfProperties", value.NewInt64(n))))
	}
	out = append(out, s.explainProperties(doc)...)
	out = append(out, s.explainPatterns(doc)...)
	if missing := absent(doc, r.required); len(missing) > 0 {
		out = append(out, s.broken("required", "", value.F("missingProperties", value.NewArray(value.ArrayOf(missing...)))))
	}
	return append(out, s.explainDependencies(v)...)
}

func absent(doc []byte, names []string) (out []value.Value) {
	for _, name := range names {
		if value.Lookup(doc, name).T == value.Missing {
			out = append(out, text(name))
		}
	}
	return out
}

func (s *Schema) explainProperties(doc []byte) [][]byte {
	var bad [][]byte
	for _, p := range s.object.properties {
		e := value.Lookup(doc, p.name)
		if e.T == value.Missing || p.schema.check(new(watch), e) {
			continue
		}
		fs := append([]value.Field{value.F("propertyName", text(p.name))}, p.schema.titles()...)
		bad = append(bad, value.Doc(append(fs, value.F("details", list(p.schema.explain(e))))...))
	}
	if bad == nil {
		return nil
	}
	return [][]byte{value.Doc(value.F("operatorName", text("properties")), value.F("propertiesNotSatisfied", list(bad)))}
}

// explainPatterns covers patternProperties and additionalProperties.
func (s *Schema) explainPatterns(doc []byte) (out [][]byte) {
	r := &s.object
	var bad [][]byte
	var extra []value.Value
	for it := value.Walk(doc); ; {
		key, e, ok := it.Next()
		if !ok {
			break
		}
		_, known := r.byName[string(key)]
		for _, p := range r.patterns {
			if ok, _ := p.re.Match(key, nil); !ok {
				continue
			}
			known = true
			if !p.schema.check(new(watch), e) {
				bad = append(bad, value.Doc(value.F("propertyName", text(string(key))), value.F("regexMatched", text(p.re.Pattern)), value.F("details", list(p.schema.explain(e)))))
			}
		}
		if !known && (r.noAdditional || r.additional != nil && !r.additional.check(new(watch), e)) {
			extra = append(extra, text(string(key)))
		}
	}
	if bad != nil {
		out = append(out, value.Doc(value.F("operatorName", text("patternProperties")), value.F("details", list(bad))))
	}
	if extra != nil {
		out = append(out, s.broken("additionalProperties", "", value.F("additionalProperties", value.NewArray(value.ArrayOf(extra...)))))
	}
	return out
}

func (s *Schema) explainDependencies(v value.Value) [][]byte {
	var bad [][]byte
	for i := range s.object.dependencies {
		d := &s.object.dependencies[i]
		if d.check(new(watch), v) {
			continue
		}
		why := value.F("missingProperties", value.NewArray(value.ArrayOf(absent(v.Doc(), d.fields)...)))
		if d.schema != nil {
			why = value.F("details", list(d.schema.explain(v)))
		}
		bad = append(bad, value.Doc(value.F("conditionalProperty", text(d.name)), why))
	}
	if bad == nil {
		return nil
	}
	return [][]byte{value.Doc(value.F("operatorName", text("dependencies")), value.F("failingDependencies", list(bad)))}
}

func (s *Schema) explainCombinations(v value.Value) (out [][]byte) {
	unsatisfied := func(keyword string, schemas []*Schema) {
		var bad [][]byte
		for i, c := range schemas {
			if !c.check(new(watch), v) {
				bad = append(bad, value.Doc(value.F("index", value.NewInt32(int32(i))), value.F("details", list(c.explain(v)))))
			}
		}
		out = append(out, value.Doc(value.F("operatorName", text(keyword)), value.F("schemasNotSatisfied", list(bad))))
	}
	if s.allOf != nil && count(new(watch), s.allOf, v, len(s.allOf)) < len(s.allOf) {
		unsatisfied("allOf", s.allOf)
	}
	if s.anyOf != nil && count(new(watch), s.anyOf, v, 1) == 0 {
		unsatisfied("anyOf", s.anyOf)
	}
	if s.oneOf != nil {
		switch count(new(watch), s.oneOf, v, 2) {
		case 0:
			unsatisfied("oneOf", s.oneOf)
		case 2:
			var idx []value.Value
			for i, c := range s.oneOf {
				if c.check(new(watch), v) {
					idx = append(idx, value.NewInt32(int32(i)))
				}
			}
			out = append(out, value.Doc(value.F("operatorName", text("oneOf")), value.F("reason", text("more than one subschema matched")), value.F("matchingSchemaIndexes", value.NewArray(value.ArrayOf(idx...)))))
		}
	}
	if s.not != nil && s.not.check(new(watch), v) {
		out = append(out, value.Doc(value.F("operatorName", text("not")), value.F("reason", text("child expression matched"))))
	}
	return out
}
