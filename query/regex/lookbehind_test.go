package regex

import (
	"errors"
	"testing"
)

func TestLookbehindLength(t *testing.T) {
	for p, bad := range map[string]bool{
		`(?<=a)b`: false, `(?<=a+)b`: true, `(?<!a*)b`: true, `(?<=a|bc)d`: false, `(?<=a{2})b`: false, `(?<=a{2,3})b`: true,
		`(?<=[+*])b`: false, `(?<=\+)b`: false, `(?<=(?:ab))c`: false, `(?<=(a?))c`: true, `(?<=a)b+`: false, `(?=a+)(?<=b)c*`: false,
	} {
		_, err := CompileFind(p, "")
		var syntax *SyntaxError
		if errors.As(err, &syntax) != bad {
			t.Errorf("%s: %v", p, err)
		}
	}
}
