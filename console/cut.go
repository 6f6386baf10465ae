package console

import (
	"strconv"

	"github.com/shoaldb/shoal/query/value"
)

// defaultMaxAttr is the default of maxLogSizeKB, in bytes.
const defaultMaxAttr = 10 << 10

// cutter appends as much of a document as fits, up to the first element that does not.
type cutter struct {
	path []string
	typ  string
	size int
}

func (c *cutter) document(dst, doc []byte, limit int) []byte {
	dst = append(dst, '{')
	it := value.Walk(doc)
	for n := 0; c.typ == ""; n++ {
		key, v, ok := it.Next()
		if !ok {
			break
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, key), ':')
		size := len(key) + len(v.Bytes()) + 16
		dst = c.value(dst, string(key), v, size, limit)
		limit -= size
	}
	return append(dst, '}')
}

func (c *cutter) array(dst, arr []byte, limit int) []byte {
	dst = append(dst, '[')
	it := value.Walk(arr)
	for n := 0; c.typ == ""; n++ {
		_, v, ok := it.Next()
		if !ok {
			break
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		size := len(v.Bytes()) + 16
		dst = c.value(dst, strconv.Itoa(n), v, size, limit)
		limit -= size
	}
	return append(dst, ']')
}

func (c *cutter) value(dst []byte, key string, v value.Value, size, limit int) []byte {
	if size <= limit {
		return AppendValue(dst, v)
	}
	c.path = append(c.path, key)
	switch v.T {
	case value.Document:
		dst = c.document(dst, v.Doc(), max(limit, 0))
	case value.Array:
		dst = c.array(dst, v.Doc(), max(limit, 0))
	case value.String:
		dst = appendJSONString(dst, v.Bytes()[:min(max(limit, 0), len(v.Bytes()))])
	default:
		dst = append(dst, "null"...)
	}
	if c.typ == "" {
		c.typ, c.size = v.T.Name(), len(v.Bytes())
	}
	return dst
}

// report returns the attribute "truncated": where the document was cut, and the type and size of the element there.
func (c *cutter) report() []byte {
	var out []byte
	for _, p := range c.path {
		out = append(appendJSONString(append(out, '{'), p), ':')
	}
	out = appendJSONString(append(out, `{"type":`...), c.typ)
	out = append(strconv.AppendInt(append(out, `,"size":`...), int64(c.size), 10), '}')
	for range c.path {
		out = append(out, '}')
	}
	return out
}
