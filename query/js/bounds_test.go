package js

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestNativeWorkIsBounded: no single step of the interpreter runs without bounds.
func TestNativeWorkIsBounded(t *testing.T) {
	for _, src := range []string{
		"new Array(1e8).fill(1)", "var a = []; a.length = 1e8; a.fill(1)", "'x'.repeat(1e9)", "'x'.padEnd(1e9)", "new Uint8Array(8e9)", "new ArrayBuffer(8e9)",
		"Array.from({length: 1e9})", "Math.max.apply(null, {length: 1e9})", "Reflect.apply(Math.max, null, {length: 1e9})",
		"Array(3000000).join('x'.repeat(1000))", "Array(4e5).fill('y'.repeat(1000)).join('')", "Array(4e5).fill('y'.repeat(1000)).toString()", "`${Array(4e5).fill('y'.repeat(1000))}`",
		"Array(4e5).fill('y'.repeat(1000)).toLocaleString()", "'a'.repeat(1e6).replace(/a/g, 'x'.repeat(1e6))", "'a'.repeat(1e6).replaceAll('a', 'x'.repeat(1e6))",
		"'a'.repeat(1e6).replace(/a/g, '$`')", "'a'.repeat(1e5).replace(/a/g, function () { return 'x'.repeat(1e6) })", "/a/g[Symbol.replace]('a'.repeat(1e6), 'x'.repeat(1e6))",
		"'x'.repeat(6e7).split('')", "'x'.repeat(6e7).match(/x/g)", "''.concat.apply('', Array(4e5).fill('x'.repeat(1000)))", "var a = Array(4e6).fill(1); a.concat(a, a)",
		"Array(4000).fill(Array(4000).fill(1)).flat()", "Array(4000).fill(Array(4000).fill(1)).flatMap(x => x)", "Object.keys('x'.repeat(6e7))",
		"var a = []; a.length = 1e9; a.join('x')", "var a = []; a.length = 4e9; a.sort()",
	} {
		f, err := Compile("function(){ " + src + "; return 1 }")
		if err != nil {
			t.Fatal(src, err)
		}
		if _, err := New().Call(f, value.Value{}); err == nil || !strings.Contains(err.Error(), "RangeError") && mongoerr.CodeOf(err) != mongoerr.ExceededMemoryLimit { // noticed from outside, sooner or later
			t.Errorf("%s: %v", src, err)
		}
	}
	f, err := Compile(`function(){
		var a = new Array(3).fill(2), b = Array.of(1, 2), c = new Uint8Array([1, 2, 3]);
		class Own extends Array {}
		return [a.constructor === Array, a instanceof Array, [] instanceof Array, Array.isArray(a), b.concat([3]).join("-"), c.length, c instanceof Uint8Array,
			new Own(2).length, new Own() instanceof Own, "ab".repeat(2), [3, 1, 2].sort().join(), [..."xyz"].reverse().join(""), Math.max.apply(null, [1, 5, 3]), Array.from("ab").length].join(" ") + "|" + [
			"a-b".replace("-", "$$"), "abc".replace(/b/, "[$&$` + "`" + `$']"), "2026-11".replace(/(\d+)-(\d+)/, "$2/$1$3"), "ab".replace(/(?<x>a)/, "<$<x>>"), "aXbX".replaceAll("X", "$&$&"),
			"abc".replace(/[a-c]/g, function (m, at, all) { return m + at + all.length }), "a,b,c".split(",", 2).join("+"), [1, [2, [3, [4]]]].flat(2).length, [1, [2, [null, undefined]]].join(),
			"" + [[1, 2], [3]], [1.5, "x"].toLocaleString(), [1, 2].flatMap(x => [x, [x]]).length, "aab".match(/a/g).length, "x".concat(1, "y", null), (function () { var c = [1]; c.push(c); return c.join() })(),
			"$".replace("$", "$0$01"), "abab".replace(/(a)|(b)/g, "[$1$2]"),
		].join(" ");
	}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := New().Call(f, value.Value{})
	if want := "true true true true 1-2-3 3 true 2 true abab 1,2,3 zyx 5 2|a$b a[bac]c 11/2026$3 <a>b aXXbXX a03b13c23 a+b 4 1,2,, 1,2,3 1.5,x 4 2 x1ynull 1, $0$01 [a][b][a][b]"; err != nil || got.Str() != want {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
}

// TestPatternsOfScriptsEnd: a pattern that backtracks does not block a script forever.
func TestPatternsOfScriptsEnd(t *testing.T) {
	f, err := Compile("function(){ return /^(?=a)(a+)+\\1$/.test('" + strings.Repeat("a", 60) + "b') }")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New().Call(f, value.Value{}); err != nil {
		t.Error(err)
	}
}
