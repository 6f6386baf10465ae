package js

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// deepSources are scripts whose nesting would take all the stack that a process may have, which nothing recovers from.
func deepSources() map[string]string {
	const n = 3000000
	r := strings.Repeat
	in := func(code string) string { return "function(){ return " + code + " }" }
	return map[string]string{
		"parentheses": in(r("(", n) + "1" + r(")", n)), "brackets": in(r("[", n) + r("]", n)), "objects": in(r("{a:", n) + "1" + r("}", n)), "not": in(r("!", n) + "1"),
		"sum": in("1" + r("+1", n)), "arrows": in(r("a=>", n) + "1"), "conditions": in(r("a?b:", n) + "1"), "ifs": "function(){ " + r("if(1)", n) + "; }",
		"else": "function(){ " + r("if(1);else ", n) + "; }", "templates": in(r("`${", n) + "1" + r("}`", n)), "members": in("a" + r(".a", n)), "calls": in("a" + r("()", n)),
		"behind a quote in a pattern": in(r("/'/,", 10) + r("(", n) + "'"), "behind a pattern after a block": "function(){ {}/'/; " + r("(", n) + "'/1 }",
		"behind a comment's end": "function(){ // \u2028" + r("(", n) + "\n}",
		"eval":                   in(`eval("(".repeat(2e6))`), "eval of brackets": in(`eval("[".repeat(2e6) + "]".repeat(2e6))`), "Function": in(`Function("return " + "[".repeat(2e6))`),
		"a constructor": in(`(function(){}).constructor("return " + "[".repeat(2e6))`), "of generators": in(`(function*(){}).constructor("return " + "[".repeat(2e6))`),
		"of async functions": in(`(async function(){}).constructor("return " + "[".repeat(2e6))`), "JSON.parse": in(`JSON.parse("[".repeat(3000000))`),
		"JSON.parse of objects":   in(`JSON.parse('{"a":'.repeat(3000000))`),
		"reviver":                 in(`(function(){ var done; return JSON.parse("[0,0]", function(k, v) { if (!done) { done = true; var a = []; for (var i = 0; i < 1000000; i++) a = [a]; this[1] = a; } return v }) })()`),
		"Function of many parts":  in(`Function.apply(null, Array.from({length: 1000}, function() { return "(".repeat(8000) }))`),
		"forEach does nothing":    in(`(function(){ Array.prototype.forEach = function() {}; return Function("return " + "[".repeat(2e6)) })()`),
		"map lies":                in(`(function(){ var n = 0; Array.prototype.map = function() { return [{toString: function() { return n++ ? "[".repeat(2e6) : "1" }}] }; return Function("[".repeat(2e6)) })()`),
		"String lies":             in(`(function(){ var n = 0; String = function() { return {toString: function() { return n++ ? "[".repeat(3e6) : "1" }} }; return JSON.parse({toString: function() { return n++ ? "1" : "[".repeat(3e6) }}) })()`),
		"push does nothing":       in(`(function(){ Array.prototype.push = function() {}; function o() { return { get a() { return o() } } } return JSON.stringify(o()).length })()`),
		"setters":                 in(`(function(){ Object.defineProperty(Array.prototype, "0", {set: function() {}, get: function() { return "[".repeat(2e6) }}); return Function("[".repeat(2e6), "1") })()`),
		"JSON.stringify":          in(`(function(){ var a = []; for (var i = 0; i < 300000; i++) a = [a]; return JSON.stringify(a).length })()`),
		"generators":              in(`(function(){ function* g() { yield* g() } return g().next() })()`),
		"generators in loops":     in(`(function(){ function* g() { for (var x of g()) yield x } return [...g()].length })()`),
		"proxies":                 in(`(function(){ var p = {}; for (var i = 0; i < 2000000; i++) p = new Proxy(p, {}); p.x = 1 })()`),
		"proxies as prototypes":   in(`(function(){ var p = {}; for (var i = 0; i < 2000000; i++) p = {__proto__: Proxy.revocable(p, {}).proxy}; p.x = 1 })()`),
		"prototypes":              in(`(function(){ var p = {}; for (var i = 1; i < 20000000; i++) { p = Object.create(p); if (i % 700000 === 0) p.x = 1; } })()`),
		"bound functions":         in(`(function(){ var f = function() {}; for (var i = 0; i < 2000000; i++) f = f.bind(null); f() })()`),
		"stringify, endless":      in(`(function(){ function o() { return { get a() { return o() } } } return JSON.stringify(o()).length })()`),
		"stringify with replacer": in(`JSON.stringify({a: 1}, function(k, v) { return { a: v } }).length`),
		"stringify with a list":   in(`(function(){ function o() { return { get a() { return o() } } } return JSON.stringify(o(), ["a"]).length })()`),
	}
}

// TestDeepScriptsAreRefused runs them in a process of their own.
func TestDeepScriptsAreRefused(t *testing.T) {
	const child = "SHOAL_DEEP_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDeepScriptsAreRefused$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all refused") {
			t.Fatalf("%v: %s", err, out[:min(len(out), 2000)])
		}
		return
	}
	for name, src := range deepSources() {
		f, err := Compile(src)
		if err == nil {
			begin := time.Now()
			_, err = New().Call(f, value.Value{})
			t.Logf("%s: %v, %v", name, time.Since(begin), err)
		}
		if err == nil || !strings.Contains(err.Error(), "too much recursion") && !strings.Contains(err.Error(), "too many proxies") && !strings.Contains(err.Error(), "out of memory") && !strings.Contains(err.Error(), "SyntaxError") {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	if !t.Failed() {
		t.Log("all refused")
	}
}

// TestJSONAndEvalDoAsBefore: scripts that stay within the bounds do not notice them.
func TestJSONAndEvalDoAsBefore(t *testing.T) {
	for src, want := range map[string]string{
		`JSON.stringify({a: [1, {b: "x"}], c: undefined, d: null, e: function() {}})`:                                                                        `{"a":[1,{"b":"x"}],"d":null}`,
		`(function() { var o = {z: 1}; return JSON.stringify({a: o, b: [o, o], c: {}, d: o}) })()`:                                                           `{"a":{"z":1},"b":[{"z":1},{"z":1}],"c":{},"d":{"z":1}}`,
		`JSON.stringify({b: 2, a: {a: 1, c: 3}, c: [{a: 1, d: 2}]}, ["a", "b", "c", "a"])`:                                                                   `{"a":{"a":1,"c":3},"b":2,"c":[{"a":1}]}`,
		`JSON.stringify({a: 1, b: [1, 2]}, function(k, v) { return typeof v === "number" ? v + 1 : v })`:                                                     `{"a":2,"b":[2,3]}`,
		`JSON.stringify([1, [2]], null, 1)`:                                                                                                                  "[\n 1,\n [\n  2\n ]\n]",
		`JSON.stringify("x") + JSON.stringify(undefined) + JSON.stringify(new Date(0))`:                                                                      `"x"undefined"1970-01-01T00:00:00.000Z"`,
		`(function() { var o = {}; o.o = o; try { JSON.stringify(o) } catch (e) { return e.name } })()`:                                                      `TypeError`,
		`JSON.stringify(JSON.parse('{"a": [1, 2], "b": {"c": 3}}', function(k, v) { return k === "c" ? undefined : typeof v === "number" ? v * 2 : v }))`:    `{"a":[2,4],"b":{}}`,
		`String(eval("1 + 2")) + eval(7) + new Function("a", "b", "return a + b")(1, 2) + Function("return 5")()`:                                            `3735`,
		`new Function("a", "b = 2", "return a + b")(1) + Function("a,b", "c", "return a + b + c")(1, 2, 3) + String(Function()())`:                           `9undefined`,
		`[(function(){}).constructor === Function, Function instanceof Function, (() => 1) instanceof Function, Function.name, typeof shallowSource].join()`: `true,true,true,Function,undefined`,
	} {
		f, err := Compile("function(){ return " + src + " }")
		if err != nil {
			t.Fatal(src, err)
		}
		if got, err := New().Call(f, value.Value{}); err != nil || got.Str() != want {
			t.Errorf("%s: %v, %v, want %s", src, got, err, want)
		}
	}
}

// TestLongSources: what people write is no deeper than allowed, however long.
func TestLongSources(t *testing.T) {
	r := strings.Repeat
	for name, src := range map[string]string{
		"statements": "function(){ " + r("var a = (1 + 2) * [3][0] / 4; if (a) { a = `x${a}`; } else { a = /['\"(]+/.test(\"it's\") }\n", 2000) + "return 1 }",
		"functions":  "function(){ " + r("function f(a, b) { return a / b / (a + b) / 2 } // don't\n/* (((' */", 1500) + "return 1 }",
		"table":      "function(){ var t = {" + r("\"k\": [1, 2, {\"x\": 'y'}],\n", 20000) + "}; return 1 }",
		"minified":   "function(){" + r("var e=(t+n)/(r-i),o=a.length/2,u=(c[0])/3;if(e)/x[/]y/.test(o);for(;o--;)e/=2;", 3000) + "return 1}",
	} {
		f, err := Compile(src)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if tooDeep(src[:len(src)-1]+";}") && len(src) < longestSource {
			t.Errorf("%s counts as too deep", name)
		}
		_ = f
	}
}
