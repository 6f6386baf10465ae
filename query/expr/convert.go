package expr

import (
	"encoding/base64"
	bin "encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/expr/dates"
	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(&operator{name: "$convert", eval: evalConvert, optimize: optimizeConvert,
		fields: []field{{"input", mongoerr.FailedToParse}, {"to", mongoerr.FailedToParse}, {"format", 0}, {"byteOrder", 0},
			{"onError", 0}, {"onNull", 0}, {"base", 0}},
		words: wording{onObject: "$convert expects an object of named arguments but found: %[2]s",
			onUnknown: "$convert found an unknown argument: %[2]s", onMiss: "Missing '%[2]s' parameter to %[1]s"}})
	for name, to := range map[string]conversion{
		"$toInt": {to: value.Int32}, "$toLong": {to: value.Int64}, "$toDouble": {to: value.Double},
		"$toDecimal": {to: value.Decimal128}, "$toString": {to: value.String, format: "auto"}, "$toBool": {to: value.Boolean},
		"$toDate": {to: value.DateTime}, "$toObjectId": {to: value.ObjectID},
		"$toUUID": {to: value.Binary, subtype: 4, format: "uuid"},
	} {
		op := unary(name, func(f *Frame, v value.Value) (value.Value, error) {
			if v.IsNullish() {
				return null, nil
			}
			return f.convert(v, &to)
		})
		op.parse = func(op *operator, arg value.Value, s *Scope) (node, error) {
			if n := value.Count(arg.Doc()); arg.T == value.Array && n != 1 {
				return nil, mongoerr.Newf(50723, "%s requires a single argument, got %d", op.name, n)
			}
			return parsePositional(op, arg, s)
		}
		register(op)
	}
}

// conversion describes what to convert to, and how.
type conversion struct {
	to      value.Type
	subtype byte
	format  string
	big     bool // byte order
}

func errConvert(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.ConversionFailure, format, args...)
}

func errNoConversion(v value.Value, to value.Type) error {
	return errConvert("Unsupported conversion from %s to %s in $convert with no onError value", v.T.Name(), to.Name())
}

// optimizeConvert folds only if all operands are known, including onError and onNull.
func optimizeConvert(c *call, s *Scope) (node, error) {
	if err := s.optimizeAll(c.args); err != nil {
		return nil, err
	}
	return s.fold(c, c.args)
}

func evalConvert(f *Frame, c *call) (value.Value, error) {
	in, err := c.args[0].eval(f)
	if err != nil {
		return in, err
	}
	to, err := c.args[1].eval(f)
	if err != nil {
		return to, err
	}
	format, err := c.arg(f, 2)
	if err != nil {
		return format, err
	}
	order, err := c.arg(f, 3)
	if err != nil {
		return order, err
	}
	if in.IsNullish() {
		if err := checkTarget(to); err != nil {
			return in, err
		}
		if c.args[5] != nil {
			return c.args[5].eval(f)
		}
		return null, nil
	}
	conv, isNull, err := readTarget(to)
	if err != nil {
		return to, err
	}
	if isNull {
		return null, nil
	}
	if err := conv.readOptions(format, order); err != nil {
		return format, err
	}
	v, err := f.convert(in, conv)
	if err != nil && c.args[4] != nil && mongoerr.CodeOf(err) == mongoerr.ConversionFailure {
		return c.args[4].eval(f)
	}
	return v, err
}

// checkTarget checks a target whose input is null: it only has to be a type.
func checkTarget(to value.Value) error {
	if to.T == value.Document {
		to = value.Lookup(to.Doc(), "type")
	}
	if to.IsNullish() {
		return nil
	}
	_, err := targetType(to)
	return err
}

func targetType(v value.Value) (value.Type, error) {
	if v.T == value.String {
		t, ok := value.TypeByName(v.Str())
		if !ok {
			return 0, mongoerr.Newf(mongoerr.BadValue, "Unknown type name: %s", v.Str())
		}
		return t, nil
	}
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(mongoerr.FailedToParse, "$convert's 'to' argument must be a string or number, but is %s", v.T.Name())
	}
	i, ok := v.AsInt64()
	if !ok {
		return 0, mongoerr.New(mongoerr.FailedToParse, "In $convert, numeric 'to' argument is not an integer")
	}
	t, ok := value.TypeByNumber(i)
	if i == 0 {
		return value.Missing, nil // a known type, although nothing converts to it
	}
	if !ok {
		return 0, mongoerr.Newf(mongoerr.FailedToParse, "In $convert, numeric value for 'to' does not correspond to a BSON type: %d", i)
	}
	return t, nil
}

// readTarget reads 'to': a type, or a document of type and subtype.
func readTarget(to value.Value) (conv *conversion, isNull bool, err error) {
	conv = &conversion{}
	sub := value.Value{}
	if to.T == value.Document {
		sub = value.Lookup(to.Doc(), "subtype")
		if to = value.Lookup(to.Doc(), "type"); to.T == value.Missing {
			return nil, false, mongoerr.New(mongoerr.FailedToParse, "$convert's 'to' argument is an object, but does not have a 'type' field")
		}
	} else if to.IsNullish() {
		return nil, true, nil
	}
	if conv.to, err = targetType(to); err != nil {
		return nil, false, err
	}
	if sub.T == value.Missing {
		return conv, false, nil
	}
	if !sub.T.Numeric() {
		return nil, false, mongoerr.Newf(4341108, "$convert requires that 'subtype' be a number, found: %s with value %s", sub.T.Name(), Show(sub))
	}
	i, ok := sub.AsInt64()
	if !ok {
		return nil, false, mongoerr.New(4341106, "In $convert, numeric 'subtype' argument is not an integer")
	}
	if !(i >= 0 && i <= 9 || i >= 128 && i <= 255) {
		return nil, false, mongoerr.Newf(4341107, "In $convert, numeric value for 'subtype' does not correspond to a BinData type: %d", i)
	}
	conv.subtype = byte(i)
	return conv, false, nil
}

func (conv *conversion) readOptions(format, order value.Value) error {
	if !format.IsNullish() {
		if format.T != value.String {
			return mongoerr.Newf(4341114, "$convert requires that 'format' be a string, found: %s with value %s", format.T.Name(), Show(format))
		}
		switch conv.format = format.Str(); conv.format {
		case "base64", "base64url", "utf8", "hex", "uuid", "auto":
		default:
			return mongoerr.Newf(4341125, "Invalid 'format' argument for $convert: %s", conv.format)
		}
	}
	if order.IsNullish() {
		return nil
	}
	if order.T != value.String {
		return mongoerr.Newf(9130001, "$convert requires that 'byteOrder' be a string, found: %s with value %s", order.T.Name(), Show(order))
	}
	switch order.Str() {
	case "little":
	case "big":
		conv.big = true
	default:
		return mongoerr.Newf(9130002, "Invalid 'byteOrder' argument for $convert: %s", order.Str())
	}
	return nil
}

// convert turns a value that is not null into another type.
func (f *Frame) convert(v value.Value, conv *conversion) (value.Value, error) {
	switch conv.to {
	case value.Double:
		return f.toDouble(v, conv)
	case value.String:
		return f.toText(v, conv)
	case value.ObjectID:
		return f.toObjectID(v)
	case value.Boolean:
		return toBool(v)
	case value.DateTime:
		return f.convertDate(v)
	case value.Int32:
		return f.toInt(v, conv, value.Int32)
	case value.Int64:
		return f.toInt(v, conv, value.Int64)
	case value.Decimal128:
		return toDecimal(v)
	case value.Binary:
		return f.toBinary(v, conv)
	}
	return v, errNoConversion(v, conv.to)
}

func toBool(v value.Value) (value.Value, error) {
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		return value.NewBool(v.Truthy()), nil
	case value.Boolean:
		return v, nil
	case value.Document, value.Array, value.String, value.ObjectID, value.DateTime, value.Binary, value.Timestamp, value.Regex,
		value.JavaScript, value.CodeWithScope, value.MinKey, value.MaxKey, value.Symbol, value.DBPointer:
		return value.NewBool(true), nil
	}
	return v, errNoConversion(v, value.Boolean)
}

func (f *Frame) toDouble(v value.Value, conv *conversion) (value.Value, error) {
	switch v.T {
	case value.Double:
		return v, nil
	case value.Int32, value.Int64:
		return value.NewDouble(float64(v.Int64())), nil
	case value.Decimal128:
		d := v.AsFloat64()
		if math.IsInf(d, 0) && !decimal.IsInf(decimal.Of(v)) {
			return v, errConvert("Conversion would overflow target type in $convert with no onError value: %s", v.DecimalString())
		}
		return value.NewDouble(d), nil
	case value.Boolean:
		return value.NewDouble(float64(v.Int64())), nil
	case value.DateTime:
		return value.NewDouble(float64(v.DateTime())), nil
	case value.String:
		d, err := parseDouble(v.Str())
		return value.NewDouble(d), err
	case value.Binary:
		switch b := wholeBinary(v); len(b) {
		case 4:
			return value.NewDouble(float64(math.Float32frombits(conv.order().Uint32(b)))), nil
		case 8:
			return value.NewDouble(math.Float64frombits(conv.order().Uint64(b))), nil
		}
		return v, errConvert("Failed to convert '%s' to double in $convert because of invalid length: %d", Show(v), len(v.Bytes()))
	}
	return v, errNoConversion(v, value.Double)
}

func (conv *conversion) order() bin.ByteOrder {
	if conv.big {
		return bin.BigEndian
	}
	return bin.LittleEndian
}

// parseDouble reads a whole string as a floating-point number; blanks and a leading 0x are refused.
func parseDouble(s string) (float64, error) {
	body := strings.TrimLeft(s, "+-")
	switch {
	case s == "" || len(s)-len(body) > 1:
	case strings.HasPrefix(s, "0x"): // after a sign, or in capitals, hexadecimal is accepted
		return 0, errConvert("Illegal hexadecimal input in $convert with no onError value: %s", s)
	case strings.IndexByte(s, '_') >= 0 || strings.HasPrefix(strings.ToLower(body), "nan("):
	default:
		text := s
		if len(body) > 1 && body[0] == '0' && body[1]|0x20 == 'x' && !strings.ContainsAny(body, "pP") {
			text += "p0"
		}
		d, err := strconv.ParseFloat(text, 64)
		underflow := d == 0 && strings.Trim(strings.SplitN(strings.ToLower(body), "e", 2)[0], "0.") != "" && !strings.ContainsAny(body, "xX")
		if err == nil && !underflow {
			return d, nil
		}
		if underflow || errors.Is(err, strconv.ErrRange) {
			return 0, errConvert("Failed to parse number '%s' in $convert with no onError value: Out of range", s)
		}
	}
	return 0, errConvert("Failed to parse number '%s' in $convert with no onError value: Did not consume whole string.", s)
}

func toDecimal(v value.Value) (value.Value, error) {
	switch v.T {
	case value.Decimal128:
		return v, nil
	case value.Int32, value.Int64, value.Double:
		return decimal.Value(decimal.Of(v)), nil
	case value.Boolean, value.DateTime:
		return decimal.Value(decimal.Int(v.Int64())), nil
	case value.String:
		s := v.Str()
		if body := strings.TrimLeft(s, "+-"); strings.HasPrefix(body, "0x") || strings.HasPrefix(body, "0X") {
			return v, errConvert("Illegal hexadecimal input in $convert with no onError value: %s", s)
		}
		d, ok := decimal.Parse(s)
		if !ok {
			return v, errConvert("Failed to parse number '%s' in $convert with no onError value: Failed to parse string to decimal", s)
		}
		return decimal.Value(d), nil
	}
	return v, errNoConversion(v, value.Decimal128)
}

// toInt converts to int or long, truncating fractions.
func (f *Frame) toInt(v value.Value, conv *conversion, to value.Type) (value.Value, error) {
	var i int64
	switch v.T {
	case value.Int32, value.Int64, value.Boolean:
		i = v.Int64()
	case value.DateTime:
		if to == value.Int32 {
			return v, errNoConversion(v, to)
		}
		i = v.DateTime()
	case value.Double:
		d := v.Double()
		if math.IsNaN(d) || math.IsInf(d, 0) {
			return v, errConvert("Attempt to convert %s value to integer type in $convert with no onError value", nanOrInf(math.IsNaN(d)))
		}
		if !(d >= -0x1p63 && d < 0x1p63) {
			return v, errOverflow(Show(v))
		}
		i = int64(d)
	case value.Decimal128:
		d := decimal.Of(v)
		if decimal.IsNaN(d) || decimal.IsInf(d) {
			return v, errConvert("Attempt to convert %s value to integer type in $convert with no onError value", nanOrInf(decimal.IsNaN(d)))
		}
		var ok bool
		if i, ok = decimal.Int64(d, decimal.Down); !ok {
			return v, errOverflow(v.DecimalString())
		}
	case value.String:
		return parseInt(v.Str(), to)
	case value.Binary:
		return binaryToInt(v, conv, to)
	default:
		return v, errNoConversion(v, to)
	}
	if to == value.Int64 {
		return value.NewInt64(i), nil
	}
	if i != int64(int32(i)) {
		if v.T == value.Int64 {
			return v, errOverflow("") // the real server does not show the integer here
		}
		return v, errOverflow(strconv.FormatInt(i, 10))
	}
	return value.NewInt32(int32(i)), nil
}

func nanOrInf(nan bool) string {
	if nan {
		return "NaN"
	}
	return "infinity"
}

func errOverflow(shown string) error {
	return errConvert("Conversion would overflow target type in $convert with no onError value: %s", shown)
}

func parseInt(s string, to value.Type) (value.Value, error) {
	size := 64
	if to == value.Int32 {
		size = 32
	}
	if body := strings.TrimLeft(s, "+-"); strings.HasPrefix(body, "0x") || strings.HasPrefix(body, "0X") {
		return value.Value{}, errConvert("Illegal hexadecimal input in $convert with no onError value: %s", s)
	}
	i, err := strconv.ParseInt(s, 10, size)
	if err != nil {
		reason := "Did not consume whole string."
		if errors.Is(err, strconv.ErrRange) {
			reason = "Overflow"
		} else if s == "" {
			reason = "No digits"
		}
		return value.Value{}, errConvert("Failed to parse number '%s' in $convert with no onError value: %s", s, reason)
	}
	if to == value.Int32 {
		return value.NewInt32(int32(i)), nil
	}
	return value.NewInt64(i), nil
}

func binaryToInt(v value.Value, conv *conversion, to value.Type) (value.Value, error) {
	b, o := wholeBinary(v), conv.order()
	var i int64
	switch {
	case len(b) == 1:
		i = int64(int8(b[0]))
	case len(b) == 2:
		i = int64(int16(o.Uint16(b)))
	case len(b) == 4:
		i = int64(int32(o.Uint32(b)))
	case len(b) == 8 && to == value.Int64:
		i = int64(o.Uint64(b))
	default:
		return v, errConvert("Failed to convert '%s' to %s in $convert because of invalid length: %d", Show(v), to.Name(), len(b))
	}
	if to == value.Int32 {
		return value.NewInt32(int32(i)), nil
	}
	return value.NewInt64(i), nil
}

func (f *Frame) toObjectID(v value.Value) (value.Value, error) {
	switch v.T {
	case value.ObjectID:
		return v, nil
	case value.String:
		var id [12]byte
		if s := v.Bytes(); len(s) != 24 {
			return v, errConvert("Failed to parse objectId '%s' in $convert with no onError value: Invalid string length for parsing to OID, expected 24 but found %d",
				v.Str(), len(s))
		} else if _, err := hex.Decode(id[:], s); err != nil {
			return v, errConvert("Failed to parse objectId '%s' in $convert with no onError value: Invalid character found in hex string", v.Str())
		}
		return value.NewObjectID(id), nil
	}
	return v, errNoConversion(v, value.ObjectID)
}

func (f *Frame) convertDate(v value.Value) (value.Value, error) {
	switch v.T {
	case value.DateTime:
		return v, nil
	case value.Timestamp, value.ObjectID:
		ms, err := toDate(v)
		return value.NewDateTime(ms), err
	case value.Int64:
		return value.NewDateTime(v.Int64()), nil
	case value.Double, value.Decimal128:
		i, err := f.toInt(v, &conversion{}, value.Int64)
		return value.NewDateTime(i.Int64()), err
	case value.String:
		ms, err := dates.Parse(v.Str(), nil)
		if err != nil {
			return v, errConvert("Error parsing date string '%s'; %s", v.Str(), err)
		}
		return value.NewDateTime(ms), nil
	}
	return v, errNoConversion(v, value.DateTime)
}

func (f *Frame) toText(v value.Value, conv *conversion) (value.Value, error) {
	switch v.T {
	case value.String:
		return v, nil
	case value.Boolean:
		return f.str(strconv.FormatBool(v.Bool())), nil
	case value.Double:
		return f.str(doubleText(v.Double())), nil
	case value.Int32, value.Int64:
		return f.str(strconv.FormatInt(v.Int64(), 10)), nil
	case value.Decimal128:
		return f.str(v.DecimalString()), nil
	case value.ObjectID:
		return f.str(hex.EncodeToString(v.Bytes())), nil
	case value.DateTime:
		return f.formatDate(v.DateTime(), dates.UTC, dates.FormatUTC)
	case value.Binary:
		return f.binaryToText(v, conv)
	}
	return v, errNoConversion(v, value.String)
}

func (f *Frame) binaryToText(v value.Value, conv *conversion) (value.Value, error) {
	format, b := conv.format, wholeBinary(v)
	if format == "auto" {
		if format = "base64"; v.Subtype() == 4 && len(b) == 16 {
			format = "uuid"
		}
	}
	switch format {
	case "":
		return v, mongoerr.New(4341115, "Format must be specified when converting from 'binData' to 'string'")
	case "base64":
		return encoded(base64.StdEncoding.EncodeToString(b))
	case "base64url":
		return encoded(base64.RawURLEncoding.EncodeToString(b))
	case "hex":
		return encoded(strings.ToUpper(hex.EncodeToString(b)))
	case "utf8":
		if !utf8.Valid(b) {
			return v, errConvert("BinData does not represent a valid UTF-8 string: %s", Show(v))
		}
		return newString(b)
	}
	if v.Subtype() != 4 || len(b) != 16 {
		return v, errConvert("Conversion with 'uuid' format is only possible from BinData of subtype UUID and length 16: %s", Show(v))
	}
	h := hex.EncodeToString(b)
	return f.str(h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]), nil
}

// wholeBinary returns a binary's bytes; the old subtype's inner length counts as content.
func wholeBinary(v value.Value) []byte {
	if v.Subtype() != 2 {
		return v.Bytes()
	}
	return append(bin.LittleEndian.AppendUint32(nil, uint32(len(v.Bytes()))), v.Bytes()...)
}

func encoded(s string) (value.Value, error) {
	if len(s) >= maxString {
		return value.Value{}, errConvert("Conversion would produce a string longer than the limit of %d bytes", maxString)
	}
	return value.NewString(s), nil
}

func (f *Frame) toBinary(v value.Value, conv *conversion) (value.Value, error) {
	switch v.T {
	case value.Binary:
		if v.Subtype() != conv.subtype {
			return v, errConvert("Conversions between different BinData subtypes are not supported: %d to %d", v.Subtype(), conv.subtype)
		}
		return v, nil
	case value.Int32, value.Int64, value.Double:
		return f.numberToBinary(v, conv), nil
	case value.String:
		b, err := textToBinary(v, conv)
		return value.NewBinary(conv.subtype, b), err
	}
	return v, errNoConversion(v, value.Binary)
}

func (f *Frame) numberToBinary(v value.Value, conv *conversion) value.Value {
	b := f.alloc(8)
	switch v.T {
	case value.Int32:
		b = b[:4]
		conv.order().PutUint32(b, uint32(v.Int32()))
	case value.Int64:
		conv.order().PutUint64(b, uint64(v.Int64()))
	default:
		conv.order().PutUint64(b, math.Float64bits(v.Double()))
	}
	return value.NewBinary(conv.subtype, b)
}

func textToBinary(v value.Value, conv *conversion) ([]byte, error) {
	s := v.Str()
	if conv.format == "" {
		return nil, mongoerr.New(4341115, "Format must be specified when converting from 'string' to 'binData'")
	}
	failed := func(why string) error {
		return errConvert("Failed to parse BinData '%s' in $convert with no onError value: %s", s, why)
	}
	notValid := failed("Input is not a valid " + formatNames[conv.format] + " string.")
	switch {
	case conv.format == "uuid" && conv.subtype != 4:
		return nil, failed("Only the UUID subtype (4) is allowed with the 'uuid' format.")
	case conv.format != "uuid" && conv.subtype == 4:
		return nil, notValid
	}
	var b []byte
	var err error
	switch conv.format {
	case "base64":
		b, err = base64.StdEncoding.Strict().DecodeString(s)
	case "base64url":
		b, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
	case "hex":
		b, err = hex.DecodeString(s)
	case "utf8":
		b = []byte(s)
	case "uuid":
		if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
			return nil, notValid
		}
		b, err = hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	default:
		return nil, errConvert("Use of 'auto' format is not supported when converting from string to BinData")
	}
	if err != nil || conv.format == "uuid" && len(b) != 16 {
		return nil, notValid
	}
	return b, nil
}

// formatNames are the names of text formats in error messages.
var formatNames = map[string]string{"base64": "base64", "base64url": "base64url", "hex": "hex", "utf8": "utf8", "uuid": "UUID", "auto": "auto"}
