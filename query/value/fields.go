package value

import "encoding/binary"

// FieldName is a top-level field's name, prepared for lookups in many documents: names of up to seven bytes are
// compared, with their NUL, as one number.
type FieldName struct {
	name       string
	word, mask uint64 // the first eight bytes of name and NUL, and which of them count
}

// NewFieldName prepares a name.
func NewFieldName(name string) FieldName {
	var b, m [8]byte
	for i := 0; i < 8 && i <= len(name); i++ {
		m[i] = 0xFF
		if i < len(name) {
			b[i] = name[i]
		}
	}
	return FieldName{name, binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(m[:])}
}

func (f *FieldName) String() string { return f.name }

// is reports whether an element's key is the name. w are the eight bytes that start with the key.
func (f *FieldName) is(w uint64, key []byte) bool {
	return w&f.mask == f.word && (len(f.name) < 8 || string(key) == f.name)
}

// Lookup finds the field; Missing if it is absent. It is equivalent to the function Lookup.
func (f *FieldName) Lookup(doc []byte) Value {
	if len(doc) < 5 {
		return Value{}
	}
	at := 4
	for at+9 <= len(doc) && doc[at] != 0 {
		w := binary.LittleEndian.Uint64(doc[at+1:])
		end := keyEnd(doc, at+1)
		if end < 0 {
			return Value{}
		}
		if f.is(w, doc[at+1:end]) {
			v, _ := decode(Type(doc[at]), doc[end+1:])
			return v
		}
		n := payloadLen(Type(doc[at]), doc[end+1:])
		if n < 0 {
			return Value{}
		}
		at = end + 1 + n
	}
	return lookupFrom(doc, at, f.name)
}

// Fields are names that are looked up together, in one pass over a document.
type Fields struct{ names []FieldName }

// Add adds a name and returns its number.
func (f *Fields) Add(name string) int {
	for i := range f.names {
		if f.names[i].name == name {
			return i
		}
	}
	f.names = append(f.names, NewFieldName(name))
	return len(f.names) - 1
}

// Len returns the number of names.
func (f *Fields) Len() int { return len(f.names) }

// Locate stores the position of each name in the document; Value reads it there. at must have Len elements.
func (f *Fields) Locate(doc []byte, at []int) {
	clear(at)
	left := len(at)
	if len(doc) < 5 || left == 0 {
		return
	}
	names := f.names[:len(at)]
	p := 4
	for p+9 <= len(doc) && doc[p] != 0 {
		w := binary.LittleEndian.Uint64(doc[p+1:])
		end := keyEnd(doc, p+1)
		if end < 0 {
			return
		}
		n := payloadLen(Type(doc[p]), doc[end+1:])
		if n < 0 {
			return
		}
		for i := range names {
			if names[i].is(w, doc[p+1:end]) {
				if at[i] == 0 {
					at[i] = p
					if left--; left == 0 {
						return
					}
				}
				break
			}
		}
		p = end + 1 + n
	}
	// The last few bytes hold at most an element or two.
	for p+1 < len(doc) && doc[p] != 0 {
		end := keyEnd(doc, p+1)
		if end < 0 {
			return
		}
		n := payloadLen(Type(doc[p]), doc[end+1:])
		if n < 0 {
			return
		}
		for i := range names {
			if at[i] == 0 && string(doc[p+1:end]) == names[i].name {
				at[i] = p
			}
		}
		p = end + 1 + n
	}
}

// Element returns the type and the payload, with what follows it, of name i, which Locate found at the given
// position, which must not be 0.
func (f *Fields) Element(doc []byte, at, i int) (Type, []byte) {
	return Type(doc[at]), doc[at+2+len(f.names[i].name):]
}

// Value returns the value of name i in a document in which Locate found it at the given position; Missing for
// position 0.
func (f *Fields) Value(doc []byte, at, i int) Value {
	if at == 0 {
		return Value{}
	}
	v, _ := decode(Type(doc[at]), doc[at+2+len(f.names[i].name):])
	return v
}
