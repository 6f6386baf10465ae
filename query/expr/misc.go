package expr

import (
	"math"

	"github.com/shoaldb/shoal/query/hashkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		unary("$binarySize", binarySize),
		unary("$bsonSize", bsonSize),
		unary("$toHashedIndexKey", func(f *Frame, v value.Value) (value.Value, error) {
			return value.NewInt64(hashkey.Hash(v)), nil
		}),
		unary("$tsSecond", timestampPart("$tsSecond", 5687301, func(t, i uint32) uint32 { return t })),
		unary("$tsIncrement", timestampPart("$tsIncrement", 5687302, func(t, i uint32) uint32 { return i })),
		&operator{name: "$currentDate", parse: parseCurrentDate, volatile: true, eval: func(f *Frame, c *call) (value.Value, error) {
			return value.NewDateTime(f.env.wallMS()), nil
		}, show: func(c *call) value.Value {
			return value.NewDocument(value.Doc(value.F("$currentDate", value.NewDocument(value.Doc()))))
		}},
		&operator{name: "$rand", parse: parseRand, volatile: true, eval: func(f *Frame, c *call) (value.Value, error) {
			return value.NewDouble(f.env.rand()), nil
		}, show: func(c *call) value.Value {
			return value.NewDocument(value.Doc(value.F("$rand", value.NewDocument(value.Doc()))))
		}},
		&operator{name: "$sampleRate", parse: parseSampleRate, volatile: true, eval: func(f *Frame, c *call) (value.Value, error) {
			return value.NewBool(f.env.rand() < c.state.(float64)), nil
		}, show: func(c *call) value.Value {
			return value.NewDocument(value.Doc(value.F("$sampleRate", value.NewDouble(c.state.(float64)))))
		}},
		&operator{name: "$meta", parse: parseMeta},
		&operator{name: "$bitNot", min: 1, max: 1, eval: evalBitNot},
		bitwise("$bitAnd", -1, func(a, b int64) int64 { return a & b }),
		bitwise("$bitOr", 0, func(a, b int64) int64 { return a | b }),
		bitwise("$bitXor", 0, func(a, b int64) int64 { return a ^ b }),
	)
}

func binarySize(f *Frame, v value.Value) (value.Value, error) {
	switch {
	case v.IsNullish():
		return null, nil
	case v.T == value.String || v.T == value.Binary:
		return value.NewInt32(int32(len(v.Bytes()))), nil
	}
	return v, mongoerr.Newf(51276, "$binarySize requires a string or BinData argument, found: %s", v.T.Name())
}

func bsonSize(f *Frame, v value.Value) (value.Value, error) {
	switch {
	case v.IsNullish():
		return null, nil
	case v.T == value.Document:
		return value.NewInt32(int32(len(v.Doc()))), nil
	}
	return v, mongoerr.Newf(31393, "$bsonSize requires a document input, found: %s", v.T.Name())
}

func timestampPart(name string, code mongoerr.Code, part func(t, i uint32) uint32) func(*Frame, value.Value) (value.Value, error) {
	return func(f *Frame, v value.Value) (value.Value, error) {
		if v.IsNullish() {
			return null, nil
		}
		if v.T != value.Timestamp {
			return v, mongoerr.Newf(code, " Argument to %s must be a timestamp, but is %s", name, v.T.Name())
		}
		return value.NewInt64(int64(part(v.Timestamp()))), nil
	}
}

// parseCurrentDate reads {}: unlike the update operator, the expression takes no type.
func parseCurrentDate(op *operator, v value.Value, _ *Scope) (node, error) {
	if v.T != value.Document || value.Count(v.Doc()) > 0 {
		return nil, mongoerr.New(mongoerr.FailedToParse, "$currentDate does not accept arguments: its value must be an empty object")
	}
	return &call{op: op}, nil
}

func parseRand(op *operator, v value.Value, _ *Scope) (node, error) {
	if v.T != value.Document && v.T != value.Array {
		return nil, mongoerr.New(10065, "invalid parameter: expected an object ($rand)")
	}
	if value.Count(v.Doc()) > 0 {
		return nil, mongoerr.New(3040501, "$rand does not currently accept arguments")
	}
	return &call{op: op}, nil
}

func parseSampleRate(op *operator, v value.Value, _ *Scope) (node, error) {
	if !v.T.Numeric() {
		return nil, mongoerr.Newf(mongoerr.BadValue, "argument to $sampleRate must be a numeric type, but is %s", v.T.Name())
	}
	p := v.AsFloat64()
	if !(p >= 0 && p <= 1) {
		return nil, mongoerr.New(mongoerr.BadValue, "numeric argument to $sampleRate must be in [0, 1]")
	}
	return &call{op: op, state: p}, nil
}

// metaKinds are the kinds of metadata $meta knows.
var metaKinds = map[string]bool{"textScore": true, "randVal": true, "searchScore": true, "searchHighlights": true,
	"geoNearDistance": true, "geoNearPoint": true, "recordId": true, "indexKey": true, "sortKey": true,
	"searchScoreDetails": true, "searchSequenceToken": true, "timeseriesBucketMinTime": true, "timeseriesBucketMaxTime": true,
	"vectorSearchScore": true, "score": true, "scoreDetails": true, "stream": true, "changeStreamControlEvent": true}

func parseMeta(_ *operator, v value.Value, _ *Scope) (node, error) {
	if v.T != value.String {
		return nil, mongoerr.New(17307, "$meta only supports string arguments")
	}
	if !metaKinds[v.Str()] {
		return nil, mongoerr.Newf(17308, "Unsupported argument to $meta: %s", v.Str())
	}
	return &metaNode{kind: v.Str()}, nil
}

func evalBitNot(f *Frame, c *call) (value.Value, error) {
	v, err := c.args[0].eval(f)
	switch {
	case err != nil:
		return v, err
	case v.IsNullish():
		return null, nil
	case v.T == value.Int32:
		return value.NewInt32(^v.Int32()), nil
	case v.T == value.Int64:
		return value.NewInt64(^v.Int64()), nil
	case !v.T.Numeric():
		return v, mongoerr.Newf(28765, "$bitNot only supports numeric types, not %s", v.T.Name())
	}
	return v, mongoerr.Newf(mongoerr.TypeMismatch, "$bitNot only supports int and long, not: %s.", v.T.Name())
}

// bitwise makes a row for an operator on ints and longs; unit is the result without operands.
func bitwise(name string, unit int64, fn func(a, b int64) int64) *operator {
	return nary(name, 0, -1, func(f *Frame, c *call) (value.Value, error) {
		acc, small := unit, true
		for _, n := range c.args {
			v, err := n.eval(f)
			switch {
			case err != nil:
				return v, err
			case v.IsNullish():
				return null, nil
			case v.T != value.Int32 && v.T != value.Int64:
				return v, mongoerr.Newf(mongoerr.TypeMismatch, "%s only supports int and long operands.", name)
			}
			small = small && v.T == value.Int32
			acc = fn(acc, v.Int64())
		}
		return fitInt(acc, small && acc >= math.MinInt32 && acc <= math.MaxInt32), nil
	})
}
