package value

import (
	"encoding/binary"
	"math"
	"time"
)

// Type is a BSON type byte; Missing represents an absent field.
type Type byte

// The BSON types (bsonspec.org). Missing is not a BSON type.
const (
	Missing       Type = 0x00
	Double        Type = 0x01
	String        Type = 0x02
	Document      Type = 0x03
	Array         Type = 0x04
	Binary        Type = 0x05
	Undefined     Type = 0x06
	ObjectID      Type = 0x07
	Boolean       Type = 0x08
	DateTime      Type = 0x09
	Null          Type = 0x0A
	Regex         Type = 0x0B
	DBPointer     Type = 0x0C
	JavaScript    Type = 0x0D
	Symbol        Type = 0x0E
	CodeWithScope Type = 0x0F
	Int32         Type = 0x10
	Timestamp     Type = 0x11
	Int64         Type = 0x12
	Decimal128    Type = 0x13
	MinKey        Type = 0xFF
	MaxKey        Type = 0x7F
)

// Name returns the type's alias, as in $type ("double", "string", "object", …; "missing" for Missing).
func (t Type) Name() string {
	switch t {
	case Missing:
		return "missing"
	case Double:
		return "double"
	case String:
		return "string"
	case Document:
		return "object"
	case Array:
		return "array"
	case Binary:
		return "binData"
	case Undefined:
		return "undefined"
	case ObjectID:
		return "objectId"
	case Boolean:
		return "bool"
	case DateTime:
		return "date"
	case Null:
		return "null"
	case Regex:
		return "regex"
	case DBPointer:
		return "dbPointer"
	case JavaScript:
		return "javascript"
	case Symbol:
		return "symbol"
	case CodeWithScope:
		return "javascriptWithScope"
	case Int32:
		return "int"
	case Timestamp:
		return "timestamp"
	case Int64:
		return "long"
	case Decimal128:
		return "decimal"
	case MinKey:
		return "minKey"
	case MaxKey:
		return "maxKey"
	}
	return "unknown"
}

// Numeric reports whether t is one of the four number types.
func (t Type) Numeric() bool {
	return t == Int32 || t == Double || t == Int64 || t == Decimal128
}

// Value is one BSON value. Scalars that fit eight bytes are held in n; everything else borrows b:
//
//	String, JavaScript, Symbol   b = the text, without length or terminator
//	Document, Array              b = the whole document, length word to terminator
//	Binary                       n = subtype, b = the bytes (subtype 2: without the inner length)
//	ObjectID, Decimal128         b = 12 / 16 bytes as stored
//	Regex, DBPointer, CodeWScope b = the payload as stored
//	Double                       n = IEEE bits;  Int32, Int64, DateTime, Timestamp, Boolean: n = the value
type Value struct {
	T Type
	n uint64
	b []byte
}

// Constructors. A slice that is passed to one is not copied.

func NewDouble(f float64) Value       { return Value{T: Double, n: math.Float64bits(f)} }
func NewInt32(i int32) Value          { return Value{T: Int32, n: uint64(int64(i))} }
func NewInt64(i int64) Value          { return Value{T: Int64, n: uint64(i)} }
func NewDateTime(ms int64) Value      { return Value{T: DateTime, n: uint64(ms)} }
func NewTimestamp(t, i uint32) Value  { return Value{T: Timestamp, n: uint64(t)<<32 | uint64(i)} }
func NewTimestampU64(ts uint64) Value { return Value{T: Timestamp, n: ts} }
func NewString(s string) Value        { return Value{T: String, b: []byte(s)} }
func NewStringBytes(b []byte) Value   { return Value{T: String, b: b} }
func NewSymbol(b []byte) Value        { return Value{T: Symbol, b: b} }
func NewJavaScript(b []byte) Value    { return Value{T: JavaScript, b: b} }
func NewDocument(raw []byte) Value    { return Value{T: Document, b: raw} }
func NewArray(raw []byte) Value       { return Value{T: Array, b: raw} }
func NewObjectID(id [12]byte) Value   { return Value{T: ObjectID, b: append([]byte(nil), id[:]...)} }
func NewNull() Value                  { return Value{T: Null} }
func NewUndefined() Value             { return Value{T: Undefined} }
func NewMinKey() Value                { return Value{T: MinKey} }
func NewMaxKey() Value                { return Value{T: MaxKey} }
func NewTime(t time.Time) Value       { return NewDateTime(t.UnixMilli()) }

func NewBool(v bool) Value {
	if v {
		return Value{T: Boolean, n: 1}
	}
	return Value{T: Boolean}
}

func NewBinary(subtype byte, data []byte) Value {
	return Value{T: Binary, n: uint64(subtype), b: data}
}

// NewInt returns an int if i fits, else a long.
func NewInt(i int64) Value {
	if i == int64(int32(i)) {
		return NewInt32(int32(i))
	}
	return NewInt64(i)
}

// NewDecimal128 takes the two halves of the driver's Decimal128.
func NewDecimal128(high, low uint64) Value {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint64(b, low)
	binary.LittleEndian.PutUint64(b[8:], high)
	return Value{T: Decimal128, b: b}
}

// NewRegex takes a pattern and its option letters, neither of which may have a NUL.
func NewRegex(pattern, options string) Value {
	b := make([]byte, 0, len(pattern)+len(options)+2)
	b = append(append(b, pattern...), 0)
	b = append(append(b, options...), 0)
	return Value{T: Regex, b: b}
}

// NewDBPointer takes the namespace and the object id.
func NewDBPointer(ns string, id [12]byte) Value {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(ns)+1))
	b = append(append(b, ns...), 0)
	return Value{T: DBPointer, b: append(b, id[:]...)}
}

// NewCodeWithScope takes the code and the scope document.
func NewCodeWithScope(code string, scope []byte) Value {
	b := binary.LittleEndian.AppendUint32(nil, uint32(8+len(code)+1+len(scope)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(code)+1))
	b = append(append(b, code...), 0)
	return Value{T: CodeWithScope, b: append(b, scope...)}
}

// Accessors: each is meaningful only for the types named in Value; for Missing it returns the zero value.

func (v Value) IsMissing() bool      { return v.T == Missing }
func (v Value) IsNullish() bool      { return v.T == Missing || v.T == Null || v.T == Undefined }
func (v Value) Double() float64      { return math.Float64frombits(v.n) }
func (v Value) Int32() int32         { return int32(v.n) }
func (v Value) Int64() int64         { return int64(v.n) }
func (v Value) Bool() bool           { return v.n != 0 }
func (v Value) DateTime() int64      { return int64(v.n) }
func (v Value) Time() time.Time      { return time.UnixMilli(int64(v.n)).UTC() }
func (v Value) TimestampU64() uint64 { return v.n }
func (v Value) Subtype() byte        { return byte(v.n) }
func (v Value) Bytes() []byte        { return v.b }
func (v Value) Str() string          { return string(v.b) }
func (v Value) Doc() []byte          { return v.b }

// Timestamp splits a BSON timestamp into seconds and increment.
func (v Value) Timestamp() (t, i uint32) { return uint32(v.n >> 32), uint32(v.n) }

// BinarySize returns the length by which binaries are compared: for subtype 2 it includes the inner length.
func (v Value) BinarySize() int {
	if v.n == 2 {
		return len(v.b) + 4
	}
	return len(v.b)
}

// ObjectID copies the twelve bytes.
func (v Value) ObjectID() (id [12]byte) { copy(id[:], v.b); return id }

// Decimal128 returns the two halves as bson.NewDecimal128 takes them.
func (v Value) Decimal128() (high, low uint64) {
	if len(v.b) < 16 {
		return 0, 0
	}
	return binary.LittleEndian.Uint64(v.b[8:]), binary.LittleEndian.Uint64(v.b)
}

// Regex splits a regular expression into pattern and options.
func (v Value) Regex() (pattern, options string) {
	p, rest, ok := cutNul(v.b)
	if !ok {
		return "", ""
	}
	o, _, _ := cutNul(rest)
	return string(p), string(o)
}

// DBPointer splits a DBPointer into namespace and id.
func (v Value) DBPointer() (ns string, id [12]byte) {
	if len(v.b) < 4+1+12 {
		return "", id
	}
	copy(id[:], v.b[len(v.b)-12:])
	return string(v.b[4 : len(v.b)-13]), id
}

// CodeWithScope splits code and scope.
func (v Value) CodeWithScope() (code string, scope []byte) {
	if len(v.b) < 8 {
		return "", nil
	}
	n := int(binary.LittleEndian.Uint32(v.b[4:]))
	if n < 1 || 8+n > len(v.b) {
		return "", nil
	}
	return string(v.b[8 : 8+n-1]), v.b[8+n:]
}

// Clone copies what v borrows.
func (v Value) Clone() Value {
	if v.b != nil {
		v.b = append(make([]byte, 0, len(v.b)), v.b...)
	}
	return v
}

// Truthy returns the language's conversion to boolean: false, null, undefined, missing and numeric zero are false.
func (v Value) Truthy() bool {
	switch v.T {
	case Missing, Null, Undefined:
		return false
	case Boolean:
		return v.n != 0
	case Int32, Int64:
		return v.n != 0
	case Double:
		return v.Double() != 0
	case Decimal128:
		return !v.decimalIsZero()
	}
	return true
}

// AsInt64 converts a number without loss: ok is false if it is not a number, has a fraction, is NaN or is out
// of range.
func (v Value) AsInt64() (i int64, ok bool) {
	switch v.T {
	case Int32, Int64:
		return int64(v.n), true
	case Double:
		return exactInt64(v.Double())
	case Decimal128:
		return v.decimalInt64()
	}
	return 0, false
}

// AsFloat64 converts any number to the nearest double; 0 if v is not a number.
func (v Value) AsFloat64() float64 {
	switch v.T {
	case Int32, Int64:
		return float64(int64(v.n))
	case Double:
		return v.Double()
	case Decimal128:
		return v.decimalFloat64()
	}
	return 0
}

// IsNaN reports whether the value is the NaN of doubles or decimals.
func (v Value) IsNaN() bool {
	switch v.T {
	case Double:
		return math.IsNaN(v.Double())
	case Decimal128:
		h, _ := v.Decimal128()
		return h>>58&0x1F == 0x1F
	}
	return false
}

func exactInt64(f float64) (int64, bool) {
	if f != math.Trunc(f) || f < -9223372036854775808.0 || f >= 9223372036854775808.0 {
		return 0, false
	}
	return int64(f), true
}

func cutNul(b []byte) (before, after []byte, ok bool) {
	for i, c := range b {
		if c == 0 {
			return b[:i], b[i+1:], true
		}
	}
	return nil, nil, false
}

// Truncate truncates a number to an integer; ok is false if it is not a number, not finite, or out of a long's range.
func (v Value) Truncate() (i int64, ok bool) {
	switch v.T {
	case Double:
		return exactInt64(math.Trunc(v.Double()))
	case Decimal128:
		return v.decimalTruncate()
	}
	return v.AsInt64()
}

// IsInfinite reports whether the value is an infinity of doubles or decimals.
func (v Value) IsInfinite() bool {
	switch v.T {
	case Double:
		return math.IsInf(v.Double(), 0)
	case Decimal128:
		_, _, class := v.decimalParts()
		return class == 1 || class == -1
	}
	return false
}
