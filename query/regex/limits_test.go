package regex

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// stopAfter is a value.Work that has to stop after some checks.
type stopAfter struct{ left int }

var errStop = errors.New("stop")

func (s *stopAfter) Check() error {
	if s.left--; s.left < 0 {
		return errStop
	}
	return nil
}

// TestLimits: a search that backtracks too often ends in an error, or is answered by the engine that does not backtrack.
func TestLimits(t *testing.T) {
	as := strings.Repeat("a", 60) + "b"
	abs := strings.Repeat("ab", 1<<19)
	for _, c := range []struct{ pattern, text, want string }{
		{`^(a+)+$`, as, "no"}, {`^(?:a|aa)+$`, as, "no"}, {`^(?=(a+)+$)b`, as, "no"}, {`^(?>a|b)*+$`, abs, "yes"}, {`^(a|b)*?$`, abs, "yes"},
		{`(*LIMIT_MATCH=100000)(?=(a+)+$)a`, as, "match limit exceeded"}, {`(*LIMIT_MATCH=10)(?:a|ab|b)+(?!.)c`, strings.Repeat("ab", 20) + "c", "match limit exceeded"},
		{`(*LIMIT_DEPTH=10)(?:a|ab|b)+(?!.)c`, strings.Repeat("ab", 20) + "c", "matching depth limit exceeded"},
		{`(*LIMIT_HEAP=1)(a|ab|b)+(?!.)c`, strings.Repeat("ab", 2000) + "c", "heap limit exceeded"},
		{`(?:(?:a?){60000}){60000}b(?=c)`, strings.Repeat("a", 100) + "b", "heap limit exceeded"},
		{`(?R)a|b`, "ba", "nested recursion at the same subject position"},
	} {
		r, err := Compile(c.pattern, "")
		if err != nil {
			t.Fatal(c.pattern, err)
		}
		ok, err := r.Match([]byte(c.text), nil)
		got := map[bool]string{true: "yes", false: "no"}[ok]
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.pattern, got, c.want)
		}
	}
}

// TestStops: a search ends when its work has to stop, at whatever point it is.
func TestStops(t *testing.T) {
	long := strings.Repeat("ab", 1<<18) + "xc"
	for _, p := range []string{`(?:(?=a)ab|b)+d?(?!.)`, `.*(?!x).c\z(?<=d)`, `(?s).*?(?=y)`, `(\w+)\s*\1x\z`, `\w+\d?(?<=y)`, `(?:a|b|ab)*(?=c)d?(?!.)`, `(?>\w*)x(?=c)`, `^(a|b)*?(?=c)(?!.)`,
		`(?:x?y?a?b?)*(?!.)d`, `(a(?1)?b)+(?!a)c`, `\X+(?=\z)(?<=d)`, `a{1,}b{1,}(?=(a*b*)*\z)(?<=y)`} {
		r, err := Compile(p, "")
		if err != nil {
			t.Fatal(p, err)
		}
		begin, w := time.Now(), &stopAfter{3}
		if _, err := r.Find([]byte(long), 0, w); err != errStop && w.left < 0 {
			t.Errorf("%s goes on: %v", p, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s took %v", p, took)
		}
	}
}
