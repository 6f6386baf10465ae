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
