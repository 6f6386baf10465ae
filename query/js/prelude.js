// What the server's JavaScript offers in addition to the language.
Array.sum = function (a) { var s = 0; for (var i = 0; i < a.length; i++) s += Number(a[i]); return s; };
Array.avg = function (a) { return a.length ? Array.sum(a) / a.length : null; };
Array.contains = function (a, x) { return a.indexOf(x) >= 0; };
Array.unique = function (a) { return a.filter(function (x, i) { return a.indexOf(x) === i; }); };
Array.tojson = function (a) { return JSON.stringify(a); };
Object.extend = function (to, from) { for (var k in from) to[k] = from[k]; return to; };
Object.keySet = function (o) { return Object.keys(o); };
function tojson(x, indent, oneline) {
  var text = tojsonObject(x, indent, oneline);
  // A short document stands on one line, unless it is part of another.
  return indent || oneline || text.length >= 80 ? text : text.replace(/[\t\n]+/g, " ");
}
function tojsonObject(x, indent, oneline) {
  if (x === undefined || x === null) return String(x);
  switch (typeof x) {
  case "string": return JSON.stringify(x);
  case "object": break;
  default: return String(x);
  }
  if (x instanceof Date) return 'ISODate("' + x.toISOString().replace(".000Z", "Z") + '")';
  if (x instanceof RegExp) return String(x);
  if (typeof x.tojson === "function") return x.tojson();
  indent = indent || "";
  var list = Array.isArray(x), next = oneline ? "" : indent + "\t", sep = oneline ? " " : "\n", parts = [];
  if (list) for (var i = 0; i < x.length; i++) parts.push(next + tojsonObject(x[i], next, oneline));
  else for (var k in x) if (typeof x[k] !== "function") parts.push(next + JSON.stringify(k) + " : " + tojsonObject(x[k], next, oneline));
  if (!parts.length) return list ? "[ ]" : "{ }";
  return (list ? "[" : "{") + sep + parts.join("," + sep) + sep + (oneline ? "" : indent) + (list ? "]" : "}");
}
function tojsononeline(x) { return tojson(x, "", true); }
function print() {}
function printjson() {}
function printjsononeline() {}
function gc() {}
function doassert(msg) { throw new Error(typeof msg === "object" ? tojson(msg) : msg); }
function DBRef(ns, id, db) {
  if (!(this instanceof DBRef)) return new DBRef(ns, id, db);
  this.$ref = ns; this.$id = id;
  if (db !== undefined) this.$db = db;
}
function assert(ok, msg) { if (!ok) throw new Error(msg || "assert failed"); }
function isNumber(x) { return typeof x === "number" || x instanceof NumberLong || x instanceof NumberDecimal; }
function isString(x) { return typeof x === "string"; }
function isObject(x) { return typeof x === "object" && x !== null && !Array.isArray(x); }
function ISODate(s) { return s === undefined ? new Date() : new Date(s); }
// Scripts also compare by (a, b) => a > b, which never says that an element comes first. So the comparison is called the
// other way round, to ask whether a later element is to come before an earlier one.
["sort", "toSorted"].forEach(function (name) {
  var own = Array.prototype[name];
  Object.defineProperty(Array.prototype, name, { writable: true, configurable: true,
    value: function (by) {
      return typeof by === "function" ? own.call(this, function (a, b) { return 0 - by(b, a); }) : own.call(this, by);
    } });
});
// Native code cannot be interrupted, so the work that one call of it may do is bounded.
(function () {
  var elements = 5e6, characters = 1 << 26, call = Reflect.apply, make = Reflect.construct, isArray = Array.isArray;
  function refuse(size, most, what) { if (size > most) throw new RangeError("invalid " + what + " length: " + size); }
  function guard(on, names, check) {
    names.forEach(function (name) {
      var own = on[name];
      if (typeof own !== "function") return;
      Object.defineProperty(on, name, { writable: true, configurable: true,
        value: function () { check(this, arguments); return call(own, this, arguments); } });
    });
  }
  guard(Array.prototype, ["fill", "sort", "toString", "concat", "reverse", "slice", "splice", "shift", "unshift", "indexOf", "lastIndexOf",
    "includes", "copyWithin", "with", "toSorted", "toReversed", "toSpliced",
    "forEach", "map", "filter", "some", "every", "reduce", "reduceRight", "find", "findIndex", "findLast", "findLastIndex", "flatMap"], function (self, args) {
    if (self === null || self === undefined) return;
    var total = self.length;
    refuse(total, elements, "array");
    for (var i = 0; i < args.length; i++) if (isArray(args[i])) refuse(total += args[i].length, elements, "array");
  });
  guard(Array, ["from"], function (self, args) { if (args[0] !== null && args[0] !== undefined) refuse(args[0].length, elements, "array"); });
  guard(String.prototype, ["repeat"], function (self, args) { refuse(String(self).length * Number(args[0]), characters, "string"); });
  // Functions that make one string of many are measured piece by piece: the pieces may all be the same long string.
  function instead(on, name, make) {
    var own = on[name];
    if (typeof own === "function") Object.defineProperty(on, name, { writable: true, configurable: true, value: make(own) });
  }
  var joining = []; // the arrays that are being joined: one within itself is empty
  function joins(text) {
    return function (own) {
      return function (sep) {
        if (this === null || this === undefined) return call(own, this, arguments);
        for (var k = 0; k < joining.length; k++) if (joining[k] === this) return "";
        refuse(this.length, elements, "array");
        var between = sep === undefined || text ? "," : `${sep}`, n = this.length >>> 0, size = 0, parts = new list0(n);
        joining[joining.length] = this;
        try {
          for (var i = 0; i < n; i++) {
            var e = this[i], t = e === null || e === undefined ? "" : text ? `${e.toLocaleString()}` : typeof e === "string" ? e : `${e}`;
            refuse(size += t.length + between.length, characters, "string");
            parts[i] = t;
          }
        } finally {
          joining.length--;
        }
        return call(join, parts, [between]);
      };
    };
  }
  var list0 = Array, join = Array.prototype.join;
  instead(Array.prototype, "join", joins(false));
  instead(Array.prototype, "toLocaleString", joins(true));
  function flat(to, from, depth) {
    for (var i = 0, n = from.length; i < n; i++) {
      if (!(i in from)) continue;
      if (depth >= 1 && isArray(from[i])) flat(to, from[i], depth - 1);
      else refuse((to[to.length] = from[i], to.length), elements, "array");
    }
    return to;
  }
  instead(Array.prototype, "flat", function (own) {
    return function (depth) { return isArray(this) ? flat([], this, depth === undefined ? 1 : Number(depth)) : call(own, this, arguments); };
  });
  instead(Array.prototype, "flatMap", function (own) {
    var map = Array.prototype.map;
    return function () { return isArray(this) ? flat([], call(map, this, arguments), 1) : call(own, this, arguments); };
  });
  // replacement returns the replacement of one match, in which it expands $ as the language does.
  function replacement(text, args) {
    var groups = typeof args[args.length - 1] === "object" ? args[args.length - 1] : undefined, last = args.length - (groups ? 2 : 1);
    var whole = args[last], at = args[last - 1], match = args[0], n = last - 2, out = "";
    for (var i = 0; i < text.length; i++) {
      var c = "$", next = call(indexOf, text, ["$", i]), d, end, name;
      if (next < 0) return out + call(slice, text, [i]);
      out += call(slice, text, [i, next]);
      d = text[(i = next) + 1];
      if (d === undefined) return out + c;
      if (d === "$") { out += "$"; i++; }
      else if (d === "&") { out += match; i++; }
      else if (d === "`") { out += call(slice, whole, [0, at]); i++; }
      else if (d === "'") { out += call(slice, whole, [at + match.length]); i++; }
      else if (d >= "0" && d <= "9") {
        var e = text[i + 2], two = e >= "0" && e <= "9" ? 10 * d + 1 * e : 0, one = 1 * d;
        if (two >= 1 && two <= n) { out += args[two] === undefined ? "" : args[two]; i += 2; }
        else if (one >= 1 && one <= n) { out += args[one] === undefined ? "" : args[one]; i++; }
        else out += c;
      } else if (d === "<" && groups && (end = call(indexOf, text, [">", i + 2])) >= 0) {
        name = groups[call(slice, text, [i + 2, end])];
        out += name === undefined ? "" : `${name}`;
        i = end;
      } else out += c;
      refuse(out.length, characters, "string");
    }
    return out;
  }
  var slice = String.prototype.slice, indexOf = String.prototype.indexOf;
  function replaces(subject, by) { // by: the position of the replacement among the arguments
    return function (own) {
      return function () {
        var args = [arguments[0], arguments[1]], text = subject(this, args), with_ = args[by], size = 0;
        if (typeof with_ !== "function") {
          with_ = args[by] = `${with_}`;
          if ((text.length + 1) * with_.length <= characters && call(indexOf, with_, ["$"]) < 0) return call(own, this, args);
        }
        refuse(text.length, characters / 4, "string");
        args[by] = function () {
          var t = typeof with_ === "function" ? `${call(with_, undefined, arguments)}` : replacement(with_, arguments);
          refuse(size += t.length, characters, "string");
          return t;
        };
        return call(own, this, args);
      };
    };
  }
  function itself(self) { return `${self}`; }
  instead(String.prototype, "replace", replaces(itself, 1));
  instead(String.prototype, "replaceAll", replaces(itself, 1));
  instead(RegExp.prototype, Symbol.replace, replaces(function (self, args) { return args[0] = `${args[0]}`; }, 1));
  instead(String.prototype, "split", function (own) {
    return function (by, limit) {
      var parts = call(own, this, [by, limit === undefined ? elements + 1 : limit]);
      refuse(parts.length, elements, "array");
      return parts;
    };
  });
  guard(String.prototype, ["match", "matchAll"], function (self) { refuse(`${self}`.length, elements, "string"); });
  guard(String.prototype, ["concat"], function (self, args) {
    var total = `${self}`.length;
    for (var i = 0; i < args.length; i++) refuse(total += typeof args[i] === "string" ? args[i].length : 0, characters, "string");
  });
  guard(Object, ["keys", "values", "entries", "getOwnPropertyNames", "getOwnPropertyDescriptors", "assign"], function (self, args) {
    for (var i = 0; i < args.length; i++) if (typeof args[i] === "string" || args[i] instanceof String) refuse(args[i].length, elements, "array");
  });
  guard(String.prototype, ["padStart", "padEnd"], function (self, args) { refuse(Number(args[0]), characters, "string"); });
  guard(globalThis, ["parseFloat"], function (self, args) { refuse(typeof args[0] === "string" ? args[0].length : 0, characters / 64, "string"); });
  guard(String, ["raw"], function (self, args) {
    var raw = args[0] === null || args[0] === undefined ? undefined : args[0].raw, size = 0;
    if (raw === null || raw === undefined) return;
    refuse(raw.length, elements, "array");
    for (var i = 0; i < raw.length; i++) refuse(size += typeof raw[i] === "string" ? raw[i].length : 0, characters, "string");
  });
  guard(Reflect, ["ownKeys"], function (self, args) { if (args[0] instanceof String) refuse(args[0].length, elements, "string"); });
  function list(at) { return function (self, args) { if (args[at] !== null && args[at] !== undefined) refuse(args[at].length, elements, "argument"); }; }
  guard(Function.prototype, ["apply"], list(1));
  guard(Reflect, ["apply"], list(2));
  guard(Reflect, ["construct"], list(1));
  // An operation on a proxy recurses natively to its target, which may be a proxy or have one as its prototype, and so on: their number is limited. So
  // does a call of a bound function, whose target may be bound, too; since a target never changes, the depth is known at bind.
  (function () {
    var own = Proxy, revocable = Proxy.revocable, proxies = 0, most = 1e5;
    function counted() { if (++proxies > most) throw new RangeError("too many proxies"); }
    function bounded(target, handler) {
      if (new.target === undefined) return own(target, handler); // which fails
      counted();
      return new own(target, handler);
    }
    Object.defineProperty(bounded, "name", { value: "Proxy" });
    bounded.prototype = undefined;
    Object.defineProperty(bounded, "revocable", { writable: true, configurable: true, value: function (target, handler) {
      counted();
      return revocable(target, handler);
    } });
    Object.defineProperty(globalThis, "Proxy", { writable: true, configurable: true, value: bounded });
    var bound = new WeakMap(), get = bound.get, put = bound.set;
    instead(Function.prototype, "bind", function (own) {
      return function () {
        var f = call(own, this, arguments), n = (call(get, bound, [this]) || 0) + 1;
        if (n > 1000) throw new RangeError("too much recursion");
        call(put, bound, [f, n]);
        return f;
      };
    });
  })();
  // Native code that takes all elements of an iterator, as a spread does, can be interrupted between two of them.
  [[][Symbol.iterator](), ""[Symbol.iterator]()].forEach(function (of) {
    instead(Object.getPrototypeOf(of), "next", function (own) { return function () { return call(own, this, []); }; });
  });
  // Generators that run others recurse natively, beside the stack of calls: they are counted.
  (function () {
    var proto = Object.getPrototypeOf(function* () {}).prototype, depth = 0, most = 1000;
    ["next", "return", "throw"].forEach(function (name) {
      instead(proto, name, function (own) {
        return function (value) {
          if (depth >= most) throw new RangeError("too much recursion");
          depth++;
          try {
            return call(own, this, arguments.length ? [value] : []);
          } finally {
            depth--;
          }
        };
      });
    });
  })();
  ["Array", "ArrayBuffer", "Int8Array", "Uint8Array", "Uint8ClampedArray", "Int16Array", "Uint16Array", "Int32Array", "Uint32Array", "Float32Array", "Float64Array"].forEach(function (name) {
    var own = globalThis[name];
    if (typeof own !== "function") return;
    function bounded(n) {
      refuse(typeof n === "number" ? n : n !== null && typeof n === "object" && n.length !== undefined ? n.length : 0, elements, "array");
      return make(own, arguments, new.target || own);
    }
    Object.setPrototypeOf(bounded, own);
    bounded.prototype = own.prototype;
    Object.defineProperty(own.prototype, "constructor", { writable: true, configurable: true, value: bounded });
    Object.defineProperty(bounded, "name", { value: name });
    globalThis[name] = bounded;
  });
})();
// Native recursion ends the process when its stack is full, and ignores the time limit: its depth is limited. A script may replace what the prototypes
// and globals have, and define setters there. So the checks use only strings made by templates, members of literals, and what is captured here.
(function () {
  var deepest = 2000, shallow = shallowSource, big = bigSource, depthOf = jsonDepth, parse = JSON.parse, stringify = JSON.stringify, call = Reflect.apply, make = Reflect.construct, run = eval, set = Object.defineProperty;
  delete globalThis.shallowSource;
  delete globalThis.jsonDepth;
  delete globalThis.bigSource;
  function refuse() { throw new RangeError("too much recursion"); }
  function define(on, name, value) { set(on, name, { writable: true, configurable: true, value: value }); }
  function put(on, name, value) { set(on, name, { writable: true, configurable: true, enumerable: true, value: value }); }
  function revive(holder, key, reviver) {
    var v = holder[key];
    if (v !== null && typeof v === "object") Object.keys(v).forEach(function (k) {
      var now = revive(v, k, reviver);
      if (now === undefined) delete v[k];
      else put(v, k, now);
    });
    return call(reviver, holder, [key, v]);
  }
  define(JSON, "parse", function (text, reviver) {
    text = `${text}`;
    if (depthOf(text) > deepest) refuse();
    var v = parse(text);
    return typeof reviver === "function" ? revive({ "": v }, "", reviver) : v;
  });
  // names returns the member names that a replacer that is a list allows, each once.
  function names(list) {
    list = list.filter(function (k) { return typeof k === "string" || typeof k === "number" || k instanceof String || k instanceof Number; }).map(String);
    return list.filter(function (k, i) { return list.indexOf(k) === i; });
  }
  define(JSON, "stringify", function (x, replacer, space) {
    // Native code calls this for each member, on the object that has it: so the depth is known, and the script can be interrupted.
    var open = { holder: undefined, outer: null, depth: 0 }, last, list = Array.isArray(replacer) ? names(replacer) : null;
    return stringify(x, function (k, v) {
      if (this === last && this !== open.holder) open = { holder: this, outer: open, depth: open.depth + 1 };
      else while (open.depth && open.holder !== this) open = open.outer;
      if (open.depth > deepest) refuse();
      if (typeof replacer === "function") v = call(replacer, this, [k, v]);
      else if (list && v !== null && typeof v === "object" && !Array.isArray(v) && !(v instanceof String || v instanceof Number || v instanceof Boolean)) {
        var all = v;
        v = {};
        list.forEach(function (k) { if (all[k] !== undefined) put(v, k, all[k]); });
      }
      last = v;
      return v;
    }, space);
  });
  function bigless(source) { if (big(source)) throw new SyntaxError("BigInt in a text, of a function that does not mention BigInt"); }
  define(globalThis, "eval", function (source) {
    if (typeof source !== "string") return source;
    if (!shallow(source)) refuse();
    bigless(source);
    return run(source);
  });
  [[function () {}, "function"], [function* () {}, "function*"], [async function () {}, "async function"]].forEach(function (f) {
    var own = f[0].constructor, kind = f[1];
    function bounded() {
      var n = arguments.length, params = "", body = "";
      for (var i = 0; i < n - 1; i++) params += `${i ? "," : ""}${arguments[i]}`;
      if (n) body = `${arguments[n - 1]}`;
      if (!shallow(`${params}\n${body}`)) refuse();
      bigless(`(${kind} anonymous(${params}\n) {\n${body}\n})`);
      return make(own, [params, body], new.target && new.target !== bounded ? new.target : own);
    }
    Object.setPrototypeOf(bounded, own);
    set(bounded, "prototype", { writable: false, value: own.prototype });
    set(bounded, "name", { value: own.name });
    define(own.prototype, "constructor", bounded);
    if (own === Function) define(globalThis, "Function", bounded);
  });
})();
