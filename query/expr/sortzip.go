package expr

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		&operator{name: "$sortArray", parse: parseSortArray, eval: evalSortArray, show: showSortArray,
			fields: []field{{"input", 2942502}, {"sortBy", 2942503}},
			words: wording{object: 2942500, unknown: 2942501, onObject: "$sortArray requires an object as an argument, found: %[2]s",
				onUnknown: "$sortArray found an unknown argument: %[2]s", onMiss: "$sortArray requires '%[2]s' to be specified"}},
		&operator{name: "$zip", parse: parseZip, eval: evalZip, show: showZip},
	)
}

// sortOrder is a parsed sortBy: by whole values if paths is empty.
type sortOrder struct {
	paths [][]string
	desc  []bool
	raw   value.Value
}

func parseSortArray(op *operator, arg value.Value, s *Scope) (node, error) {
	vals, err := op.readFields(arg)
	if err != nil {
		return nil, err
	}
	input, err := parseValue(vals[0], s)
	if err != nil {
		return nil, err
	}
	order, err := parseSortBy(vals[1])
	if err != nil {
		return nil, err
	}
	return &call{op: op, args: []node{input}, state: order}, nil
}

func parseSortBy(v value.Value) (*sortOrder, error) {
	o := &sortOrder{raw: v.Clone()}
	if v.T != value.Document {
		if !v.T.Numeric() {
			return nil, mongoerr.New(2942507, "The $sort element value must be either 1 or -1")
		}
		d, ok := direction(v)
		if !ok {
			return nil, mongoerr.New(2942506, "The $sort element value must be either 1 or -1")
		}
		o.desc = []bool{d}
		return o, nil
	}
	if value.Count(v.Doc()) == 0 {
		return nil, mongoerr.New(2942505, "The $sort pattern is empty when it should be a set of fields.")
	}
	for key, e := range value.Elements(v.Doc()) {
		d, ok := direction(e)
		if !ok {
			return nil, mongoerr.New(2942505, "The $sort element value must be either 1 or -1")
		}
		if key == "" {
			return nil, mongoerr.New(2942505, "The $sort field cannot be empty")
		}
		o.paths = append(o.paths, strings.Split(key, "."))
		o.desc = append(o.desc, d)
	}
	return o, nil
}

func direction(v value.Value) (desc, ok bool) {
	i, ok := v.AsInt64()
	return i < 0, ok && (i == 1 || i == -1)
}

func evalSortArray(f *Frame, c *call) (value.Value, error) {
	v, err := c.args[0].eval(f)
	if err != nil {
		return v, err
	}
	if v.IsNullish() {
		return null, nil
	}
	if v.T != value.Array {
		return v, mongoerr.Newf(2942504, "The input argument to $sortArray must be an array, but was of type: %s", v.T.Name())
	}
	sorted, err := c.state.(*sortOrder).sort(f, value.Values(v.Doc()))
	if err != nil {
		return v, err
	}
	return f.arrayOf(sorted)
}

func (f *Frame) arrayOf(vs []value.Value) (value.Value, error) {
	b := f.beginArray()
	for _, v := range vs {
		b.add(v)
		if err := f.Check(); err != nil {
			return b.abandon(err)
		}
	}
	return b.finish(), nil
}

// sort orders values stably.
func (o *sortOrder) sort(f *Frame, vs []value.Value) ([]value.Value, error) {
	coll := f.env.Collator
	if len(o.paths) == 0 {
		return vs, value.SortStable(vs, &f.pace, func(a, b value.Value) int {
			if o.desc[0] {
				a, b = b, a
			}
			return value.CompareCollated(a, b, coll)
		})
	}
	n := len(o.paths)
	keys := make([]value.Value, 0, len(vs)*n)
	idx := make([]int, len(vs))
	for i, v := range vs {
		idx[i] = i
		for _, p := range o.paths {
			keys = append(keys, plainPath(v, p))
		}
		if err := f.Check(); err != nil {
			return nil, err
		}
	}
	err := value.SortStable(idx, &f.pace, func(i, j int) int {
		a, b := keys[i*n:], keys[j*n:]
		for k := range n {
			if c := value.CompareCollated(a[k], b[k], coll); c != 0 {
				if o.desc[k] {
					return -c
				}
				return c
			}
		}
		return 0
	})
	out := make([]value.Value, len(vs))
	for i, at := range idx {
		out[i] = vs[at]
	}
	return out, err
}

// plainPath follows a path through documents and, by index, arrays; null if it leads nowhere.
func plainPath(v value.Value, parts []string) value.Value {
	for _, p := range parts {
		if v.T != value.Document && v.T != value.Array {
			return null
		}
		v = value.Lookup(v.Doc(), p)
	}
	if v.T == value.Missing {
		return null
	}
	return v
}

func showSortArray(c *call) value.Value {
	return value.NewDocument(value.Doc(value.F("$sortArray", value.NewDocument(value.Doc(
		value.F("input", c.args[0].serialize()), value.F("sortBy", c.state.(*sortOrder).raw))))))
}

// zipState has the number of operands that are inputs (the rest are defaults), and useLongestLength.
type zipState struct {
	inputs  int
	longest bool
}

func parseZip(op *operator, arg value.Value, s *Scope) (node, error) {
	if arg.T != value.Document {
		return nil, mongoerr.Newf(34460, "$zip only supports an object as an argument, found %s", arg.T.Name())
	}
	c := &call{op: op}
	st := &zipState{}
	c.state = st
	var defaults []node
	for key, v := range value.Elements(arg.Doc()) {
		switch key {
		case "inputs", "defaults":
			if v.T != value.Array {
				code := mongoerr.Code(34461)
				if key == "defaults" {
					code = 34462
				}
				return nil, mongoerr.Newf(code, "%s must be an array of expressions, found %s", key, v.T.Name())
			}
			for _, e := range value.Values(v.Doc()) {
				n, err := parseValue(e, s)
				if err != nil {
					return nil, err
				}
				if key == "inputs" {
					c.args = append(c.args, n)
				} else {
					defaults = append(defaults, n)
				}
			}
		case "useLongestLength":
			if v.T != value.Boolean {
				return nil, mongoerr.Newf(34463, "useLongestLength must be a bool, found %s", v.T.Name())
			}
			st.longest = v.Bool()
		default:
			return nil, mongoerr.Newf(34464, "$zip found an unknown argument: %s", key)
		}
	}
	if st.inputs = len(c.args); st.inputs == 0 {
		return nil, mongoerr.New(34465, "$zip requires at least one input array")
	}
	if len(defaults) > 0 && !st.longest {
		return nil, mongoerr.New(34466, "cannot specify defaults unless useLongestLength is true")
	}
	if len(defaults) > 0 && len(defaults) != st.inputs {
		return nil, mongoerr.New(34467, "defaults and inputs must have the same length")
	}
	c.args = append(c.args, defaults...)
	return c, nil
}

func evalZip(f *Frame, c *call) (value.Value, error) {
	st := c.state.(*zipState)
	inputs := make([]value.Iter, st.inputs)
	rows, longest := -1, 0
	for i := range inputs {
		v, err := c.args[i].eval(f)
		if err != nil {
			return v, err
		}
		if v.IsNullish() {
			return null, nil
		}
		if v.T != value.Array {
			return v, mongoerr.Newf(34468, "$zip found a non-array expression in input: %s", Show(v))
		}
		inputs[i] = value.Walk(v.Doc())
		n := value.Count(v.Doc())
		longest = max(longest, n)
		if rows < 0 || n < rows {
			rows = n
		}
	}
	if st.longest {
		rows = longest
	}
	defaults := make([]value.Value, st.inputs)
	for i := st.inputs; i < len(c.args); i++ {
		v, err := c.args[i].eval(f)
		if err != nil {
			return v, err
		}
		defaults[i-st.inputs] = v
	}
	b := f.beginArray()
	for range rows {
		row := f.beginArray()
		for i := range inputs {
			_, v, ok := inputs[i].Next()
			if !ok {
				v = defaults[i]
			}
			row.add(v)
		}
		b.add(row.finish())
		if err := b.added("$zip"); err != nil {
			return b.abandon(err)
		}
	}
	return b.finish(), nil
}

func showZip(c *call) value.Value {
	st := c.state.(*zipState)
	fields := []value.Field{value.F("inputs", (&array{elems: c.args[:st.inputs]}).serialize())}
	if len(c.args) > st.inputs {
		fields = append(fields, value.F("defaults", (&array{elems: c.args[st.inputs:]}).serialize()))
	}
	fields = append(fields, value.F("useLongestLength", value.NewBool(st.longest)))
	return value.NewDocument(value.Doc(value.F("$zip", value.NewDocument(value.Doc(fields...)))))
}
