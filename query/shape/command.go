package shape

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// part is a field of a command that belongs to its shape.
type part struct {
	name string
	form form
	// always means that the part is shown as an empty document if the command omits it.
	always bool
}

// commands lists the parts of each command that has a shape, in the order in which the shape shows them. A find's hint is
// not among them: settings of a query shape apply whatever the hint.
var commands = map[string][]part{
	"find": {
		{"filter", filter, true}, {"sort", notEmpty(sortOrder), false}, {"projection", notEmpty(projection), false},
		{"skip", unlessZero, false}, {"limit", unlessZero, false}, {"singleBatch", flag, false},
		{"max", notEmpty(names(literal)), false}, {"min", notEmpty(names(literal)), false},
		{"returnKey", flag, false}, {"showRecordId", flag, false}, {"tailable", flag, false}, {"oplogReplay", flag, false},
		{"awaitData", flag, false}, {"collation", notEmpty(keep), false}, {"allowDiskUse", flag, false},
		{"let", notEmpty(names(expression)), false},
	},
	"aggregate": {
		{"pipeline", pipeline, false}, {"explain", flag, false}, {"allowDiskUse", flag, false},
		{"collation", notEmpty(keep), false}, {"hint", hint, false}, {"let", notEmpty(names(expression)), false},
	},
	"distinct": {{"key", path, false}, {"query", filter, true}, {"collation", notEmpty(keep), false}},
	"count": {
		{"query", filter, true}, {"collation", notEmpty(keep), false}, {"skip", unlessZero, false}, {"limit", unlessZero, false},
	},
}

const maxParts = 16

// DatabaseAggregate is the collection name of an aggregate on a whole database.
const DatabaseAggregate = "$cmd.aggregate"

// Has reports whether commands with that name have a shape.
func Has(command string) bool { return commands[command] != nil }

// TakesSettings reports whether query settings can be set for commands with that name.
func TakesSettings(command []byte) bool {
	switch string(command) {
	case "find", "distinct", "aggregate":
		return true
	}
	return false
}

// Command appends the document queryShape of a command to dst; ok is false for commands that have none. body is the
// command with its name as its first element.
func Command(dst []byte, db string, body []byte) (out []byte, ok bool) {
	it := value.Walk(body)
	name, coll, ok := it.Next()
	parts := commands[string(name)]
	if !ok || parts == nil {
		return dst, false
	}
	dst, mark := value.Begin(dst)
	dst, ns := value.BeginKey(dst, value.Document, "cmdNs")
	dst = value.Append(dst, "db", value.NewString(db))
	if coll.T != value.String {
		coll = value.NewString(DatabaseAggregate)
	}
	dst = value.End(value.Append(dst, "coll", coll), ns)
	dst = value.Append(dst, "command", value.NewStringBytes(name))
	return value.End((&writer{}).parts(dst, parts, body), mark), true
}

func (w *writer) parts(dst []byte, parts []part, body []byte) []byte {
	var given [maxParts]value.Value
	for it := value.Walk(body); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		for i := range parts {
			if string(k) == parts[i].name && given[i].T == value.Missing {
				given[i] = v
			}
		}
	}
	for i := range parts {
		p, v := &parts[i], given[i]
		if v.IsNullish() {
			if !p.always {
				continue
			}
			v = emptyDoc
		}
		dst = p.form(w, dst, []byte(p.name), v)
	}
	return dst
}

var emptyDoc = value.NewDocument(value.Doc())

// Transform appends a shape with its names replaced by name: those of fields (one by one along a path), variables,
// databases and collections.
func Transform(dst, shape []byte, name func(string) string) []byte {
	w := &writer{shaped: true, name: name}
	dst, mark := value.Begin(dst)
	for it := value.Walk(shape); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		switch string(k) {
		case "cmdNs":
			dst = document(namespace)(w, dst, k, v)
		case "command":
			dst = w.parts(value.AppendKeyBytes(dst, k, v), commands[v.Str()], shape)
		}
	}
	return value.End(dst, mark)
}

// AppendHint appends a command's hint, which is not part of a find's shape: an index's pattern or name.
func AppendHint(dst []byte, v value.Value) []byte { return hint(&writer{}, dst, []byte("hint"), v) }

// TransformHint is Transform for a hint from AppendHint.
func TransformHint(dst []byte, v value.Value, name func(string) string) []byte {
	return hint(&writer{shaped: true, name: name}, dst, []byte("hint"), v)
}

// AppendLiteral appends a value of which only the type is shown.
func AppendLiteral(dst []byte, key string, v value.Value) []byte {
	return literal(&writer{}, dst, []byte(key), v)
}

// Hash returns the queryShapeHash of a shape.
func Hash(shape []byte) string {
	sum := sha256.Sum256(shape)
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}
