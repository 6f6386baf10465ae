package expr

import (
	"bytes"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	getFieldWords := wording{onUnknown: "$getField found an unknown argument: %[2]s", unknown: 3041701, onMiss: "$getField requires '%[2]s' to be specified"}
	register(
		unary("$objectToArray", objectToArray),
		unary("$arrayToObject", arrayToObject),
		nary("$mergeObjects", 0, -1, evalMergeObjects),
		&operator{name: "$getField", parse: parseGetField, eval: evalGetField, words: getFieldWords, unfolded: true,
			fields: []field{{"field", 3041702}, {"input", 3041703}}},
		&operator{name: "$_internalFindAllValuesAtPath", min: 1, max: 1, parse: parseAllValues, eval: evalAllValues, show: showAllValues},
		&operator{name: "$setField", parse: parseSetField, eval: evalSetField,
			fields: []field{{"field", 4161102}, {"value", 4161103}, {"input", 4161109}}, words: setFieldWords},
		&operator{name: "$unsetField", parse: parseSetField, eval: evalSetField,
			fields: []field{{"field", 4161102}, {"input", 4161109}}, words: setFieldWords},
	)
}

var setFieldWords = wording{object: 4161100, unknown: 4161101, onObject: "%[1]s requires an object as an argument, found: %[2]s",
	onUnknown: "%[1]s found an unknown argument: %[2]s", onMiss: "%[1]s requires '%[2]s' to be specified"}

func objectToArray(f *Frame, v value.Value) (value.Value, error) {
	if v.IsNullish() {
		return null, nil
	}
	if v.T != value.Document {
		return v, mongoerr.Newf(40390, "$objectToArray requires a document input, found: %s", v.T.Name())
	}
	b := f.beginArray()
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return b.finish(), nil
		}
		pair := f.beginDoc()
		pair.set("k", value.NewStringBytes(k))
		pair.set("v", e)
		b.add(pair.finish())
		if err := b.added("$objectToArray"); err != nil {
			return b.abandon(err)
		}
	}
}

// docSet builds a document in which a later field replaces an earlier one with the same name, at its position.
type docSet struct {
	keys [][]byte
	vals []value.Value
	at   map[string]int // for many fields
}

func (d *docSet) set(key []byte, v value.Value) {
	i, ok := d.find(key)
	if ok {
		d.vals[i] = v
		return
	}
	if d.at != nil {
		d.at[string(key)] = len(d.keys)
	}
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
	if d.at == nil && len(d.keys) > 16 {
		d.at = make(map[string]int, 64)
		for i, k := range d.keys {
			d.at[string(k)] = i
		}
	}
}

func (d *docSet) find(key []byte) (int, bool) {
	if d.at != nil {
		i, ok := d.at[string(key)]
		return i, ok
	}
	for i, k := range d.keys {
		if bytes.Equal(k, key) {
			return i, true
		}
	}
	return 0, false
}

func (d *docSet) value(f *Frame) value.Value {
	b := f.beginDoc()
	for i, k := range d.keys {
		b.setBytes(k, d.vals[i])
	}
	return b.finish()
}

// arrayToObject accepts [[k, v], …] or [{k, v}, …]; the first element determines which.
func arrayToObject(f *Frame, v value.Value) (value.Value, error) {
	if v.IsNullish() {
		return null, nil
	}
	if v.T != value.Array {
		return v, mongoerr.Newf(40386, "$arrayToObject requires an array input, found: %s", v.T.Name())
	}
	var d docSet
	form := value.Missing
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return d.value(f), nil
		}
		if form == value.Missing {
			if form = e.T; form != value.Array && form != value.Document {
				return v, mongoerr.Newf(40398, "Unrecognised input type format for $arrayToObject: %s", e.T.Name())
			}
		}
		read := pairOf
		if form == value.Document {
			read = kvOf
		}
		k, val, err := read(e)
		if err != nil {
			return v, err
		}
		d.set(k, val)
		if err := f.Check(); err != nil {
			return v, err
		}
	}
}

func pairOf(e value.Value) (key []byte, v value.Value, err error) {
	if e.T != value.Array {
		return nil, v, mongoerr.Newf(40396, "$arrayToObject requires a consistent input format. Elements must"+
			"all be arrays or all be objects. Array was detected, now found: %s", e.T.Name())
	}
	if n := value.Count(e.Doc()); n != 2 {
		return nil, v, mongoerr.Newf(40397, "$arrayToObject requires an array of size 2 arrays,found array of size: %d", n)
	}
	k, v := element(e.Doc(), 0), element(e.Doc(), 1)
	if k.T != value.String {
		return nil, v, mongoerr.Newf(40395, "$arrayToObject requires an array of key-value pairs, where the key must be of type string. Found key type: %s", k.T.Name())
	}
	if bytes.IndexByte(k.Bytes(), 0) >= 0 {
		return nil, v, mongoerr.New(4940400, "Key field cannot contain an embedded null byte")
	}
	return k.Bytes(), v, nil
}

func kvOf(e value.Value) (key []byte, v value.Value, err error) {
	if e.T != value.Document {
		return nil, v, mongoerr.Newf(40391, "$arrayToObject requires a consistent input format. Elements must"+
			"all be arrays or all be objects. Object was detected, now found: %s", e.T.Name())
	}
	if n := value.Count(e.Doc()); n != 2 {
		return nil, v, mongoerr.Newf(40392, "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:%d", n)
	}
	k, v := value.Lookup(e.Doc(), "k"), value.Lookup(e.Doc(), "v")
	if k.T == value.Missing || v.T == value.Missing {
		return nil, v, mongoerr.Newf(40393, "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both keys from: %s", Show(e))
	}
	if k.T != value.String {
		return nil, v, mongoerr.Newf(40394, "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' must be of type string. Found type: %s", k.T.Name())
	}
	if bytes.IndexByte(k.Bytes(), 0) >= 0 {
		return nil, v, mongoerr.New(4940401, "Key field cannot contain an embedded null byte")
	}
	return k.Bytes(), v, nil
}

func evalMergeObjects(f *Frame, c *call) (value.Value, error) {
	var d docSet
	merge := func(v value.Value) error {
		if v.IsNullish() {
			return nil
		}
		if v.T != value.Document {
			return mongoerr.Newf(40400, "$mergeObjects requires object inputs, but input %s is of type %s", Show(v), v.T.Name())
		}
		for it := value.Walk(v.Doc()); ; {
			k, e, ok := it.Next()
			if !ok {
				return nil
			}
			d.set(k, e)
			if err := f.Check(); err != nil {
				return err
			}
		}
	}
	for _, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return v, err
		}
		if len(c.args) == 1 && v.T == value.Array { // a single operand that is an array has the objects
			for it := value.Walk(v.Doc()); ; {
				_, e, ok := it.Next()
				if !ok {
					break
				}
				if err := merge(e); err != nil {
					return v, err
				}
			}
			continue
		}
		if err := merge(v); err != nil {
			return v, err
		}
	}
	return d.value(f), nil
}

// parseGetField also accepts the field's name alone: then the input is the current document.
func parseGetField(op *operator, arg value.Value, s *Scope) (node, error) {
	if arg.T == value.Document && !isExpressionObject(arg) {
		n, err := parseNamed(op, arg, s)
		if err != nil {
			return nil, err
		}
		return n, nil
	}
	field, err := parseValue(arg, s)
	if err != nil {
		return nil, err
	}
	input, err := pathFrom("CURRENT", nil, s)
	if err != nil {
		return nil, err
	}
	return &call{op: op, args: []node{field, input}}, nil
}

func isExpressionObject(v value.Value) bool {
	it := value.Walk(v.Doc())
	k, _, ok := it.Next()
	return ok && len(k) > 0 && k[0] == '$'
}

func evalGetField(f *Frame, c *call) (value.Value, error) {
	name, err := c.args[0].eval(f)
	if err != nil {
		return name, err
	}
	if name.T != value.String {
		return name, mongoerr.Newf(3041704, "$getField requires 'field' to evaluate to type String, but got %s", name.T.Name())
	}
	in, err := c.args[1].eval(f)
	switch {
	case err != nil:
		return in, err
	case in.T == value.Document:
		return lookupBytes(in.Doc(), name.Bytes()), nil
	case in.IsNullish() && in.T != value.Missing:
		return null, nil
	}
	return value.Value{}, nil
}

func lookupBytes(doc, name []byte) value.Value {
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return value.Value{}
		}
		if bytes.Equal(k, name) {
			return v
		}
	}
}

// parseSetField reads $setField and $unsetField; the field's name must be a constant.
func parseSetField(op *operator, arg value.Value, s *Scope) (node, error) {
	n, err := parseNamed(op, arg, s)
	if err != nil {
		return nil, err
	}
	c := n.(*call)
	if lit, ok := c.args[0].(*object); ok && len(lit.keys) == 0 {
		c.args[0] = &constant{v: value.NewDocument(value.Doc())}
	}
	switch k := c.args[0].(type) {
	case *constant:
		if k.v.T != value.String {
			return nil, mongoerr.Newf(4161107, "%s requires 'field' to evaluate to type String, but got %s", op.name, k.v.T.Name())
		}
		if bytes.IndexByte(k.v.Bytes(), 0) >= 0 {
			return nil, mongoerr.Newf(9534700, "%s requires 'field' to not contain an embedded null byte", op.name)
		}
	case *fieldPath:
		return nil, mongoerr.Newf(4161108, "'%s' is a field path reference which is not allowed in this context. Did you mean {$literal: '%s'}?",
			k.serialize().Str(), k.serialize().Str())
	default:
		return nil, mongoerr.Newf(4161106, "%s requires 'field' to evaluate to a constant, but got a non-constant argument", op.name)
	}
	return c, nil
}

func evalSetField(f *Frame, c *call) (value.Value, error) {
	name, err := c.args[0].eval(f)
	if err != nil {
		return name, err
	}
	in, err := c.args[len(c.args)-1].eval(f)
	if err != nil {
		return in, err
	}
	var v value.Value // what $unsetField sets
	if len(c.args) > 2 {
		if v, err = c.args[1].eval(f); err != nil {
			return v, err
		}
	}
	if in.IsNullish() {
		return null, nil
	}
	if in.T != value.Document {
		return in, mongoerr.Newf(4161105, "%s requires 'input' to evaluate to type Object", c.op.name)
	}
	b := f.beginDoc()
	found := false
	for it := value.Walk(in.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			break
		}
		if bytes.Equal(k, name.Bytes()) {
			found, e = true, v
		}
		b.setBytes(k, e)
	}
	if !found {
		b.setBytes(name.Bytes(), v)
	}
	return b.finish(), nil
}
