package regex

import "testing"

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, options, text string
		want                   bool
	}{
		{"abc", "", "xabcx", true}, {"^abc", "", "xabc", false}, {"^abc$", "", "abc\n", true}, {"abc$", "", "abc\nx", false},
		{"abc$", "", "xabc\n", true}, {"^$", "", "", true}, {"a.c$", "", "abc\n", true}, {"a.c$", "", "abc\n\n", false},
		{"^S", "m", "a\nS", true}, {"e$", "m", "line\nx", true}, {"M.*l", "s", "M\nl", true}, {"M.*l", "", "M\nl", false},
		{`\d+`, "", "٣", false}, {`(*UCP)\d+`, "", "٣", true}, {`\w`, "", "é", false}, {`(*UCP)\bx`, "", "éx", false},
		{`\bx`, "", "éx", true}, {`foo(?=bar)`, "", "foobar", true}, {`foo(?!bar)`, "", "foobar", false},
		{`(?<=foo)bar`, "", "foobar", true}, {`^(abc)\1$`, "", "abcabc", true}, {`a++b`, "", "aab", true}, {`a++a`, "", "aaa", false},
		{`^(?>a|ab)c`, "", "abc", false}, {`(?P<w>a)-(?P=w)`, "", "a-a", true}, {`foo\Kbar`, "", "foobar", true},
		{`^(a)?(?(1)b|c)$`, "", "ab", true}, {`^(a)?(?(1)b|c)$`, "", "ac", false}, {`abc\Z`, "", "abc\n", true},
		{`a b c`, "x", "abc", true}, {"abc #c\n1", "x", "abc1", true}, {`[a b]`, "x", " ", true}, {`a\ b`, "x", "a b", true},
		{`(?i)a(?-i)bc`, "", "Abc", true}, {`(?i)a(?-i)bc`, "", "aBC", false}, {`\Qa.b\E`, "", "a.b", true}, {`\Qa.b\E`, "", "axb", false},
		{`[[:alpha:]]`, "", "é", false}, {`(*UCP)[[:alpha:]]`, "", "é", true}, {`\p{Han}`, "", "你", true}, {`\x{4f60}`, "", "你", true},
		{`a\sb`, "", "a\vb", true}, {`[\s]`, "", "\v", true}, {`(a$)`, "", "ba\n", true}, {`\R`, "", "\r\n", true}, {`[]a]`, "", "]", true},
		{`a{2,3}`, "", "aa", true}, {`a{,3}`, "", "a{,3}", true}, {"", "", "x", true}, {`istanbul`, "i", "İstanbul", false},
	} {
		r, err := Compile(c.pattern, c.options)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		if got, err := r.Match([]byte(c.text), nil); got != c.want || err != nil {
			t.Errorf("/%s/%s on %q: %v, %v", c.pattern, c.options, c.text, got, err)
		}
	}
}

func TestInvalid(t *testing.T) {
	for _, p := range []string{"[invalid", "(a", "a)", "*a", "a**", `\`, "(?<n", `(?P>x)`} {
		if _, err := Compile(p, ""); err == nil {
			t.Errorf("%q compiled", p)
		}
	}
	if _, err := Compile("a", "g"); err == nil || err.Error() != "invalid flag in regex options: g" {
		t.Errorf("option g: %v", err)
	}
}

func TestFind(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		from          int
		want          []int
	}{
		{"b(c)?", "abab", 2, []int{3, 4, -1, -1}}, {"(é)(?=x)", "aéx", 0, []int{1, 3, 1, 3}}, {"a$", "a\n", 0, []int{0, 1}}, {"z", "a", 0, nil},
	} {
		r, err := Compile(c.pattern, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Find([]byte(c.text), c.from, nil)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%q in %q: %v %v", c.pattern, c.text, got, err)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%q in %q: %v, want %v", c.pattern, c.text, got, c.want)
				break
			}
		}
	}
}

func TestPrefix(t *testing.T) {
	for _, c := range []struct {
		pattern, options, prefix string
		exact                    bool
	}{
		{"^abc", "", "abc", true}, {"^abc", "i", "", false}, {"abc", "", "", false}, {"^ab*c", "", "a", false}, {"^a.c", "", "a", false},
		{`^a\.b`, "", "a.b", true}, {"^a|b", "", "", false}, {"^ab+c", "", "ab", false}, {"^abc.*", "s", "abc", true}, {"^é?", "", "", false},
	} {
		r, err := Compile(c.pattern, c.options)
		if err != nil {
			t.Fatal(err)
		}
		if p, exact := r.Prefix(); p != c.prefix || exact != c.exact {
			t.Errorf("%q: %q %v", c.pattern, p, exact)
		}
	}
}
