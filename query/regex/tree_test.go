package regex

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestTree checks matches and groups as the PCRE2 manual (pcre2pattern) describes them; "-" is no match.
func TestTree(t *testing.T) {
	for _, c := range []struct{ pattern, options, text, want string }{
		// recursion and calls
		{`\((?:[^()]++|(?R))*\)`, "", "x(a(b)c)(", "(a(b)c)"},
		{`\((?:[^()]++|(?R))*\)`, "", "((a", "-"},
		{`^((.)(?1)\2|.?)$`, "", "abcba", "abcba abcba a"},
		{`^(?:((.)(?1)\2|)|((.)(?3)\4|.))$`, "i", "abCCba", "abCCba abCCba a . ."},
		{`(?<n>a|b(?&n)c)$`, "", "xbbacc", "bbacc bbacc"},
		{`(?P<n>a|b(?P>n)c)$`, "", "bac", "bac bac"},
		{`(sens|respons)e and (?1)ibility`, "", "sense and responsibility", "sense and responsibility sens"},
		{`(?(DEFINE)(?<byte>2[0-4]\d|25[0-5]|1\d\d|[1-9]?\d))\b(?&byte)(?:\.(?&byte)){3}\b`, "", "at 192.168.23.245.", "192.168.23.245 ."},
		{`^(a(?-1)?b)$`, "", "aabb", "aabb aabb"},
		{`(?+1)x(b)`, "", "bxb", "bxb b"},
		{`(a)\g<1>`, "", "aa", "aa a"},
		{`(?<x>.)\g'x'`, "", "ab", "ab a"},
		// groups that share their numbers
		{`(?|(Sat)ur|(Sun))day`, "", "Sunday", "Sunday Sun"},
		{`(a)(?|x(b)y|(p(c)r)|(t)u(v))(z)`, "", "atuvz", "atuvz a t v z"},
		{`(?|(abc)|(def))\1`, "", "defdef", "defdef def"},
		{`(?|(abc)|(def))(?1)`, "", "defabc", "defabc def"},
		// numbers of groups with names
		{`(?<y>\d\d)-(\d)(?=x)`, "", "12-3x", "12-3 12 3"},
		{`(x)(?<y>b)\2`, "", "xbb", "xbb x b"},
		// verbs
		{`a(?:b(*ACCEPT)c|d)e`, "", "abz", "ab"},
		{`(a(b(*ACCEPT)c)d)`, "", "abz", "ab ab b"},
		{`a(*FAIL)|b`, "", "ab", "b"}, {`a+(*F)|c`, "", "aac", "c"},
		{`a+(*COMMIT)b`, "", "aaacaab", "-"}, {`(*COMMIT)b`, "", "ab", "-"},
		{`a+(*PRUNE)b`, "", "aacab", "ab"},
		{`aaaa(*SKIP)b|a`, "", "aaaac", "-"}, {`a+(*SKIP)b|c`, "", "aac", "c"},
		{`^(?:a(*THEN)b|ac)`, "", "ac", "ac"}, {`^(?:a(*PRUNE)b|ac)`, "", "ac", "-"},
		{`^(?:(?:a|ab)(*THEN)c|abd)`, "", "abd", "abd"},
		{`(*MARK:x)a`, "", "a", "a"},
		// what is reported
		{`foo\Kbar`, "", "foobar", "bar"}, {`(foo)\Kbar`, "", "foobar", "bar foo"},
		{`(?=ab\K)`, "", "ab", ""}, {`\Gb`, "", "ab", "-"},
		// conditions
		{`^(?<q>")?a(?(q)")$`, "", `"a"`, `"a" "`}, {`^(?<q>")?a(?(q)")$`, "", `"a`, "-"},
		{`^(?:(?(R)a|b)|c(?R)d)$`, "", "b", "b"}, {`(*NO_JIT)\K(?(?=a)ab|cd)`, "", "xcd", "cd"}, {`(?<n>(a*)*)b`, "", "aab", "aab aa "},
		// the rest of the syntax, as read here
		{`(?'n'a)(?i:B)\k{n}`, "", "abA", "-"}, {`(?i)(?'n'a)b\k{n}`, "", "abA", "abA a"},
		{`(?<n>\h+\H)\R\N`, "", " \tx\r\ny", " \tx\r\ny  \tx"}, {`(*BSR_ANYCRLF)a\Rb`, "", "a\x0bb", "-"},
		{`(?<n>[[:alpha:]]+)[^[:^digit:]]`, "", "--ab1", "ab1 ab"}, {`(*UCP)(?<n>\w+)\b`, "", "é.", "é é"},
		{`(?<n>\Qa.b\E+)c`, "", "a.bbc", "a.bbc a.bb"}, {`(?<n>a{2,3}?)(a*+)`, "", "aaaa", "aaaa aa aa"},
		{`(?<n>\x41\x{42}\103\o{104}\cA)`, "", "ABCD\x01", "ABCD\x01 ABCD\x01"}, {`(?x) (?<n> a b ) # c`, "", "ab", "ab ab"},
		{`(?<n>\p{Lu}\P{Lu}\p{^Lu})`, "", "Abc", "Abc Abc"}, {`(?<=ab|c)(?<n>d)(?<!x)`, "", "abd", "d d"},
		{`(?<n>\X)`, "", "e\u0301x", "e\u0301 e\u0301"}, {`(?>(?<n>a+))ab`, "", "aaab", "-"}, {`(?<n>(?:)*)b`, "", "b", "b "},
		{`(?<n>a|(*pla:b)b)b`, "", "bb", "bb b"}, {`(?-i:(?<n>a))|(?i)B`, "", "b", "b ."}, {`(?<a>.)(?<b>.)^`, "ms", "a\nb", "a\n a \n"},
	} {
		r, err := CompileFind(c.pattern, c.options)
		if err != nil || r.tree == nil {
			t.Errorf("%s: %v, tree %v", c.pattern, err, r)
			continue
		}
		loc, err := r.Find([]byte(c.text), 0)
		got := "-"
		if loc != nil {
			var parts []string
			for i := 0; i < len(loc); i += 2 {
				if loc[i] < 0 {
					parts = append(parts, ".")
				} else {
					parts = append(parts, c.text[loc[i]:loc[i+1]])
				}
			}
			got = strings.Join(parts, " ")
		}
		if err != nil || got != c.want {
			t.Errorf("/%s/%s on %q: %q, %v, want %q", c.pattern, c.options, c.text, got, err, c.want)
		}
	}
}

// TestTreeRefuses: what PCRE does not compile.
func TestTreeRefuses(t *testing.T) {
	for _, p := range []string{`(?1)`, `(?&x)`, `(?R`, `(*NOPE)`, `(*ACCEPT`, `(?|(a)`, `(a)(?2)`, `(?<n>a)\k<m>`, `(?<1>a)`, `(?(DEFINE)a|b)`, `(?<n>(?<=a+)b)`,
		`(?<n>a{3,2})`, `(?<n>[b-a])`, `(?<n>\p{Nope})`, `(?<n>a**)`, `(?<n>\y)`, `(*CRLF)a`, `(?R))`, `(?<n>[[:x:]])`, strings.Repeat("(?|", 300) + strings.Repeat(")", 300)} {
		_, err := CompileFind(p, "")
		var s *SyntaxError
		if !errors.As(err, &s) {
			t.Errorf("%.20s: %v", p, err)
		}
	}
}

// TestTreeIsBounded: no pattern runs for ever.
func TestTreeIsBounded(t *testing.T) {
	for p, text := range map[string]string{
		`(?<n>a+)+$`: strings.Repeat("a", 40) + "b", `(?R)a|b`: "aaa", `(?<n>(?&n)?a)`: "aaa", `^(?<n>a|b)*$`: strings.Repeat("ab", 1<<17),
		`(?:(?<n>a)|(?R)(?R)b)*c`: strings.Repeat("a", 200),
	} {
		r, err := Compile(p, "")
		if err != nil {
			t.Fatal(p, err)
		}
		r.tree.limit = 200_000
		if _, err := r.Match([]byte(text)); err == nil {
			t.Errorf("%s runs to its end", p)
		}
	}
}

// TestTreeAgreesWithEngines runs patterns that all engines read by the tree and by theirs.
func TestTreeAgreesWithEngines(t *testing.T) {
	patterns := []string{`a+b*c?`, `(a|b)*c`, `^a.c$`, `(a)(b)?`, `[^ab]+`, `\bx\w+`, `(?i)AB+`, `a{2,3}(b|c){1,2}`, `(?:a|ab)(c|bcd)`, `x*?y`, `(?=a)ab|b`, `(a)\1`, `(?>a+)b`,
		`\d+-\d+`, `[[:upper:]]\s`, `$`, `^`, `(?m)^b`, `a|b|`, `((a)|b)+`, `(?<!a)b`}
	texts := []string{"", "a", "b", "aab", "abc", "abcd", "aabbcc", "xyz xy", "b\nb", "AAB", "12-34", "A ", "abab", "aaab", "é", "ba\n"}
	for _, p := range patterns {
		r, err := CompileFind(p, "")
		if err != nil {
			t.Fatal(p, err)
		}
		tr, err := parseTree(p, "", false, false)
		if err != nil {
			t.Fatal(p, err)
		}
		for _, s := range texts {
			want, _ := r.Find([]byte(s), 0)
			got, err := tr.find([]byte(s), 0)
			if fmt.Sprint(got) != fmt.Sprint(want) || err != nil {
				t.Errorf("/%s/ on %q: %v, %v, other engines %v", p, s, got, err, want)
			}
		}
	}
}
