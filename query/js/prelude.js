// What the server's JavaScript offers beside the language.
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
// Scripts compare by (a, b) => a > b too, which never says that an element comes first: the comparison is asked the other
// way round, whether an element that stands behind another is to come before it.
["sort", "toSorted"].forEach(function (name) {
  var own = Array.prototype[name];
  Object.defineProperty(Array.prototype, name, { writable: true, configurable: true,
    value: function (by) {
      return typeof by === "function" ? own.call(this, function (a, b) { return 0 - by(b, a); }) : own.call(this, by);
    } });
});
// What runs natively cannot be interrupted, so what it may be asked to do at once is bounded.
(function () {
  var elements = 5e6, characters = 1 << 26, call = Reflect.apply, make = Reflect.construct;
  function refuse(size, most, what) { if (size > most) throw new RangeError("invalid " + what + " length: " + size); }
  function guard(on, names, check) {
    names.forEach(function (name) {
      var own = on[name];
      if (typeof own !== "function") return;
      Object.defineProperty(on, name, { writable: true, configurable: true,
        value: function () { check(this, arguments); return call(own, this, arguments); } });
    });
  }
  guard(Array.prototype, ["fill", "sort", "join", "toString", "toLocaleString", "concat", "reverse", "slice", "splice", "shift", "unshift", "indexOf", "lastIndexOf",
    "includes", "flat", "copyWithin", "with", "toSorted", "toReversed", "toSpliced"], function (self, args) {
    if (self === null || self === undefined) return;
    refuse(self.length, elements, "array");
    for (var i = 0; i < args.length; i++) if (Array.isArray(args[i])) refuse(args[i].length, elements, "array");
  });
  guard(Array, ["from"], function (self, args) { if (args[0] !== null && args[0] !== undefined) refuse(args[0].length, elements, "array"); });
  guard(String.prototype, ["repeat"], function (self, args) { refuse(String(self).length * Number(args[0]), characters, "string"); });
  guard(String.prototype, ["padStart", "padEnd"], function (self, args) { refuse(Number(args[0]), characters, "string"); });
  function list(at) { return function (self, args) { if (args[at] !== null && args[at] !== undefined) refuse(args[at].length, elements, "argument"); }; }
  guard(Function.prototype, ["apply"], list(1));
  guard(Reflect, ["apply"], list(2));
  guard(Reflect, ["construct"], list(1));
  ["Array", "ArrayBuffer", "Int8Array", "Uint8Array", "Uint8ClampedArray", "Int16Array", "Uint16Array", "Int32Array", "Uint32Array", "Float32Array", "Float64Array"].forEach(function (name) {
    var own = globalThis[name];
    if (typeof own !== "function") return;
    function bounded(n) {
      refuse(typeof n === "number" ? n : 0, elements, "array");
      return make(own, arguments, new.target || own);
    }
    Object.setPrototypeOf(bounded, own);
    bounded.prototype = own.prototype;
    Object.defineProperty(own.prototype, "constructor", { writable: true, configurable: true, value: bounded });
    Object.defineProperty(bounded, "name", { value: name });
    globalThis[name] = bounded;
  });
})();
// What recurses natively ends the process when its stack is full, and heeds no time limit: it is asked to go only so deep. A script may replace what
// the prototypes and globals have, and define setters there. So the checks use none of that: strings made by templates, members of
// literals, and what is captured here.
(function () {
  var deepest = 2000, shallow = shallowSource, depthOf = jsonDepth, parse = JSON.parse, stringify = JSON.stringify, call = Reflect.apply, make = Reflect.construct, run = eval, set = Object.defineProperty;
  delete globalThis.shallowSource;
  delete globalThis.jsonDepth;
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
  // names returns the member names that a list as replacer allows, each once.
  function names(list) {
    list = list.filter(function (k) { return typeof k === "string" || typeof k === "number" || k instanceof String || k instanceof Number; }).map(String);
    return list.filter(function (k, i) { return list.indexOf(k) === i; });
  }
  define(JSON, "stringify", function (x, replacer, space) {
    // Native code calls this for each member, with the object that has it: so it knows how many are open, and can be interrupted.
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
  define(globalThis, "eval", function (source) {
    if (typeof source === "string" && !shallow(source)) refuse();
    return run(source);
  });
  [function () {}, function* () {}, async function () {}].forEach(function (f) {
    var own = f.constructor;
    function bounded() {
      var n = arguments.length, params = "", body = "";
      for (var i = 0; i < n - 1; i++) params += `${i ? "," : ""}${arguments[i]}`;
      if (n) body = `${arguments[n - 1]}`;
      if (!shallow(`${params}\n${body}`)) refuse();
      return make(own, [params, body], new.target && new.target !== bounded ? new.target : own);
    }
    Object.setPrototypeOf(bounded, own);
    set(bounded, "prototype", { writable: false, value: own.prototype });
    set(bounded, "name", { value: own.name });
    define(own.prototype, "constructor", bounded);
    if (own === Function) define(globalThis, "Function", bounded);
  });
})();
