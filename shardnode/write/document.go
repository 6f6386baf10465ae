package write

import (
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxStoredSize is the limit of a stored document; internal ones may be 16 KiB larger.
const maxStoredSize = command.MaxBSONSize

// maxDepth is the maximum nesting depth of a stored document.
const maxDepth = 180

// prepareInsert converts a client's document to its stored form: _id first, generated if it is missing, and empty
// timestamps at the top level filled with the time that now returns. It returns an error for documents that cannot be
// stored. The result is doc itself if nothing had to change.
func prepareInsert(doc []byte, keepEmptyTS bool, now func() uint64) ([]byte, error) {
	if len(doc) > maxStoredSize {
		return nil, mongoerr.Newf(mongoerr.BSONObjectTooLarge, "object to insert too large. size in bytes: %d, max size: %d", len(doc), maxStoredSize)
	}
	idAt, emptyTS := -1, false
	i := 0
	var id value.Value
	for c := value.Scan(doc); c.Next(); i++ {
		if k := c.Key(); len(k) == 3 && string(k) == "_id" {
			if idAt >= 0 {
				return nil, mongoerr.New(mongoerr.BadValue, "can't have multiple _id fields in one document")
			}
			idAt, id = i, c.Value()
			continue
		}
		switch c.Type() {
		case value.Timestamp:
			emptyTS = emptyTS || c.Value().TimestampU64() == 0
		case value.Document, value.Array:
			// A level of nesting takes at least seven bytes, so most values are too short to be too deep.
			if v := c.Raw(); len(v) > 7*maxDepth && depthOf(c.Value().Doc(), 1) > maxDepth {
				return nil, mongoerr.Newf(mongoerr.Overflow, "Document exceeds maximum nested object depth: %d", maxDepth)
			}
		}
	}
	if idAt >= 0 {
		if err := checkID(id); err != nil {
			return nil, err
		}
	}
	if idAt == 0 && (!emptyTS || keepEmptyTS) {
		return doc, nil
	}
	return rebuildInsert(doc, idAt, id, emptyTS && !keepEmptyTS, now)
}

func rebuildInsert(doc []byte, idAt int, id value.Value, fillTS bool, now func() uint64) ([]byte, error) {
	out, mark := value.Begin(make([]byte, 0, len(doc)+22))
	if idAt < 0 {
		oid := cluster.NewObjectID()
		out = append(append(out, byte(value.ObjectID)), "_id\x00"...)
		out = append(out, oid[:]...)
	} else {
		out = value.Append(out, "_id", id)
	}
	i := 0
	for it := value.Walk(doc); ; i++ {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			break
		}
		switch {
		case i == idAt:
		case fillTS && v.T == value.Timestamp && v.TimestampU64() == 0:
			out = value.AppendKeyBytes(out, k, value.NewTimestampU64(now()))
		default:
			out = append(out, raw...)
		}
	}
	out = value.End(out, mark)
	if len(out) > maxStoredSize {
		return nil, mongoerr.Newf(mongoerr.BSONObjectTooLarge, "object to insert too large. size in bytes: %d, max size: %d", len(out), maxStoredSize)
	}
	return out, nil
}

// checkID refuses values that cannot be an _id.
func checkID(id value.Value) error {
	switch id.T {
	case value.Array, value.Regex, value.Undefined:
		return mongoerr.Newf(mongoerr.InvalidIdField, "The '_id' value cannot be of type %s", id.T.Name())
	case value.Document:
		before := ""
		for it := value.Walk(id.Doc()); ; {
			k, v, ok := it.Next()
			if !ok {
				return nil
			}
			if strings.HasPrefix(string(k), "$") && !ofDBRef(before, string(k), v) {
				return mongoerr.Newf(mongoerr.DollarPrefixedFieldName, "_id fields may not contain '$'-prefixed fields: %s is not valid for storage.", k)
			}
			before = string(k)
		}
	}
	return nil
}

// ofDBRef reports whether a field makes a DBRef with the field before it: $ref, $id and $db in this order.
func ofDBRef(before, name string, v value.Value) bool {
	switch name {
	case "$ref":
		return v.T == value.String
	case "$id":
		return before == "$ref"
	case "$db":
		return before == "$id" && v.T == value.String
	}
	return false
}

func depthOf(doc []byte, d int) int {
	max := d
	if d > maxDepth {
		return d
	}
	for it := value.Walk(doc); ; {
		_, v, ok := it.Next()
		if !ok {
			return max
		}
		if v.T == value.Document || v.T == value.Array {
			if n := depthOf(v.Doc(), d+1); n > max {
				max = n
			}
		}
	}
}
