package expr

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		&operator{name: "$setEquals", max: -1, eval: evalSetEquals, parse: parseSetEquals},
		commutative(nary("$setIntersection", 0, -1, evalSetIntersection)),
		commutative(nary("$setUnion", 0, -1, evalSetUnion)),
		binary("$setDifference", setDifference),
		binary("$setIsSubset", setIsSubset),
		unary("$anyElementTrue", elementsTrue("$anyElementTrue", 17041, true)),
		unary("$allElementsTrue", elementsTrue("$allElementsTrue", 17040, false)),
	)
}

// set is a set of values under the operation's collation: a list while it is small, hashed when it is larger.
type set struct {
	f     *Frame
	op    string // the operator that builds it, for errors
	vals  []value.Value
	hash  map[string]struct{}
	bytes int // its approximate size
}

// entryBytes is the approximate cost of a set's element in addition to its key.
const entryBytes = 48

const smallSet = 12

func (s *set) has(v value.Value) bool {
	if s.hash == nil {
		for _, e := range s.vals {
			if value.CompareCollated(e, v, s.f.env.Collator) == 0 {
				return true
			}
		}
		return false
	}
	s.f.key = value.AppendGroupKey(s.f.key[:0], v, s.f.env.Collator)
	_, ok := s.hash[string(s.f.key)]
	return ok
}

// add reports whether v was new. It fails if the operation has to stop, or the set becomes too large.
func (s *set) add(v value.Value) (fresh bool, err error) {
	if err := s.f.step(s.op, s.bytes); err != nil {
		return false, err
	}
	if s.has(v) {
		return false, nil
	}
	s.vals = append(s.vals, v)
	switch {
	case s.hash != nil:
		s.hash[string(s.f.key)] = struct{}{}
		s.bytes += len(s.f.key) + entryBytes
	case len(s.vals) > smallSet:
		s.hash = make(map[string]struct{}, 4*smallSet)
		for _, e := range s.vals {
			s.f.key = value.AppendGroupKey(s.f.key[:0], e, s.f.env.Collator)
			s.hash[string(s.f.key)] = struct{}{}
		}
	}
	return true, nil
}

// addAll adds the elements of an array.
func (s *set) addAll(arr []byte) error {
	for it := value.Walk(arr); ; {
		_, v, ok := it.Next()
		if !ok {
			return nil
		}
		if _, err := s.add(v); err != nil {
			return err
		}
	}
}

// holds counts how many of vals the set has; with few, it may stop at the first that it does not have.
func (s *set) holds(vals []value.Value, few bool) (n int, err error) {
	for _, v := range vals {
		if err := s.f.Check(); err != nil {
			return n, err
		}
		if s.has(v) {
			n++
		} else if few {
			return n, nil
		}
	}
	return n, nil
}

func (f *Frame) setOf(op string, arr []byte) (*set, error) {
	s := &set{f: f, op: op}
	return s, s.addAll(arr)
}

func parseSetEquals(op *operator, arg value.Value, s *Scope) (node, error) {
	n := 1
	if arg.T == value.Array {
		n = value.Count(arg.Doc())
	}
	if n < 2 {
		return nil, mongoerr.Newf(17045, "$setEquals needs at least two arguments had: %d", n)
	}
	return parsePositional(op, arg, s)
}

func evalSetEquals(f *Frame, c *call) (value.Value, error) {
	var first *set
	equal := true
	for i, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return v, err
		}
		if v.T != value.Array {
			if _, ok := n.(*constant); ok {
				return v, mongoerr.Newf(5887502, "All operands of $setEquals must be arrays. %d-th argument is of type: %s", i+1, v.T.Name())
			}
			return v, mongoerr.Newf(17044, "All operands of $setEquals must be arrays. One argument is of type: %s", v.T.Name())
		}
		s, err := f.setOf("$setEquals", v.Doc())
		if err != nil {
			return v, err
		}
		switch {
		case first == nil:
			first = s
		case len(first.vals) != len(s.vals):
			equal = false
		case equal:
			n, err := first.holds(s.vals, true)
			if err != nil {
				return v, err
			}
			equal = n == len(s.vals)
		}
	}
	return value.NewBool(equal), nil
}

func evalSetIntersection(f *Frame, c *call) (value.Value, error) {
	var common *set
	for i, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return v, err
		}
		if v.IsNullish() {
			return null, nil
		}
		if v.T != value.Array {
			return v, mongoerr.Newf(17047, "All operands of $setIntersection must be arrays. One argument is of type: %s", v.T.Name())
		}
		s, err := f.setOf("$setIntersection", v.Doc())
		if err != nil {
			return v, err
		}
		if i == 0 {
			common = s
			continue
		}
		kept := &set{f: f, op: "$setIntersection"}
		for _, e := range common.vals {
			if err := f.Check(); err != nil {
				return v, err
			}
			if !s.has(e) {
				continue
			}
			if _, err := kept.add(e); err != nil {
				return v, err
			}
		}
		common = kept
	}
	if common == nil {
		return f.arrayOf(nil)
	}
	return f.arrayOf(common.vals)
}

func evalSetUnion(f *Frame, c *call) (value.Value, error) {
	s := &set{f: f, op: "$setUnion"}
	for _, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return v, err
		}
		if v.IsNullish() {
			return null, nil
		}
		if v.T != value.Array {
			return v, mongoerr.Newf(17043, "All operands of $setUnion must be arrays. One argument is of type: %s", v.T.Name())
		}
		if err := s.addAll(v.Doc()); err != nil {
			return v, err
		}
	}
	return f.arrayOf(s.vals)
}

func setDifference(f *Frame, a, b value.Value) (value.Value, error) {
	if a.IsNullish() || b.IsNullish() {
		return null, nil
	}
	if a.T != value.Array {
		return a, mongoerr.Newf(17048, "both operands of $setDifference must be arrays. First argument is of type: %s", a.T.Name())
	}
	if b.T != value.Array {
		return a, mongoerr.Newf(17049, "both operands of $setDifference must be arrays. Second argument is of type: %s", b.T.Name())
	}
	seen, err := f.setOf("$setDifference", b.Doc())
	if err != nil {
		return a, err
	}
	out := f.beginArray()
	for it := value.Walk(a.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return out.finish(), nil
		}
		fresh, err := seen.add(e)
		if err != nil {
			return a, err
		}
		if fresh {
			out.add(e)
		}
	}
}

func setIsSubset(f *Frame, a, b value.Value) (value.Value, error) {
	if a.T != value.Array {
		return a, mongoerr.Newf(17046, "both operands of $setIsSubset must be arrays. First argument is of type: %s", a.T.Name())
	}
	if b.T != value.Array {
		return a, mongoerr.Newf(17042, "both operands of $setIsSubset must be arrays. Second argument is of type: %s", b.T.Name())
	}
	super, err := f.setOf("$setIsSubset", b.Doc())
	if err != nil {
		return a, err
	}
	for it := value.Walk(a.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return value.NewBool(true), nil
		}
		if err := f.Check(); err != nil {
			return a, err
		}
		if !super.has(e) {
			return value.NewBool(false), nil
		}
	}
}

func elementsTrue(name string, code mongoerr.Code, stop bool) func(*Frame, value.Value) (value.Value, error) {
	return func(f *Frame, v value.Value) (value.Value, error) {
		if v.T != value.Array {
			return v, mongoerr.Newf(code, "%s's argument must be an array, but is %s", name, v.T.Name())
		}
		for it := value.Walk(v.Doc()); ; {
			_, e, ok := it.Next()
			if !ok {
				return value.NewBool(!stop), nil
			}
			if e.Truthy() == stop {
				return value.NewBool(stop), nil
			}
			if err := f.Check(); err != nil {
				return v, err
			}
		}
	}
}
