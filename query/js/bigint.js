// The operators of functions that use BigInt: see bigint.go. A script may replace what the prototypes and globals have, so these use what they
// have captured.
(function () {
  var bits = bigBits, evaluate = evaluateSource, shallow = shallowSource, most = 1 << 20, call = Reflect.apply, make = Reflect.construct, set = Object.defineProperty;
  var TooLarge = RangeError, WrongType = TypeError, toPrimitive = Symbol.toPrimitive, toNumber = Number, truncate = Math.trunc, own = BigInt;
  ["bigBits", "evaluateSource", "shallowSource"].forEach(function (name) { delete globalThis[name]; });
  function refuse() { throw new TooLarge("BigInt is too large to allocate"); }
  function sized(x) { if (typeof x === "bigint" && bits(x) > most) refuse(); return x; }
  function isObject(x) { return x !== null && (typeof x === "object" || typeof x === "function"); }
  function primitive(x, hint) {
    if (!isObject(x)) return x;
    var how = x[toPrimitive], v;
    if (how !== undefined && how !== null) {
      if (!isObject(v = call(how, x, [hint]))) return v;
    } else {
      if (typeof (how = x.valueOf) === "function" && !isObject(v = call(how, x, []))) return v;
      if (typeof (how = x.toString) === "function" && !isObject(v = call(how, x, []))) return v;
    }
    throw new WrongType("can't convert object to primitive type");
  }
  function numeric(x) { return typeof (x = primitive(x, "number")) === "bigint" ? x : +x; }
  function shift(a, by) { // to the left; to the right if negative
    if (by > 0n) {
      if (a !== 0n && (by > most || bits(a) + toNumber(by) > most)) refuse();
      return a === 0n ? a : a << by;
    }
    return by < -1048576n ? (a < 0n ? -1n : 0n) : a >> -by;
  }
  // readable refuses strings that would have to be read as a BigInt larger than allowed.
  function readable(a, b) {
    if (typeof a === "bigint" && typeof b === "string" && b.length > most || typeof b === "bigint" && typeof a === "string" && a.length > most) refuse();
  }
  function comparison(compare) {
    return function (a, b) {
      if (typeof a !== "number" || typeof b !== "number") {
        a = primitive(a, "number");
        readable(a, b = primitive(b, "number"));
      }
      return compare(a, b);
    };
  }
  function equal(a, b) {
    if (a === null || b === null || a === undefined || b === undefined) return a == b;
    if (isObject(a) !== isObject(b)) {
      a = primitive(a, "default");
      b = primitive(b, "default");
    }
    readable(a, b);
    return a == b;
  }
  function operands(onBigInts, onNumbers) {
    return function (a, b) {
      if (typeof a === "number" && typeof b === "number") return onNumbers(a, b);
      a = numeric(a);
      b = numeric(b);
      return typeof a === "bigint" && typeof b === "bigint" ? onBigInts(a, b) : onNumbers(a, b);
    };
  }
  var operators = {
    add: function (a, b) {
      if (typeof a === "number" && typeof b === "number" || typeof a === "string" && typeof b === "string") return a + b;
      a = primitive(a, "default");
      return sized(a + primitive(b, "default"));
    },
    subtract: operands(function (a, b) { return sized(a - b); }, function (a, b) { return a - b; }),
    multiply: operands(function (a, b) {
      if (bits(a) + bits(b) > most + 1) refuse();
      return sized(a * b);
    }, function (a, b) { return a * b; }),
    power: operands(function (a, b) {
      if (b > 1n && (a < -1n || a > 1n) && (b > most || (bits(a) - 1) * toNumber(b) >= most)) refuse();
      return sized(a ** b);
    }, function (a, b) { return a ** b; }),
    left: operands(shift, function (a, b) { return a << b; }),
    right: operands(function (a, by) { return shift(a, -by); }, function (a, b) { return a >> b; }),
    less: comparison(function (a, b) { return a < b; }),
    greater: comparison(function (a, b) { return a > b; }),
    lessOrEqual: comparison(function (a, b) { return a <= b; }),
    greaterOrEqual: comparison(function (a, b) { return a >= b; }),
    equal: equal,
    unequal: function (a, b) { return !equal(a, b); },
    member: function (on, key) {
      if (on === null || on === undefined) throw new WrongType("can't access property of " + on);
      if (isObject(key)) key = typeof (key = named(key)) === "symbol" ? key : `${key}`;
      return { on: on, key: key, value: on[key] };
    },
    assign: function (member, operator, operand) { return member.on[member.key] = operator(member.value, operand); },
  };
  function named(key) { // a property's key, evaluated once
    var how = key[toPrimitive], v;
    if (how !== undefined && how !== null) return primitive(key, "string");
    if (typeof (how = key.toString) === "function" && !isObject(v = call(how, key, []))) return v;
    return primitive(key, "string");
  }
  for (var name in operators) set(globalThis, "\0" + name, { value: operators[name] });

  function define(on, name, value) { set(on, name, { writable: true, configurable: true, value: value }); }
  function toBigInt(x) {
    x = primitive(x, "number");
    if (typeof x === "string" && x.length > most) refuse();
    if (typeof x === "number") throw new WrongType("can't convert " + x + " to BigInt");
    return sized(own(x));
  }
  var signed = own.asIntN, unsigned = own.asUintN;
  function bounded(x) {
    if (new.target !== undefined) throw new WrongType("BigInt is not a constructor");
    x = primitive(x, "number");
    return typeof x === "number" ? own(x) : toBigInt(x);
  }
  function width(n) {
    n = truncate(toNumber(n)) || 0;
    if (n < 0 || n > 9007199254740991) throw new TooLarge("invalid number of bits");
    return n;
  }
  define(bounded, "name", "BigInt");
  set(bounded, "prototype", { writable: false, value: own.prototype });
  define(bounded, "asIntN", function asIntN(n, x) {
    n = width(n);
    x = toBigInt(x);
    return n > most ? x : signed(n, x);
  });
  define(bounded, "asUintN", function asUintN(n, x) {
    n = width(n);
    x = toBigInt(x);
    if (n > most && x < 0n) refuse();
    return n > most ? x : unsigned(n, x);
  });
  define(own.prototype, "constructor", bounded);
  define(globalThis, "BigInt", bounded);
  // Not supported, because assigning a string of any length to an element of theirs would read it as a BigInt.
  ["BigInt64Array", "BigUint64Array"].forEach(function (name) {
    define(globalThis, name, function () { throw new WrongType(name + " is not supported"); });
  });
  ["setBigInt64", "setBigUint64"].forEach(function (name) {
    var own = DataView.prototype[name];
    define(DataView.prototype, name, function (at, x, little) { return call(own, this, [at, toBigInt(x), little]); });
  });

  // Code that is made from text has its operators replaced, too.
  function deep() { throw new TooLarge("too much recursion"); }
  define(globalThis, "eval", function (source) {
    if (typeof source !== "string") return source;
    if (!shallow(source)) deep();
    return evaluate(source);
  });
  [[function () {}, "function"], [function* () {}, "function*"], [async function () {}, "async function"]].forEach(function (f) {
    var former = f[0].constructor, kind = f[1];
    function ctor() {
      var n = arguments.length, params = "", body = "";
      for (var i = 0; i < n - 1; i++) params += `${i ? "," : ""}${arguments[i]}`;
      if (n) body = `${arguments[n - 1]}`;
      make(former, [params, body]); // fails unless each is complete by itself, and not too deep
      return evaluate(`(${kind} anonymous(${params}\n) {\n${body}\n})`);
    }
    set(ctor, "prototype", { writable: false, value: former.prototype });
    define(ctor, "name", former.name);
    Object.setPrototypeOf(ctor, Object.getPrototypeOf(former));
    define(former.prototype, "constructor", ctor);
    if (kind === "function") define(globalThis, "Function", ctor);
  });
})();
