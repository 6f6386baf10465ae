package expr

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	for _, row := range []struct {
		name string
		eval func(*Frame, *call) (value.Value, error)
	}{{"$regexFind", evalRegexFind}, {"$regexFindAll", evalRegexFindAll}, {"$regexMatch", evalRegexMatch}} {
		register(&operator{name: row.name, eval: row.eval, prepare: prepareRegex,
			fields: []field{{"input", 31022}, {"regex", 31023}, {"options", 0}},
			words: wording{object: 51103, unknown: 31024, onObject: "%[1]s expects an object of named arguments but found: %[2]s",
				onUnknown: "%[1]s found an unknown argument: %[2]s", onMiss: "%[1]s requires '%[2]s' parameter"}})
	}
}

// maxPattern is the maximum length of a pattern for these operators, in bytes.
const maxPattern = 16 << 10

// pattern is a compiled expression, or nil if one of its parts was null.
type pattern struct {
	re *regex.Regexp
}

// prepareRegex compiles a constant pattern once.
func prepareRegex(c *call, s *Scope) error {
	re, ok := c.args[1].(*constant)
	if !ok {
		return nil
	}
	var opts value.Value
	if c.args[2] != nil {
		k, ok := c.args[2].(*constant)
		if !ok {
			return nil
		}
		opts = k.v
	}
	p, err := compilePattern(c.op.name, re.v, opts)
	c.state = p
	return err
}

// compilePattern checks the regex and options operands and compiles them.
func compilePattern(name string, re, opts value.Value) (*pattern, error) {
	if !re.IsNullish() && re.T != value.String && re.T != value.Regex {
		return nil, mongoerr.Newf(51105, "%s needs 'regex' to be of type string or regex", name)
	}
	if !opts.IsNullish() && opts.T != value.String {
		return nil, mongoerr.Newf(51106, "%s needs 'options' to be of type string", name)
	}
	if re.IsNullish() {
		return &pattern{}, nil
	}
	src, flags := re.Str(), opts.Str()
	if re.T == value.Regex {
		var own string
		src, own = re.Regex()
		if own != "" && !opts.IsNullish() {
			return nil, mongoerr.Newf(51107, "%s found regex option(s) specified in both 'regex' and 'option' fields", name)
		}
		if own != "" {
			flags = own
		}
	}
	if strings.IndexByte(src, 0) >= 0 {
		return nil, mongoerr.Newf(51109, "%s: regular expression cannot contain an embedded null byte", name)
	}
	if strings.IndexByte(flags, 0) >= 0 {
		return nil, mongoerr.Newf(51110, "%s: regular expression options cannot contain an embedded null byte", name)
	}
	for i := range len(flags) {
		if strings.IndexByte("imsxu", flags[i]) < 0 {
			return nil, mongoerr.Newf(51108, "%s invalid flag in regex options: %s", name, flags)
		}
	}
	if len(src) > maxPattern {
		return nil, mongoerr.Newf(51111, "Invalid Regex in %s: regular expression is too large", name)
	}
	compiled, err := regex.Compile(src, flags)
	if err != nil {
		var syntax *regex.SyntaxError
		if errors.As(err, &syntax) {
			return nil, mongoerr.Newf(51111, "Invalid Regex in %s: %s", name, syntax.Reason)
		}
		return nil, mongoerr.Newf(51111, "Invalid Regex in %s: %s", name, err)
	}
	return &pattern{compiled}, nil
}

// regexOperands evaluates the operands; ok is false if the pattern or the input is null.
func (f *Frame) regexOperands(c *call) (input []byte, p *pattern, ok bool, err error) {
	in, err := c.args[0].eval(f)
	if err != nil {
		return nil, nil, false, err
	}
	if p, _ = c.state.(*pattern); p == nil {
		re, err := c.args[1].eval(f)
		if err != nil {
			return nil, nil, false, err
		}
		opts, err := c.arg(f, 2)
		if err != nil {
			return nil, nil, false, err
		}
		if !in.IsNullish() && in.T != value.String {
			return nil, nil, false, mongoerr.Newf(51104, "%s needs 'input' to be of type string", c.op.name)
		}
		if p, err = compilePattern(c.op.name, re, opts); err != nil {
			return nil, nil, false, err
		}
	}
	if !in.IsNullish() && in.T != value.String {
		return nil, nil, false, mongoerr.Newf(51104, "%s needs 'input' to be of type string", c.op.name)
	}
	return in.Bytes(), p, p.re != nil && !in.IsNullish(), nil
}

// find runs the pattern from a byte offset.
func (p *pattern) find(f *Frame, s []byte, from int) ([]int, error) {
	loc, err := p.re.Find(s, from, f.env.Work)
	return loc, regexError(err)
}

// regexError returns the error of a pattern that takes too long; errors of the operation are unchanged.
func regexError(err error) error {
	var own *mongoerr.Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	return mongoerr.Newf(51156, "Error occurred while executing the regular expression: %s", err)
}

func evalRegexMatch(f *Frame, c *call) (value.Value, error) {
	s, p, ok, err := f.regexOperands(c)
	if err != nil || !ok {
		return value.NewBool(false), err
	}
	found, err := p.re.Match(s, f.env.Work)
	return value.NewBool(found), regexError(err)
}

func evalRegexFind(f *Frame, c *call) (value.Value, error) {
	s, p, ok, err := f.regexOperands(c)
	if err != nil || !ok {
		return null, err
	}
	loc, err := p.find(f, s, 0)
	if err != nil || loc == nil {
		return null, err
	}
	return f.regexResult(s, loc, utf8.RuneCount(s[:loc[0]])), nil
}

func evalRegexFindAll(f *Frame, c *call) (value.Value, error) {
	s, p, ok, err := f.regexOperands(c)
	if err != nil {
		return null, err
	}
	b := f.beginArray()
	if !ok {
		return b.finish(), nil
	}
	at, cp := 0, 0
	err = p.re.FindAll(s, f.env.Work, func(loc []int) (bool, error) {
		if err := f.step("$regexFindAll", 0); err != nil {
			return false, err
		}
		cp += utf8.RuneCount(s[at:loc[0]])
		b.add(f.regexResult(s, loc, cp))
		at = loc[0]
		return loc[1] < len(s) && (loc[0] < loc[1] || loc[1]+1 < len(s)), nil
	})
	if err != nil {
		return b.abandon(regexError(err))
	}
	return b.finish(), nil
}

// regexResult describes one match: its text, where it starts in code points, and its groups.
func (f *Frame) regexResult(s []byte, loc []int, cp int) value.Value {
	groups := f.beginArray()
	for i := 2; i+1 < len(loc); i += 2 {
		if loc[i] < 0 {
			groups.add(null)
			continue
		}
		groups.add(value.NewStringBytes(s[loc[i]:loc[i+1]]))
	}
	captures := groups.finish()
	b := f.beginDoc()
	b.set("match", value.NewStringBytes(s[loc[0]:loc[1]]))
	b.set("idx", value.NewInt32(int32(cp)))
	b.set("captures", captures)
	return b.finish()
}
