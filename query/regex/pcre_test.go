package regex

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// pcreCase is a line of testdata/pcre/*: a pattern, its options, subjects, and the results of PCRE2 10.42: that the pattern
// is invalid, or for each subject the positions of the match and its groups, null for no match, or the text of an error.
type pcreCase struct {
	Pattern  string   `json:"p"`
	Options  string   `json:"o,omitempty"`
	Subjects []string `json:"s"`
	Error    string   `json:"err,omitempty"`
	Results  []any    `json:"res,omitempty"`
}

// TestAgainstPCRE compares with the recorded results of PCRE2 itself.
func TestAgainstPCRE(t *testing.T) {
	files, err := filepath.Glob("testdata/pcre/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		n, bad := 0, 0
		for lines.Scan() {
			var c pcreCase
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				t.Fatal(name, err)
			}
			if n++; !c.check(t) {
				bad++
			}
		}
		t.Logf("%s: %d patterns, %d differ", name, n, bad)
	}
}

func (c *pcreCase) check(t *testing.T) bool {
	r, err := Compile(c.Pattern, c.Options)
	var wrong *SyntaxError
	got := ""
	if errors.As(err, &wrong) {
		got = wrong.Reason
	}
	if got != c.Error {
		t.Errorf("/%s/%s: error %q, want %q", c.Pattern, c.Options, got, c.Error)
		return false
	}
	if err != nil {
		return true
	}
	ok := true
	for i, s := range c.Subjects {
		loc, err := r.Find([]byte(s), 0, nil)
		got, want := "<nil>", fmt.Sprint(c.Results[i])
		if err != nil {
			got = err.Error()
		} else if loc != nil {
			got = fmt.Sprint(loc)
		}
		if got != want {
			t.Errorf("/%s/%s on %q: %s, want %s", c.Pattern, c.Options, s, got, want)
			ok = false
		}
		if r.linear != nil && err == nil {
			if in, _ := r.matchLinear([]byte(s), nil); in != (loc != nil) {
				t.Errorf("/%s/%s on %q: %v by the linear engine", c.Pattern, c.Options, s, in)
				ok = false
			}
		}
		if m, err := r.Match([]byte(s), nil); err == nil && m != (loc != nil) {
			t.Errorf("/%s/%s on %q: matches %v, found %v", c.Pattern, c.Options, s, m, loc)
			ok = false
		}
	}
	return ok
}
