package console

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// compileAuditFilter compiles a filter written in the syntax of ParseAuditFilter; nil for an empty one.
func compileAuditFilter(text string) (*match.Matcher, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	doc, err := ParseAuditFilter(text)
	if err != nil {
		return nil, fmt.Errorf("BadValue: auditLog.filter: %w", err)
	}
	m, err := compileAuditQuery(doc)
	if err != nil {
		return nil, fmt.Errorf("BadValue: auditLog.filter: %w", err)
	}
	return m, nil
}

// compileAuditQuery compiles a filter; nil for an empty one.
func compileAuditQuery(doc []byte) (*match.Matcher, error) {
	if value.Count(doc) == 0 {
		return nil, nil
	}
	return match.Compile(doc, &match.Options{Deny: match.DenyText | match.DenyNear | match.DenyWhere})
}

// CheckAuditFilter returns an error unless the document is valid as a filter of the audit log.
func CheckAuditFilter(doc []byte) error {
	_, err := compileAuditQuery(doc)
	return err
}

// ParseAuditFilter parses a query in the shell's syntax: names need no quotes, strings have single or double quotes, and
// regular expressions are written between slashes. It rewrites the query to extended JSON, which a library parses.
func ParseAuditFilter(text string) ([]byte, error) {
	p := &filterText{in: text}
	for p.at < len(p.in) {
		if err := p.token(); err != nil {
			return nil, err
		}
	}
	if p.depth != 0 {
		return nil, fmt.Errorf("unexpected end of %q", text)
	}
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(p.out.String()), false, &doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// maxFilterDepth limits the nesting of a filter, since the library parses it recursively.
const maxFilterDepth = 100

type filterText struct {
	in    string
	at    int
	depth int
	out   strings.Builder
}

// token copies the next token.
func (p *filterText) token() error {
	c := p.in[p.at]
	switch {
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		p.at++
		return nil
	case c == '{' || c == '[':
		if p.depth++; p.depth > maxFilterDepth {
			return fmt.Errorf("the filter is nested more than %d levels deep", maxFilterDepth)
		}
	case c == '}' || c == ']':
		p.depth--
	case c == '"' || c == '\'':
		s, err := p.quoted(c)
		if err == nil {
			p.out.WriteString(jsonText(s))
		}
		return err
	case c == '/':
		return p.regex()
	case c == ',' || c == ':':
	default:
		return p.word()
	}
	p.at++
	p.out.WriteByte(c)
	return nil
}

func jsonText(s string) string { return string(appendJSONString(nil, s)) }

// quoted reads a string up to its closing quote.
func (p *filterText) quoted(quote byte) (string, error) {
	var b strings.Builder
	for p.at++; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; c {
		case quote:
			p.at++
			return b.String(), nil
		case '\\':
			if p.at++; p.at == len(p.in) {
				return "", fmt.Errorf("unterminated string")
			}
			if err := p.escape(&b); err != nil {
				return "", err
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", fmt.Errorf("unterminated string")
}

// escape reads what follows a backslash.
func (p *filterText) escape(b *strings.Builder) error {
	c := p.in[p.at]
	if i := strings.IndexByte("nrtbf", c); i >= 0 {
		b.WriteByte("\n\r\t\b\f"[i])
		return nil
	}
	if c != 'u' {
		b.WriteByte(c)
		return nil
	}
	if p.at+4 >= len(p.in) {
		return fmt.Errorf("\\u must be followed by four hexadecimal digits")
	}
	n, err := strconv.ParseUint(p.in[p.at+1:p.at+5], 16, 32)
	if err != nil {
		return fmt.Errorf("\\u must be followed by four hexadecimal digits")
	}
	p.at += 4
	b.Write(utf8.AppendRune(nil, rune(n)))
	return nil
}

// regex reads a regular expression between slashes and its options.
func (p *filterText) regex() error {
	var b strings.Builder
	for p.at++; ; p.at++ {
		if p.at >= len(p.in) {
			return fmt.Errorf("unterminated regular expression")
		}
		c := p.in[p.at]
		if c == '/' {
			break
		}
		b.WriteByte(c)
		if c == '\\' && p.at+1 < len(p.in) {
			p.at++
			b.WriteByte(p.in[p.at])
		}
	}
	from := p.at + 1
	for p.at++; p.at < len(p.in) && strings.IndexByte("imsxu", p.in[p.at]) >= 0; p.at++ {
	}
	fmt.Fprintf(&p.out, `{"$regularExpression":{"pattern":%s,"options":%s}}`, jsonText(b.String()), jsonText(p.in[from:p.at]))
	return nil
}

// word reads a name without quotes, a number, or one of JSON's constants.
func (p *filterText) word() error {
	from := p.at
	for p.at < len(p.in) && strings.IndexByte(" \t\r\n{}[]:,'\"/", p.in[p.at]) < 0 {
		p.at++
	}
	word := p.in[from:p.at]
	if rest := strings.TrimLeft(p.in[p.at:], " \t\r\n"); strings.HasPrefix(rest, ":") {
		p.out.WriteString(jsonText(word))
		return nil
	}
	if _, err := strconv.ParseFloat(word, 64); err != nil && word != "true" && word != "false" && word != "null" {
		return fmt.Errorf("%q is not a value", word)
	}
	p.out.WriteString(word)
	return nil
}
