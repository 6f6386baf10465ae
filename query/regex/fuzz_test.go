package regex

import "testing"

// FuzzRegex: no pattern may do worse than fail to compile, or to match within its time.
func FuzzRegex(f *testing.F) {
	for _, s := range []string{"^a.b$", "(a+)+$", "(?<n>x)\\k<n>", "[[:alpha:]]\\d", "\\Qa.b\\E", "(?i)x(?-i)y", "a{2,5}?", "(?<=a)b", "(?>a+)b", "\\p{Lu}\\X", "[a-", "(((((", "(?#c)", "\\R", "(?|a|b)", "(?1)", "(a)(?1)*(*SKIP)b", "(?(R)a|(?R)?b)"} {
		f.Add(s, "ims", "aaaaaaaaaaaaaaaaaaaaaaaaab")
	}
	f.Fuzz(func(t *testing.T, pattern, options, subject string) {
		if len(pattern) > 200 || len(subject) > 2000 {
			return
		}
		for _, compile := range []func(string, string) (*Regexp, error){Compile, Compile} {
			r, err := compile(pattern, options)
			if err != nil {
				continue
			}
			_, _ = r.Match([]byte(subject), &stopAfter{20})
			r.Prefix()
		}
		r, err := Compile(pattern, options)
		if err != nil {
			return
		}
		r.Groups()
		at := -1
		_ = r.FindAll([]byte(subject), &stopAfter{20}, func(loc []int) (bool, error) {
			if loc[0] < at || loc[1] > len(subject) || loc[0] > loc[1] {
				t.Errorf("%q in %q: %v", pattern, subject, loc)
			}
			at = loc[0]
			return true, nil
		})
	})
}
