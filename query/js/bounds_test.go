package js

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// TestNativeWorkIsBounded: no single step of the interpreter runs without bounds.
func TestNativeWorkIsBounded(t *testing.T) {
	for _, src := range []string{
		"new Array(1e8).fill(1)", "var a = []; a.length = 1e8; a.fill(1)", "'x'.repeat(1e9)", "'x'.padEnd(1e9)", "new Uint8Array(8e9)", "new ArrayBuffer(8e9)",
		"Array.from({length: 1e9})", "Math.max.apply(null, {length: 1e9})", "Reflect.apply(Math.max, null, {length: 1e9})",
		"var a = []; a.length = 1e9; a.join('x')", "var a = []; a.length = 4e9; a.sort()",
	} {
		f, err := Compile("function(){ " + src + "; return 1 }")
		if err != nil {
			t.Fatal(src, err)
		}
		if _, err := New().Call(f, value.Value{}); err == nil || !strings.Contains(err.Error(), "RangeError") {
			t.Errorf("%s: %v", src, err)
		}
	}
	f, err := Compile(`function(){
		var a = new Array(3).fill(2), b = Array.of(1, 2), c = new Uint8Array([1, 2, 3]);
		class Own extends Array {}
		return [a.constructor === Array, a instanceof Array, [] instanceof Array, Array.isArray(a), b.concat([3]).join("-"), c.length, c instanceof Uint8Array,
			new Own(2).length, new Own() instanceof Own, "ab".repeat(2), [3, 1, 2].sort().join(), [..."xyz"].reverse().join(""), Math.max.apply(null, [1, 5, 3]), Array.from("ab").length].join(" ");
	}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := New().Call(f, value.Value{})
	if want := "true true true true 1-2-3 3 true 2 true abab 1,2,3 zyx 5 2"; err != nil || got.Str() != want {
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
