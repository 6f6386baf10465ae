package regex

import (
	"strings"
	"testing"
)

var benchText = strings.Repeat("The quick brown fox jumps over the lazy dog, 42 times; mail to someone@example.org or see https://example.com/a?b=c. ", 8) +
	"Final words: repeat repeat, and code ABC-1234 done"

var benches = []struct{ name, pattern, options string }{
	{"literal", `code ABC`, ""},
	{"ignoring case", `CODE abc`, "i"},
	{"prefix then class", `code [A-Z]+-\d+`, ""},
	{"alternation", `(?:zebra|yak|code|wolf) [A-Z]`, ""},
	{"lookahead", `\w+(?= done)`, ""},
	{"negative lookahead", `ABC-(?!99)\d+`, ""},
	{"lookbehind", `(?<=code )[A-Z]{3}`, ""},
	{"back-reference", `\b(\w+) \1\b`, ""},
	{"lazy", `mail.*?done`, ""},
	{"lazy over lines", `code.*?done`, "s"},
	{"address", `[\w.]+@[\w.]+\.org`, ""},
	{"words at the end", `\w+$`, ""},
	{"all of several", `^(?=.*fox)(?=.*ABC)(?=.*done).*$`, "s"},
	{"class run", `[0-9]{4}`, ""},
	{"no match", `\d{5,}`, ""},
	{"anchored", `^The .*dog`, ""},
	{"possessive", `\w++-\d++ done`, ""},
}

func BenchmarkMatch(b *testing.B) {
	text := []byte(benchText)
	for _, c := range benches {
		r, err := Compile(c.pattern, c.options)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Match(text, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkFindAll(b *testing.B) {
	text := []byte(strings.Repeat(benchText, 20))
	r, err := Compile(`(\w)\w*`, "")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if err := r.FindAll(text, nil, func([]int) (bool, error) { return true, nil }); err != nil {
			b.Fatal(err)
		}
	}
}
