package msg

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/cluster/version"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Message is a command that one node sends to another, or the reply to one.
type Message interface {
	// fields passes the message's fields to c, in the order in which they are sent.
	fields(c *codec)
}

// Append appends a message as a document.
func Append(dst []byte, m Message) []byte {
	dst, mark := value.Begin(dst)
	c := codec{mode: appending, dst: dst, db: adminDB}
	m.fields(&c)
	if c.shape == aCommand {
		c.dst = value.Append(c.dst, "$db", value.NewString(c.db))
	}
	return value.End(c.dst, mark)
}

// AppendFields appends the elements of a reply, to which the command's pipeline adds the generic ones.
func AppendFields(dst []byte, m Message) []byte {
	c := codec{mode: appending, dst: dst}
	m.fields(&c)
	return c.dst
}

// Doc is Append to an empty buffer, with the elements of more after the message's own.
func Doc(m Message, more ...value.Field) []byte {
	doc := Append(nil, m)
	if len(more) == 0 {
		return doc
	}
	doc = doc[:len(doc)-1]
	for _, f := range more {
		doc = value.Append(doc, f.Key, f.Val)
	}
	return value.End(doc, 0)
}

// With is Doc with encoded elements after the message's own.
func With(m Message, elements ...[]byte) []byte {
	doc := Append(nil, m)
	doc = doc[:len(doc)-1]
	for _, e := range elements {
		doc = append(doc, e...)
	}
	return value.End(doc, 0)
}

// Parse reads a message from a document.
func Parse(doc []byte, m Message) error {
	elems, err := elements(doc, make([]elem, 0, 8))
	if err != nil {
		return err
	}
	c := codec{mode: parsing, elems: elems}
	m.fields(&c)
	return c.finish()
}

// adminDB is the database that commands between nodes are sent to, unless the message specifies another.
const adminDB = "admin"

// codec is one pass over a message's fields: it appends, parses or describes them.
type codec struct {
	mode  mode
	shape shape
	name  string // of the command, or of the document within it, for errors
	db    string

	dst   []byte // appending
	elems []elem // parsing
	err   error  // parsing: the first error
	desc  *Desc  // listing
}

type mode uint8

const (
	appending mode = iota
	parsing
	listing
)

// shape is the kind of a message: it determines which generic fields the message may have.
type shape uint8

const (
	aDocument shape = iota // within a message
	aCommand
	aReply
)

// knows reports whether a field that is not the message's own is allowed.
func (s shape) knows(key []byte) bool {
	return s == aCommand && Generic(key) || s == aReply && genericReply(key)
}

// elem is an element of the document that is parsed.
type elem struct {
	key  []byte
	val  value.Value
	seen bool
}

// elements splits a document into its elements.
func elements(doc []byte, dst []elem) ([]elem, error) {
	if len(doc) < 5 || doc[len(doc)-1] != 0 {
		return nil, errTruncated
	}
	n := 5
	for it := value.Walk(doc); ; {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			break
		}
		n += len(raw)
		dst = append(dst, elem{key: k, val: v})
	}
	if size := uint32(doc[0]) | uint32(doc[1])<<8 | uint32(doc[2])<<16 | uint32(doc[3])<<24; n != len(doc) || uint64(size) != uint64(n) {
		return nil, errTruncated
	}
	return dst, nil
}

var errTruncated = mongoerr.New(mongoerr.InvalidBSON, "truncated internal message: not a complete BSON document")

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// finish returns the first error of a parse, or an error if an element is not a known field.
func (c *codec) finish() error {
	for i := range c.elems {
		e := &c.elems[i]
		if c.err != nil {
			break
		}
		if !e.seen && !c.shape.knows(e.key) {
			c.fail(mongoerr.UnknownField(c.name + "." + string(e.key)))
		}
	}
	return c.err
}

// take finds a field to parse; ok is false if there is none, which is an error for a required one. Null means that
// the field was not sent, unless its kind is any value.
func (c *codec) take(name string, k Kind, required bool) (v value.Value, ok bool) {
	for i := range c.elems {
		e := &c.elems[i]
		if string(e.key) != name {
			continue
		}
		if e.seen || slices.ContainsFunc(c.elems[i+1:], func(o elem) bool { return string(o.key) == name }) {
			c.fail(mongoerr.DuplicateField(c.name + "." + name))
			return v, false
		}
		e.seen = true
		if e.val.T == value.Null && k != Any {
			break
		}
		if !k.accepts(e.val) {
			c.fail(wrongType(c.name+"."+name, e.val.T, k))
			return v, false
		}
		return e.val, true
	}
	if required {
		c.fail(mongoerr.MissingField(c.name + "." + name))
	}
	return v, false
}

func wrongType(path string, got value.Type, want Kind) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type '%s'", path, got.Name(), want)
}

// field handles one field: get makes its value for appending, and set stores what was parsed. omit reports
// whether an optional field has its default value, and reset sets it to that.
func (c *codec) field(name string, k Kind, required bool, omit bool, get func() value.Value, set func(value.Value)) {
	switch c.mode {
	case listing:
		c.desc.Fields = append(c.desc.Fields, Field{Name: name, Kind: k, Required: required})
	case appending:
		if required || !omit {
			c.dst = value.Append(c.dst, name, get())
		}
	case parsing:
		if v, ok := c.take(name, k, required); ok {
			set(v)
		}
	}
}

// Whether a field must be sent.
const (
	required = true
	optional = false
)

// command is a command's first element: its name and value.
func (c *codec) command(name string, k Kind, get func() value.Value, set func(value.Value)) {
	c.shape, c.name = aCommand, name
	switch c.mode {
	case listing:
		c.desc.Name, c.desc.Value = name, k
	case appending:
		c.dst = value.Append(c.dst, name, get())
	case parsing:
		if len(c.elems) == 0 || string(c.elems[0].key) != name {
			c.fail(mongoerr.New(mongoerr.CommandNotFound, "the message is not of type "+name))
			return
		}
		if v, ok := c.take(name, k, required); ok {
			set(v)
		}
	}
}

// on is a command whose value is the name of its target: a namespace, a database, a shard.
func (c *codec) on(name string, what *string) {
	c.command(name, String, func() value.Value { return value.NewString(*what) }, func(v value.Value) { *what = v.Str() })
}

// in is a command whose value is the name of a collection in the database that it is sent to; ns is the namespace of the two.
func (c *codec) in(name string, ns *string) {
	db, coll, _ := strings.Cut(*ns, ".")
	c.on(name, &coll)
	c.sentTo(&db)
	if c.mode == parsing {
		*ns = db + "." + coll
	}
}

// value is a command whose value may be of any type.
func (c *codec) value(name string, p *value.Value) {
	c.command(name, Any, func() value.Value { return *p }, func(v value.Value) { *p = v })
}

// plain is a command whose value is irrelevant.
func (c *codec) plain(name string) {
	c.command(name, Flag, func() value.Value { return value.NewInt32(1) }, func(value.Value) {})
}

// reply makes the message the reply to a command.
func (c *codec) reply(to string) { c.shape, c.name = aReply, to+".reply" }

func (c *codec) str(name string, required bool, p *string) {
	c.field(name, String, required, *p == "", func() value.Value { return value.NewString(*p) }, func(v value.Value) { *p = v.Str() })
}

func (c *codec) doc(name string, required bool, p *[]byte) {
	c.field(name, Document, required, *p == nil, func() value.Value { return value.NewDocument(*p) }, func(v value.Value) { *p = v.Doc() })
}

// flag is an optional boolean; any number is accepted, too.
func (c *codec) flag(name string, def bool, p *bool) {
	if c.mode == parsing {
		*p = def
	}
	c.field(name, Flag, optional, *p == def, func() value.Value { return value.NewBool(*p) }, func(v value.Value) { *p = v.Truthy() })
	if c.mode == listing {
		c.desc.Fields[len(c.desc.Fields)-1].Default = def
	}
}

func (c *codec) boolean(name string, required bool, p *bool) {
	c.field(name, Bool, required, !*p, func() value.Value { return value.NewBool(*p) }, func(v value.Value) { *p = v.Bool() })
}

func (c *codec) int64(name string, required bool, p *int64) {
	c.field(name, Long, required, *p == 0, func() value.Value { return value.NewInt64(*p) }, func(v value.Value) { *p, _ = v.AsInt64() })
}

func (c *codec) timestamp(name string, required bool, p *uint64) {
	c.field(name, Timestamp, required, *p == 0, func() value.Value { return value.NewTimestampU64(*p) }, func(v value.Value) { *p = v.TimestampU64() })
}

func (c *codec) objectID(name string, required bool, p *[12]byte) {
	c.field(name, ObjectID, required, *p == [12]byte{}, func() value.Value { return value.NewObjectID(*p) }, func(v value.Value) { *p = v.ObjectID() })
}

func (c *codec) uuid(name string, p *[16]byte) {
	c.field(name, UUID, required, false, func() value.Value { return value.NewBinary(4, p[:]) }, func(v value.Value) { copy(p[:], v.Bytes()) })
}

func (c *codec) binary(name string, p *[]byte) {
	c.field(name, Binary, required, false, func() value.Value { return value.NewBinary(0, *p) }, func(v value.Value) { *p = v.Bytes() })
}

// optionalUUID is an optional UUID; any value is valid, including all zeros.
func (c *codec) optionalUUID(name string, p **[16]byte) {
	c.field(name, UUID, optional, *p == nil, func() value.Value { return value.NewBinary(4, (*p)[:]) }, func(v value.Value) {
		*p = new([16]byte)
		copy((*p)[:], v.Bytes())
	})
}

// optionalInt64 is an optional integer; nil is not sent.
func (c *codec) optionalInt64(name string, p **int64) {
	c.field(name, Long, optional, *p == nil, func() value.Value { return value.NewInt64(**p) }, func(v value.Value) {
		n, _ := v.AsInt64()
		*p = &n
	})
}

func (c *codec) optionalBool(name string, p **bool) {
	c.field(name, Bool, optional, *p == nil, func() value.Value { return value.NewBool(**p) }, func(v value.Value) {
		b := v.Truthy()
		*p = &b
	})
}

func (c *codec) values(name string, required bool, p *[]value.Value) {
	c.field(name, Array, required, *p == nil, func() value.Value { return value.NewArray(value.ArrayOf(*p...)) }, func(v value.Value) {
		if *p = value.Values(v.Doc()); *p == nil {
			*p = []value.Value{}
		}
	})
}

// docs is an array of documents.
func (c *codec) docs(name string, required bool, p *[][]byte) {
	c.field(name, Documents, required, *p == nil, func() value.Value {
		dst, m := value.Begin(nil)
		for i, d := range *p {
			dst = value.AppendIndex(dst, i, value.NewDocument(d))
		}
		return value.NewArray(value.End(dst, m))
	}, func(v value.Value) {
		*p = [][]byte{}
		for _, d := range value.Values(v.Doc()) {
			*p = append(*p, d.Doc())
		}
	})
}

// strs is an array of strings.
func (c *codec) strs(name string, required bool, p *[]string) {
	c.field(name, Strings, required, *p == nil, func() value.Value {
		dst, m := value.Begin(nil)
		for i, s := range *p {
			dst = value.AppendIndex(dst, i, value.NewString(s))
		}
		return value.NewArray(value.End(dst, m))
	}, func(v value.Value) {
		*p = []string{}
		for _, s := range value.Values(v.Doc()) {
			*p = append(*p, s.Str())
		}
	})
}

// array is an array in its encoded form: for many elements, or large ones.
func (c *codec) array(name string, of Kind, p *[]byte) {
	c.field(name, of, required, false, func() value.Value {
		if *p == nil {
			return value.NewArray(value.ArrayOf())
		}
		return value.NewArray(*p)
	}, func(v value.Value) { *p = v.Doc() })
}

// built is an array that build appends to the message if it is not nil; otherwise it is like array. The elements are not copied again.
func (c *codec) built(name string, of Kind, p *[]byte, build func(dst []byte) []byte) {
	if c.mode != appending || build == nil {
		c.array(name, of, p)
		return
	}
	dst, mark := value.BeginKey(c.dst, value.Array, name)
	c.dst = value.End(build(dst), mark)
}

// any is an optional value of any type.
func (c *codec) any(name string, p *value.Value) {
	c.field(name, Any, optional, p.IsMissing(), func() value.Value { return *p }, func(v value.Value) { *p = v })
}

// sentTo is the database that a command is sent to if that is not always admin.
func (c *codec) sentTo(db *string) {
	switch c.mode {
	case appending:
		if *db != "" {
			c.db = *db
		}
	case parsing:
		for i := range c.elems {
			if string(c.elems[i].key) == "$db" {
				*db = c.elems[i].val.Str()
			}
		}
	}
}

// version is a chunk version.
func (c *codec) version(name string, p *version.Chunk) {
	c.field(name, Version, required, false, func() value.Value { return value.NewDocument(p.Doc()) }, func(v value.Value) {
		var err error
		if *p, err = version.ParseChunk(v); err != nil {
			c.fail(err)
		}
	})
}

// sub is a document with fields of its own.
func (c *codec) sub(name string, fields func(c *codec)) { c.nested(name, required, false, fields) }

// opt is an optional document with fields of its own; nil is not sent.
func opt[T any](c *codec, name string, p **T, fields func(c *codec, x *T)) {
	x := *p
	if x == nil {
		x = new(T)
	}
	if c.nested(name, optional, *p == nil, func(c *codec) { fields(c, x) }) {
		*p = x
	}
}

// nested handles a document with fields of its own, and reports whether it was parsed.
func (c *codec) nested(name string, required, omit bool, fields func(c *codec)) bool {
	switch c.mode {
	case listing:
		d := codec{mode: listing, desc: &Desc{}}
		fields(&d)
		c.desc.Fields = append(c.desc.Fields, Field{Name: name, Kind: Document, Required: required, Sub: d.desc.Fields})
	case appending:
		if required || !omit {
			var m int
			c.dst, m = value.BeginKey(c.dst, value.Document, name)
			fields(c)
			c.dst = value.End(c.dst, m)
		}
	case parsing:
		if v, ok := c.take(name, Document, required); ok {
			c.within(name, v.Doc(), fields)
			return true
		}
	}
	return false
}

// within parses a document nested in the message.
func (c *codec) within(name string, doc []byte, fields func(c *codec)) {
	elems, err := elements(doc, nil)
	d := codec{mode: parsing, elems: elems, name: c.name + "." + name}
	if err == nil {
		fields(&d)
		err = d.finish()
	}
	if err != nil {
		c.fail(err)
	}
}

// subs is an array of documents with fields of their own.
func subs[T any](c *codec, name string, list *[]T, fields func(c *codec, x *T)) {
	switch c.mode {
	case listing:
		d := codec{mode: listing, desc: &Desc{}}
		fields(&d, new(T))
		c.desc.Fields = append(c.desc.Fields, Field{Name: name, Kind: Documents, Required: true, Sub: d.desc.Fields})
	case appending:
		var m, n int
		c.dst, m = value.BeginKey(c.dst, value.Array, name)
		for i := range *list {
			c.dst, n = value.BeginKey(c.dst, value.Document, strconv.Itoa(i))
			fields(c, &(*list)[i])
			c.dst = value.End(c.dst, n)
		}
		c.dst = value.End(c.dst, m)
	case parsing:
		v, _ := c.take(name, Documents, required)
		for _, doc := range value.Values(v.Doc()) {
			var x T
			c.within(name, doc.Doc(), func(c *codec) { fields(c, &x) })
			*list = append(*list, x)
		}
	}
}
