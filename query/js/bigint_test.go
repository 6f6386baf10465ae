package js

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func call(t *testing.T, src string) (value.Value, error) {
	t.Helper()
	f, err := Compile(src)
	if err != nil {
		return value.Value{}, err
	}
	return New().Call(f, value.Value{})
}

// BigInts have a million bits at most, however they come about.
func TestBigIntsAreBounded(t *testing.T) {
	for _, src := range []string{
		"var x = 3n; for (;;) x = x * x", "var x = 3n; for (;;) x *= x", "var o = {x: 3n}; for (;;) o.x *= o.x", "var o = [3n]; for (;;) o[0] *= o[0]",
		"var x = BigInt(3); for (;;) x = x ** 2n", "var x = 3n; for (;;) x **= 3n", "2n ** (1n << 40n)", "(-7n) ** 1000000n", "1n << (1n << 70n)", "1n << 1048576n", "1n >> -1048576n",
		"var x = 1n; for (;;) x <<= x", "var x = 1n; for (;;) x >>= -5000n", "2n ** 1048576n", "BigInt('9'.repeat(6e7))", "1n < '9'.repeat(6e7)", "'9'.repeat(6e7) == 1n",
		"({valueOf() { return '9'.repeat(6e7) }}) >= 1n", "BigInt.asIntN(64, '9'.repeat(6e7))", "BigInt.asUintN(64, '9'.repeat(6e7))", "BigInt.asUintN(9007199254740991, -1n)",
		"new DataView(new ArrayBuffer(8)).setBigInt64(0, '9'.repeat(6e7))", "var e = eval; e('var x = 3n; for (;;) x = x * x')", "eval('var x = 3n; for (;;) x = x * x')",
		"Function('x', 'for (;;) x = x * x')(3n)", "(function(){}).constructor('x', 'for (;;) x = x * x')(3n)", "Function('x = 3n', 'for (;;) x *= x')()",
		"var f = (x = 3n) => { for (;;) x = x * x }; f()", "class A { x = 2n ** 9999999n }; new A()", "class A { #x = 3n; f() { for (;;) this.#x *= this.#x } }; new A().f()",
		"var [x = 2n ** 9999999n] = []; x", "var {x = 2n ** 9999999n} = {}; x", "`${2n ** 9999999n}`", "switch (1) { case 2n ** 9999999n: }", "for (var x = 3n; ; x *= x);",
		"function* g() { var x = yield 3n; for (;;) x = x * x }; var i = g(); i.next(); i.next(5n)", "(function() { for (;;) this.x = this.x * this.x }).call({x: 3n})",
		"Object.defineProperty(globalThis, '\\0multiply', {value: (a, b) => a}); var x = 3n; for (;;) x = x * x", "Number = Math.trunc = Reflect.apply = null; var x = 3n; for (;;) x = x * x",
		"BigInt.prototype.constructor('9'.repeat(6e7))", "[1n, '9'.repeat(6e7)].map(BigInt)", "a: { var x = 3n; try { for (;;) x = x * x } finally { for (;;) x = x * x } }",
	} {
		// only the bound ends them: they are not killed
		if _, err := call(t, "function(){ "+src+"; return 1 }"); err == nil || !strings.Contains(err.Error(), "BigInt is too large to allocate") && !strings.Contains(err.Error(), "redefine") {
			t.Errorf("%s: %v", src, err)
		}
	}
	if _, err := call(t, "function(){ return 0x"+strings.Repeat("f", 300000)+"n }"); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a long literal: %.100v", err)
	}
	for _, src := range []string{"new BigInt64Array(1)", "new BigUint64Array(1)"} {
		if _, err := call(t, src); err == nil || !strings.Contains(err.Error(), "is not supported") {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// A function that does not mention BigInt has no way to one: it would compute with it without bounds.
func TestBigIntsStayAmongThemselves(t *testing.T) {
	for _, src := range []string{
		`typeof globalThis["Big" + "Int"] === "undefined" && typeof globalThis["Big" + "Int64Array"] === "undefined" && !(("getBig" + "Int64") in DataView.prototype)`,
		`(function() { try { return eval("3" + "n") } catch (e) { return e instanceof SyntaxError } })()`,
		`(function() { try { return Function("return 3" + "n")() } catch (e) { return e instanceof SyntaxError } })()`,
		`(function() { try { return (function*(){}).constructor("yield 3" + "n")().next().value } catch (e) { return e instanceof SyntaxError } })()`,
	} {
		if v, err := call(t, "function(){ return "+src+" }"); err != nil || !v.Truthy() {
			t.Errorf("%s: %v, %v", src, v, err)
		}
	}
	r := New()
	r.SetValue("seven", value.NewDouble(7))
	for _, c := range [][2]string{
		{"function(){ globalThis.left = x => x * x; return typeof globalThis['B' + 'igInt'] }", "undefined"},
		{"function(){ return typeof left + String(BigInt(seven) * 2n) }", "undefined14"},
		{"function(){ return String(left(seven)) }", "49"},
	} {
		f, err := Compile(c[0])
		if err != nil {
			t.Fatal(err)
		}
		if v, err := r.Call(f, value.Value{}); err != nil || v.Str() != c[1] {
			t.Errorf("%s: %v, %v, want %s", c[0], v, err, c[1])
		}
	}
}

// The operators of functions that use BigInt do what they did: the results are those of node.
func TestOperatorsBesideBigInt(t *testing.T) {
	for _, c := range [][2]string{
		{`return String(2n ** 64n - 1n)`, "18446744073709551615"},
		{`return [(-7n) / 2n, (-7n) % 2n, 7n << 3n, 7n >> 1n, -7n >> 1n, 1n << -1n, -1n >> 200n, 0n << (1n << 80n), -5n >> (1n << 80n)].join()`, "-3,-1,56,3,-4,0,-1,0,-1"},
		{`return [1n + BigInt(2), 5n > 4, 5n == 5, 5n === 5, 2n < '3', '4' >= 5n, 1n != '1', null == 0n, undefined != 1n, [1n] == 1n, 'x' == 1n, 'x' < 1n].join()`, "3,true,true,false,true,false,false,false,true,true,false,false"},
		{`return 'a' + 1n + 2 + [3] + {}`, "a123[object Object]"},
		{`return [1 + 2 + (3 - '1'), '7' * '6', 2 ** 10, 1 << 5, -9 >> 1, 0n].join()`, "5,42,1024,32,-5,0"},
		{`var o = {n: 0, get a() { this.n++; return this.b }, b: {v: 2n}}; o.a.v += 5n; var l = []; (l.push(1), l)[(l.push(2), 0)] *= (l.push(3), 4); return String(o.n) + o.b.v + l`, "174,2,3"},
		{`var s = ''; for (var i = 0; i < 3; i++) s += i; var d = {}; d.x = 5; d.x -= 2; d['x'] <<= 3; return s + d.x + 0n`, "012240"},
		{`return [BigInt.asUintN(8, 257n), BigInt.asIntN(8, 255n), BigInt.asUintN(2**53 - 1, 5n), BigInt.asIntN(0, 5n), BigInt('0x1f'), BigInt('  12 '), BigInt(true), typeof BigInt(1), BigInt.name].join()`, "1,-1,5,0,31,12,1,bigint,BigInt"},
		{`return [() => 1n + 1, () => BigInt(1.5), () => BigInt('x'), () => 1n / 0n, () => 2n ** -1n, () => new BigInt(1), () => +1n, () => Math.max(1n), () => BigInt.asUintN(-1, 1n), () => BigInt(Symbol()), () => BigInt(undefined), () => null.x += 1n, () => Symbol() * 1n].map(f => { try { return f() } catch (e) { return e.name } }).join()`, "TypeError,RangeError,SyntaxError,RangeError,RangeError,TypeError,TypeError,TypeError,RangeError,TypeError,TypeError,TypeError,TypeError"},
		{`return [1n ** (1n << 100n), (-1n) ** ((1n << 100n) + 1n), 0n ** 5n, 5n ** 0n, (-2n) ** 3n].join()`, "1,-1,0,1,-8"},
		{`return [new Date(5) - new Date(2), new Date(5) > new Date(2), ({valueOf() { return 3n }}) * 2n, ({toString() { return '4' }}) + 1n, ({[Symbol.toPrimitive](h) { return h }}) + 1n].join()`, "3,true,6,41,default1"},
		{`return [(0, eval)('var q = 6n; q * 7n'), String(q), (0, eval)('let z = 1n; z + 1n'), typeof z].join()`, "42,6,2,undefined"},
		{`return [Function('a', 'b', 'return a * b')(6n, 7n), new Function('return 1n')(), Function('a = 3n', 'return a + 1n')(), (function*(){}).constructor('yield 1n * 2n')().next().value].join()`, "42,1,4,2"},
		{`class A { #p = 2n; static s = 1n + 1n; get v() { return this.#p } add(x) { this.#p += x; return this } } return String(new A().add(3n).v + A.s)`, "7"},
		{`class A { get x() { return this.y } set x(v) { this.y = v } } class B extends A { f() { super.x = 4n; super.x *= 5n; return super.x } } return String(new B().f())`, "20"},
		{`var x = 1; x &&= 5; x ||= 6; x ??= 7; var y = 9n; y %= 5n; y |= 3n; y ^= 1n; y++; ++y; --y; y <<= 2n; y >>= 1n; y **= 2n; return [x, y, ~y, -y].join()`, "5,196,-197,-196"},
		{`return [10n, 9n, 1n].sort().join() + [3n, 1n, 2n].sort((a, b) => a < b ? -1 : 1).join()`, "1,10,91,2,3"},
		{`return Array.from({length: 3}, (_, i) => BigInt(i) * 2n).reduce((a, b) => a + b, 0n).toString(2)`, "110"},
		{`'use strict'; var t = 0n; for (const k of [1n, 2n, 3n]) { t += k } return t + typeof this`, "6undefined"},
		{`var h = 0xcbf29ce484222325n; for (const c of 'shoal') { h ^= BigInt(c.charCodeAt(0)); h = BigInt.asUintN(64, h * 0x100000001b3n) } return h.toString(16)`, "f65e4b48f75662be"},
		{`let i = 0n, out = []; outer: while (true) { do { i += 1n; if (i % 2n === 0n) continue outer; if (i > 6n) break outer; out.push(i) } while (i < 10n) } return out.join()`, "1,3,5"},
		{"var {a = 1n + 1n, ...r} = {b: 2n * 3n, c: `${1n + 2n}`}; return a + r.b + r.c", "83"},
		{`var f = async () => 1n + 2n; var log = []; try { throw 1n } catch (e) { log.push(e * 2n) } finally { log.push(3n - 1n) } return log.join()`, "2,2"},
		{`function* g() { var x = yield 1n; x *= 2n; yield x; } var i = g(); i.next(); return String(i.next(21n).value)`, "42"},
		{`return [...[1n, 2n], ...[3n * 4n]].map(x => x > 1n ? x : -x).join() + (1n ? 'y' : 'n') + (0n || 'z') + (void 0 ?? 5n)`, "-1,2,12yz5"},
		{"var o = {m: {n: 1n}}; o?.m.n; o.m.n += o?.m?.n; return o.m.n + `${o.m.n * 2n}`", "24"},
		{`switch (2n + 1n) { case 3n: return 'three'; default: return 'other' }`, "three"},
	} {
		if v, err := call(t, "function(){ "+c[0]+" }"); err != nil || v.Str() != c[1] {
			t.Errorf("%s: %v, %v, want %s", c[0], v, err, c[1])
		}
	}
}

// The parser reads the file that a source names as its source map: scripts may read no files.
func TestSourceMapsAreNotRead(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	var opened atomic.Int32
	go func() { // opens it each time that somebody reads it
		for {
			f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
			if err != nil {
				return
			}
			opened.Add(1)
			_ = f.Close()
		}
	}()
	for _, src := range []string{
		"function(){ return eval('1\\n//# sourceMappingURL=file://" + pipe + "') }", "function(){ return Function('return 1\\n//# sourceMappingURL=file://" + pipe + "')() }",
		"1\n//# sourceMappingURL=file://" + pipe, "function(){ return eval('1n\\n//# sourceMappingURL=file://" + pipe + "') }",
	} {
		_, _ = call(t, src)
	}
	if n := opened.Load(); n > 0 {
		t.Errorf("the file was opened %d times", n)
	}
	_ = os.Rename(pipe, pipe+".gone")
	if f, err := os.OpenFile(pipe+".gone", os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil { // ends the goroutine: it finds no pipe the next time
		_ = f.Close()
	}
}
