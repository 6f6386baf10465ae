package timeseries

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/shoaldb/shoal/query/value"
)

// Fields has the names of the special fields of a measurement. Meta is empty if there is none.
type Fields struct {
	Time, Meta string
}

// NewFields returns the Fields of a collection's options. A metaField that is also the timeField is ignored.
func NewFields(timeField, metaField string) Fields {
	if metaField == timeField {
		metaField = ""
	}
	return Fields{timeField, metaField}
}

// version is the layout of a bucket: columns of plain values.
const version = 1

// Bucket is the header of a bucket to be packed.
type Bucket struct {
	ID      value.Value
	MinTime int64       // rounded down, as in the _id
	Meta    value.Value // Missing if the measurements have none
}

// column is one field's values.
type column struct {
	name     string
	data     []byte // elements by index
	min, max value.Value
}

// Pack makes a bucket document from measurements, which it sorts by time.
func Pack(f Fields, b Bucket, docs [][]byte, c value.Collator) []byte {
	sortByTime(f, docs)
	var cols []column
	index := map[string]int{}
	size := 0
	for i, doc := range docs {
		size += len(doc)
		key := strconv.Itoa(i)
		for it := value.Walk(doc); ; {
			k, v, ok := it.Next()
			if !ok {
				break
			}
			if f.Meta != "" && string(k) == f.Meta {
				continue
			}
			at, ok := index[string(k)]
			if !ok {
				at = len(cols)
				cols = append(cols, column{name: string(k)})
				index[string(k)] = at
			}
			col := &cols[at]
			col.data = value.Append(col.data, key, v)
			col.min, col.max = extreme(col.min, v, -1, c), extreme(col.max, v, 1, c)
		}
	}
	return appendBucket(make([]byte, 0, 2*size+256), f, b, cols)
}

func appendBucket(dst []byte, f Fields, b Bucket, cols []column) []byte {
	dst, m := value.Begin(dst)
	dst = value.Append(dst, "_id", b.ID)
	dst, control := value.BeginKey(dst, value.Document, "control")
	dst = value.Append(dst, "version", value.NewInt32(version))
	dst, at := value.BeginKey(dst, value.Document, "min")
	for i := range cols {
		v := cols[i].min
		if cols[i].name == f.Time {
			v = value.NewDateTime(b.MinTime)
		}
		dst = value.Append(dst, cols[i].name, v)
	}
	dst = value.End(dst, at)
	dst, at = value.BeginKey(dst, value.Document, "max")
	for i := range cols {
		dst = value.Append(dst, cols[i].name, cols[i].max)
	}
	dst = value.End(dst, at)
	dst = value.End(dst, control)
	if !b.Meta.IsMissing() {
		dst = value.Append(dst, "meta", b.Meta)
	}
	dst, data := value.BeginKey(dst, value.Document, "data")
	for i := range cols {
		dst, at = value.BeginKey(dst, value.Document, cols[i].name)
		dst = value.End(append(dst, cols[i].data...), at)
	}
	return value.End(value.End(dst, data), m)
}

func sortByTime(f Fields, docs [][]byte) {
	slices.SortStableFunc(docs, func(a, b []byte) int {
		s, t := value.Lookup(a, f.Time).DateTime(), value.Lookup(b, f.Time).DateTime()
		switch {
		case s < t:
			return -1
		case s > t:
			return 1
		}
		return 0
	})
}

// extreme returns the smaller (sign < 0) or larger of two values; documents are compared field by field.
func extreme(have, v value.Value, sign int, c value.Collator) value.Value {
	if have.IsMissing() {
		return v
	}
	if have.T == value.Document && v.T == value.Document {
		return value.NewDocument(extremeFields(have.Doc(), v.Doc(), sign, c))
	}
	if value.CompareCollated(v, have, c)*sign > 0 {
		return v
	}
	return have
}

func extremeFields(have, doc []byte, sign int, c value.Collator) []byte {
	if bytes.Equal(have, doc) {
		return have
	}
	dst, m := value.Begin(nil)
	for k, v := range value.Elements(have) {
		if other := value.Lookup(doc, k); !other.IsMissing() {
			v = extreme(v, other, sign, c)
		}
		dst = value.Append(dst, k, v)
	}
	for k, v := range value.Elements(doc) {
		if value.Lookup(have, k).IsMissing() {
			dst = value.Append(dst, k, v)
		}
	}
	return value.End(dst, m)
}

// Reader yields a bucket's measurements one by one.
type Reader struct {
	f    Fields
	meta value.Value
	cols []reading
	next int
	buf  []byte
}

// reading is a column being read.
type reading struct {
	name []byte
	it   value.Iter
	at   int // the measurement that v belongs to; -1 at the end
	v    value.Value
}

func (r *reading) step() {
	k, v, ok := r.it.Next()
	if !ok {
		r.at = -1
		return
	}
	r.at, r.v = 0, v
	for _, d := range k {
		r.at = r.at*10 + int(d-'0')
	}
}

// Reset begins a bucket, whose bytes must not change until the last Next.
func (r *Reader) Reset(f Fields, bucket []byte) {
	r.f, r.meta, r.cols, r.next = f, value.Value{}, r.cols[:0], 0
	if f.Meta != "" {
		r.meta = value.Lookup(bucket, "meta")
	}
	for it := value.Walk(value.Lookup(bucket, "data").Doc()); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		col := reading{name: k, it: value.Walk(v.Doc())}
		col.step()
		r.cols = append(r.cols, col)
		if n := len(r.cols); n > 1 && string(k) == f.Time { // the time is the first field
			copy(r.cols[1:], r.cols[:n-1])
			r.cols[0] = col
		}
	}
}

// Next returns the next measurement; its bytes are valid until the next call.
func (r *Reader) Next() (doc []byte, ok bool) {
	if len(r.cols) == 0 || r.cols[0].at < 0 {
		return nil, false
	}
	dst, m := value.Begin(r.buf[:0])
	for i := range r.cols {
		c := &r.cols[i]
		if c.at == r.next {
			dst = value.AppendKeyBytes(dst, c.name, c.v)
			c.step()
		}
		if i == 0 && !r.meta.IsMissing() {
			dst = value.Append(dst, r.f.Meta, r.meta)
		}
	}
	r.next++
	r.buf = value.End(dst, m)
	return r.buf, true
}

// Unpack returns copies of all measurements of a bucket.
func Unpack(f Fields, bucket []byte) (docs [][]byte) {
	var r Reader
	r.Reset(f, bucket)
	for {
		doc, ok := r.Next()
		if !ok {
			return docs
		}
		docs = append(docs, append([]byte(nil), doc...))
	}
}

// NewID returns a bucket's _id for its rounded time; rest makes it unique.
func NewID(minTime int64, rest [12]byte) value.Value {
	binary.BigEndian.PutUint32(rest[:4], seconds(minTime))
	return value.NewObjectID(rest)
}

// seconds returns the 32 bits that an _id has for a time in milliseconds; times out of range become the nearest
// that fits.
func seconds(ms int64) uint32 {
	return uint32(min(max(ms/1000, 0), math.MaxUint32))
}

// NormalMeta returns a metaField's value with the fields of documents in order of their names: measurements whose
// meta differs only in that order belong together.
func NormalMeta(v value.Value) value.Value {
	switch v.T {
	case value.Document:
		var fields []value.Field
		for k, e := range value.Elements(v.Doc()) {
			fields = append(fields, value.F(k, NormalMeta(e)))
		}
		slices.SortStableFunc(fields, func(a, b value.Field) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
		return value.NewDocument(value.Doc(fields...))
	case value.Array:
		all := value.Values(v.Doc())
		for i := range all {
			all[i] = NormalMeta(all[i])
		}
		return value.NewArray(value.ArrayOf(all...))
	}
	return v
}
