package storage

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// duplicateKey returns the error for a key of a unique index that is taken, with keyPattern and keyValue in the
// reply.
func duplicateKey(c *catalog.Collection, idx *catalog.Index, key, tb []byte) error {
	return duplicate(c, idx.Name, idx.Spec.KeyPattern, idx.Spec.Collation, key, tb, idx.Spec.Ordering())
}

// duplicateID is duplicateKey for a clustered collection, which has no _id index.
func duplicateID(c *catalog.Collection, key, tb []byte) error {
	// The real server cannot put these back into a document, and answers with the error of its key strings.
	if vals, ok := keystring.Decode(key, tb, 0, 1); ok && len(vals) == 1 {
		switch {
		case vals[0].IsNaN():
			return mongoerr.New(50819, "NaN can not be converted to a decimal")
		case vals[0].IsInfinite():
			return mongoerr.New(50826, "infinity can not be converted to a decimal")
		}
	}
	name := c.ClusteredName
	if name == "" {
		name = "_id_"
	}
	return duplicate(c, name, value.Doc(value.F("_id", value.NewInt32(1))), c.Collation, key, tb, 0)
}

func duplicate(c *catalog.Collection, name string, pattern, collation, key, tb []byte, ord keystring.Ordering) error {
	vals, ok := keystring.Decode(key, tb, ord, value.Count(pattern))
	var text strings.Builder
	text.WriteString("E11000 duplicate key error collection: " + c.NS + " index: " + name)
	if collation != nil {
		text.WriteString(" collation: " + shellString(value.NewDocument(collation)))
	}
	text.WriteString(" dup key: {")
	kv, mark := value.Begin(nil)
	i := 0
	for it := value.Walk(pattern); ; i++ {
		k, _, more := it.Next()
		if !more || !ok || i >= len(vals) {
			break
		}
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(" " + string(k) + ": ")
		shown := vals[i]
		if collation != nil && shown.T == value.String {
			// The index holds a sort key, not text.
			key := "CollationKey(0x" + hex.EncodeToString(shown.Bytes()) + ")"
			shown = value.NewString(key)
			text.WriteString(key)
		} else {
			text.WriteString(shellValue(shown, true))
		}
		kv = value.AppendKeyBytes(kv, k, shown)
	}
	text.WriteString(" }")
	fields := []value.Field{value.F("keyPattern", value.NewDocument(pattern)), value.F("keyValue", value.NewDocument(value.End(kv, mark)))}
	if collation != nil {
		fields = append(fields, value.F("collation", value.NewDocument(collation)))
	}
	details := value.Doc(fields...)
	return mongoerr.New(mongoerr.DuplicateKey, text.String()).WithDetails(details)
}

// shellString prints a value in full, as shells do.
func shellString(v value.Value) string { return shellValue(v, false) }

// shortened returns text. If short is set, a text longer than limit bytes is cut to keep bytes and an ellipsis, even within a character:
// the real server does so, and drivers have tests of what they do with the invalid UTF-8 that they then receive.
func shortened(text string, short bool, limit, keep int) string {
	if !short || len(text) <= limit {
		return text
	}
	return text[:keep] + "..."
}

// shellValue prints a value as shells do, or, if short is set, as error messages do, in which long values are cut.
func shellValue(v value.Value, short bool) string {
	switch v.T {
	case value.Double:
		return shellDouble(v.Double())
	case value.String, value.Symbol:
		return `"` + shortened(v.Str(), short, 160, 150) + `"`
	case value.JavaScript:
		return shortened(v.Str(), short, 80, 70)
	case value.Document:
		return shellFields(v.Doc(), "{", "}", true, short)
	case value.Array:
		return shellFields(v.Doc(), "[", "]", false, short)
	case value.Binary:
		if u, ok := catalog.UUIDFrom(v); ok {
			return `UUID("` + describeUUID(u) + `")`
		}
		b, more := v.Bytes(), ""
		if short && len(b) > 80 {
			b, more = b[:70], "..."
		}
		return fmt.Sprintf("BinData(%d, %X%s)", v.Subtype(), b, more)
	case value.ObjectID:
		return "ObjectId('" + hex.EncodeToString(v.Bytes()) + "')"
	case value.Boolean:
		return strconv.FormatBool(v.Bool())
	case value.DateTime:
		return "new Date(" + strconv.FormatInt(v.DateTime(), 10) + ")"
	case value.Null:
		return "null"
	case value.Undefined, value.Missing:
		return "undefined"
	case value.Regex:
		p, o := v.Regex()
		return "/" + p + "/" + o
	case value.Int32, value.Int64:
		return strconv.FormatInt(v.Int64(), 10)
	case value.Decimal128:
		return v.DecimalString()
	case value.Timestamp:
		t, i := v.Timestamp()
		return fmt.Sprintf("Timestamp(%d, %d)", t, i)
	case value.MinKey:
		return "MinKey"
	case value.MaxKey:
		return "MaxKey"
	}
	return v.T.Name()
}

func shellDouble(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan.0"
	case math.IsInf(f, 1):
		return "inf.0"
	case math.IsInf(f, -1):
		return "-inf.0"
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

func shellFields(doc []byte, open, shut string, names, short bool) string {
	var b strings.Builder
	b.WriteString(open)
	sep := " "
	for k, v := range value.Elements(doc) {
		b.WriteString(sep)
		if names {
			b.WriteString(k + ": ")
		}
		b.WriteString(shellValue(v, short))
		sep = ", "
	}
	b.WriteString(" " + shut)
	return b.String()
}
