package expr

import (
	"bytes"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	replaceFields := []field{{"input", 51749}, {"find", 51748}, {"replacement", 51747}}
	replaceWords := wording{object: 51751, unknown: 51750, onObject: "%[1]s requires an object as an argument, found: %[2]s",
		onUnknown: "%[1]s found an unknown argument: %[2]s", onMiss: "%[1]s requires '%[2]s' to be specified"}
	trimFields := []field{{"input", 50695}, {"chars", 0}}
	trimWords := wording{object: 50696, unknown: 50694, onObject: "%[1]s only supports an object as an argument, found %[2]s",
		onUnknown: "%[1]s found an unknown argument: %[2]s", onMiss: "%[1]s requires an 'input' field"}
	register(
		nary("$concat", 0, -1, evalConcat),
		nary("$indexOfBytes", 2, 4, evalIndexOf("$indexOfBytes", 40091, 40092, indexOfBytes)),
		nary("$indexOfCP", 2, 4, evalIndexOf("$indexOfCP", 40093, 40094, indexOfCP)),
		binary("$split", split),
		unary("$strLenBytes", strLen("$strLenBytes", 34473, func(b []byte) int { return len(b) })),
		unary("$strLenCP", strLen("$strLenCP", 34471, utf8.RuneCount)),
		binary("$strcasecmp", strcasecmp),
		nary("$substrBytes", 3, 3, evalSubstrBytes),
		nary("$substrCP", 3, 3, evalSubstrCP),
		unary("$toLower", mapASCII(func(c byte) byte {
			if c >= 'A' && c <= 'Z' {
				c += 'a' - 'A'
			}
			return c
		})),
		unary("$toUpper", mapASCII(upper)),
		&operator{name: "$trim", eval: evalTrim(true, true), fields: trimFields, words: trimWords},
		&operator{name: "$ltrim", eval: evalTrim(true, false), fields: trimFields, words: trimWords},
		&operator{name: "$rtrim", eval: evalTrim(false, true), fields: trimFields, words: trimWords},
		&operator{name: "$replaceOne", eval: evalReplace(1), fields: replaceFields, words: replaceWords},
		&operator{name: "$replaceAll", eval: evalReplace(-1), fields: replaceFields, words: replaceWords},
	)
	rename("$substr", "$substrBytes")
}

// maxString is the length from which strings are too long to be values.
const maxString = 16 << 20

var errStringTooLong = mongoerr.New(16493, "Tried to create string longer than 16MB")

// newString makes a string value that takes ownership of b.
func newString(b []byte) (value.Value, error) {
	if len(b) >= maxString {
		return value.Value{}, errStringTooLong
	}
	return value.NewStringBytes(b), nil
}

func upper(c byte) byte {
	if c >= 'a' && c <= 'z' {
		c -= 'a' - 'A'
	}
	return c
}

// text converts an operand for string operators that accept more than strings; null and missing become "".
func (f *Frame) text(v value.Value) ([]byte, error) {
	switch v.T {
	case value.String, value.Symbol, value.JavaScript:
		return v.Bytes(), nil
	case value.Missing, value.Null, value.Undefined:
		return nil, nil
	case value.Int32, value.Int64, value.Double, value.Decimal128, value.DateTime, value.Timestamp:
		return []byte(coercedText(v)), nil
	}
	return nil, mongoerr.Newf(16007, "can't convert from BSON type %s to String", v.T.Name())
}

func evalConcat(f *Frame, c *call) (value.Value, error) {
	mark := len(f.scratch)
	for _, n := range c.args {
		v, err := n.eval(f)
		if err == nil && !v.IsNullish() && v.T != value.String {
			err = mongoerr.Newf(16702, "$concat only supports strings, not %s", v.T.Name())
		}
		if err != nil || v.IsNullish() {
			f.scratch = f.scratch[:mark]
			return null, err
		}
		f.scratch = append(f.scratch, v.Bytes()...)
	}
	built := f.scratch[mark:]
	f.scratch = f.scratch[:mark]
	if len(built) >= maxString {
		return null, errStringTooLong
	}
	return value.NewStringBytes(f.keep(built)), nil
}

// evalIndexOf is $indexOfBytes and $indexOfCP; find looks from start up to end (-1: the string's end).
func evalIndexOf(name string, strCode, subCode mongoerr.Code, find func(s, sub []byte, start, end int) int) func(*Frame, *call) (value.Value, error) {
	return func(f *Frame, c *call) (value.Value, error) {
		s, err := c.args[0].eval(f)
		if err != nil {
			return s, err
		}
		if s.IsNullish() {
			return null, nil
		}
		if s.T != value.String {
			return s, mongoerr.Newf(strCode, "%s requires a string as the first argument, found: %s", name, s.T.Name())
		}
		sub, err := c.args[1].eval(f)
		if err != nil {
			return sub, err
		}
		if sub.T != value.String {
			return sub, mongoerr.Newf(subCode, "%s requires a string as the second argument, found: %s", name, sub.T.Name())
		}
		start, end := 0, -1
		if len(c.args) > 2 {
			if start, err = f.stringIndex(name, c.args[2], "starting"); err != nil {
				return s, err
			}
		}
		if len(c.args) > 3 {
			if end, err = f.stringIndex(name, c.args[3], "ending"); err != nil {
				return s, err
			}
		}
		f.charge(len(s.Bytes()))
		return value.NewInt32(int32(find(s.Bytes(), sub.Bytes(), start, end))), nil
	}
}

func (f *Frame) stringIndex(name string, n node, which string) (int, error) {
	v, err := n.eval(f)
	if err != nil {
		return 0, err
	}
	i, ok := toInt32(v)
	if !ok {
		return 0, mongoerr.Newf(40096, "%s requires an integral %s index, found a value of type: %s, with value: %s",
			name, which, v.T.Name(), Show(v))
	}
	if i < 0 {
		return 0, mongoerr.Newf(40097, "%s requires a nonnegative %s index, found: %d", name, which, i)
	}
	return i, nil
}

func indexOfBytes(s, sub []byte, start, end int) int {
	if end < 0 || end > len(s) {
		end = len(s)
	}
	if start > end || start > len(s) {
		return -1
	}
	if i := bytes.Index(s[start:end], sub); i >= 0 {
		return start + i
	}
	return -1
}

func indexOfCP(s, sub []byte, start, end int) int {
	n := utf8.RuneCount(s)
	if end < 0 || end > n {
		end = n
	}
	if n == 0 && start == 0 && len(sub) == 0 {
		return 0
	}
	at := cpOffset(s, start)
	found := bytes.Index(s[at:], sub)
	if found < 0 {
		return -1
	}
	if i := start + utf8.RuneCount(s[at:at+found]); i < end { // a match has to start before end; it may extend beyond
		return i
	}
	return -1
}

// cpOffset returns the byte offset of the n-th code point, or the length.
func cpOffset(s []byte, n int) int {
	at := 0
	for ; n > 0 && at < len(s); n-- {
		_, size := utf8.DecodeRune(s[at:])
		at += size
	}
	return at
}

func split(f *Frame, s, sep value.Value) (value.Value, error) {
	if s.IsNullish() || sep.IsNullish() {
		return null, nil
	}
	if s.T != value.String {
		return s, mongoerr.Newf(40085, "$split requires an expression that evaluates to a string as a first argument, found: %s", s.T.Name())
	}
	if sep.T != value.String {
		return s, mongoerr.Newf(10503900, "$split requires an expression that evaluates to a string as a second argument, found: %s", sep.T.Name())
	}
	rest, by := s.Bytes(), sep.Bytes()
	if len(by) == 0 {
		return s, mongoerr.New(40087, "$split requires a non-empty separator")
	}
	b := f.beginArray()
	for {
		i := bytes.Index(rest, by)
		if i < 0 {
			b.add(value.NewStringBytes(rest))
			return b.finish(), nil
		}
		b.add(value.NewStringBytes(rest[:i]))
		if err := b.added("$split"); err != nil {
			return b.abandon(err)
		}
		rest = rest[i+len(by):]
	}
}

func strLen(name string, code mongoerr.Code, length func([]byte) int) func(*Frame, value.Value) (value.Value, error) {
	return func(f *Frame, v value.Value) (value.Value, error) {
		if v.T != value.String {
			return v, mongoerr.Newf(code, "%s requires a string argument, found: %s", name, v.T.Name())
		}
		f.charge(len(v.Bytes()))
		return value.NewInt32(int32(length(v.Bytes()))), nil
	}
}

func strcasecmp(f *Frame, a, b value.Value) (value.Value, error) {
	x, err := f.text(a)
	if err != nil {
		return a, err
	}
	y, err := f.text(b)
	if err != nil {
		return b, err
	}
	for i := 0; i < len(x) && i < len(y); i++ {
		if cx, cy := upper(x[i]), upper(y[i]); cx != cy {
			return value.NewInt32(int32(2*b2i(cx > cy) - 1)), nil
		}
	}
	return value.NewInt32(int32(b2i(len(x) > len(y)) - b2i(len(x) < len(y)))), nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func mapASCII(to func(byte) byte) func(*Frame, value.Value) (value.Value, error) {
	return func(f *Frame, v value.Value) (value.Value, error) {
		s, err := f.text(v)
		if err != nil {
			return v, err
		}
		out := f.alloc(len(s))
		for i, c := range s {
			out[i] = to(c)
		}
		return value.NewStringBytes(out), nil
	}
}

// substrArgs evaluates the operands of $substrBytes and $substrCP, of which the first is converted to text.
func (f *Frame) substrArgs(c *call) (s []byte, lower, length value.Value, err error) {
	var vs [3]value.Value
	for i := range vs {
		if vs[i], err = c.args[i].eval(f); err != nil {
			return nil, null, null, err
		}
	}
	s, err = f.text(vs[0])
	return s, vs[1], vs[2], err
}

func evalSubstrBytes(f *Frame, c *call) (value.Value, error) {
	s, lower, length, err := f.substrArgs(c)
	if err != nil {
		return null, err
	}
	if !lower.T.Numeric() {
		return null, mongoerr.Newf(16034, "%s:  starting index must be a numeric type (is BSON type %s)", c.op.name, lower.T.Name())
	}
	if !length.T.Numeric() {
		return null, mongoerr.Newf(16035, "%s:  length must be a numeric type (is BSON type %s)", c.op.name, length.T.Name())
	}
	from, err := coerceInt64(lower)
	if err != nil {
		return null, err
	}
	n, err := coerceInt64(length)
	if err != nil {
		return null, err
	}
	if from < 0 {
		return null, mongoerr.Newf(50752, "%s:  starting index must be non-negative (got: %d)", c.op.name, from)
	}
	if from >= int64(len(s)) {
		if from > int64(len(s)) || n != 0 {
			return value.NewStringBytes(nil), nil
		}
	}
	if from < int64(len(s)) && !utf8.RuneStart(s[from]) {
		return null, mongoerr.Newf(28656, "%s:  Invalid range, starting index is a UTF-8 continuation byte.", c.op.name)
	}
	s = s[min(from, int64(len(s))):]
	if n < 0 || n >= int64(len(s)) {
		return value.NewStringBytes(f.keep(s)), nil
	}
	if !utf8.RuneStart(s[n]) {
		return null, mongoerr.Newf(28657, "%s:  Invalid range, ending index is in the middle of a UTF-8 character.", c.op.name)
	}
	return value.NewStringBytes(f.keep(s[:n])), nil
}

func evalSubstrCP(f *Frame, c *call) (value.Value, error) {
	s, lower, length, err := f.substrArgs(c)
	if err != nil {
		return null, err
	}
	from, err := cpArg(lower, "starting index", 34450, 34451)
	if err != nil {
		return null, err
	}
	n, err := cpArg(length, "length", 34452, 34453)
	if err != nil {
		return null, err
	}
	if n < 0 {
		return null, mongoerr.Newf(34454, "$substrCP: length must be a nonnegative integer.")
	}
	if from < 0 {
		return null, mongoerr.Newf(34455, "$substrCP: the starting index must be nonnegative integer.")
	}
	f.charge(len(s))
	s = s[cpOffset(s, from):]
	return value.NewStringBytes(f.keep(s[:cpOffset(s, n)])), nil
}

func cpArg(v value.Value, what string, typeCode, intCode mongoerr.Code) (int, error) {
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(typeCode, "$substrCP: %s must be a numeric type (is BSON type %s)", what, v.T.Name())
	}
	i, ok := toInt32(v)
	if !ok {
		return 0, mongoerr.Newf(intCode, "$substrCP: %s cannot be represented as a 32-bit integral value: %s", what, Show(v))
	}
	return i, nil
}

// whitespace has the characters that $trim removes by default: ASCII blanks, NUL and Unicode's spaces.
var whitespace = []rune{0, ' ', '\t', '\n', '\v', '\f', '\r', 0xA0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005,
	0x2006, 0x2007, 0x2008, 0x2009, 0x200A}

func evalTrim(left, right bool) func(*Frame, *call) (value.Value, error) {
	return func(f *Frame, c *call) (value.Value, error) {
		v, err := c.args[0].eval(f)
		if err != nil {
			return v, err
		}
		chars, err := c.arg(f, 1)
		if err != nil {
			return chars, err
		}
		if v.IsNullish() {
			return null, nil
		}
		if v.T != value.String {
			return v, mongoerr.Newf(50699, "%s requires its input to be a string, got %s (of type %s) instead.", c.op.name, Show(v), v.T.Name())
		}
		cut := whitespace
		if c.args[1] != nil {
			if chars.IsNullish() {
				return null, nil
			}
			if chars.T != value.String {
				return v, mongoerr.Newf(50700, "%s requires 'chars' to be a string, got %s (of type %s) instead.", c.op.name, Show(chars), chars.T.Name())
			}
			cut = []rune(chars.Str())
		}
		s := v.Bytes()
		f.charge(len(s))
		in := func(r rune) bool {
			for _, c := range cut {
				if c == r {
					return true
				}
			}
			return false
		}
		if left {
			s = bytes.TrimLeftFunc(s, in)
		}
		if right {
			s = bytes.TrimRightFunc(s, in)
		}
		return value.NewStringBytes(s), nil
	}
}

func evalReplace(n int) func(*Frame, *call) (value.Value, error) {
	return func(f *Frame, c *call) (value.Value, error) {
		var vs [3]value.Value
		missing := false
		for i := range vs {
			v, err := c.args[i].eval(f)
			if err != nil {
				return v, err
			}
			vs[i] = v
			missing = missing || v.IsNullish()
		}
		for i, code := range []mongoerr.Code{10503904, 10503901, 10503902} {
			if vs[i].T != value.String && !vs[i].IsNullish() {
				return vs[i], mongoerr.Newf(code, "%s requires that '%s' be a string, found: %s", c.op.name, c.op.fields[i].name, Show(vs[i]))
			}
		}
		if missing {
			return null, nil
		}
		s, find, with := vs[0].Bytes(), vs[1].Bytes(), vs[2].Bytes()
		f.charge(4 * len(s))
		if count := bytes.Count(s, find); len(s)+count*(len(with)-len(find)) >= maxString && n < 0 {
			return vs[0], errStringTooLong
		}
		return newString(bytes.Replace(s, find, with, n))
	}
}
