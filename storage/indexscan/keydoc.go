package indexscan

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
)

// KeyDoc builds documents from index keys: {a: {b: 1}} from a key in an index on a.b. It is reused from key to
// key.
type KeyDoc struct {
	dec   keystring.Decoder
	ord   keystring.Ordering
	names []string
	tree  []branch
	vals  []value.Value
	buf   []byte
}

// branch is a field of the document: the key's field `at`, or a document of the branches below.
type branch struct {
	name string
	at   int
	sub  []branch
}

// NewKeyDoc compiles the fields of a scan's keys.
func NewKeyDoc(bounds []plan.FieldBounds) *KeyDoc {
	return newKeyDoc(bounds, func(path string) bool { return path != "$_path" })
}

// NewKeyDocOf is NewKeyDoc for documents of some paths only.
func NewKeyDocOf(bounds []plan.FieldBounds, paths []string) *KeyDoc {
	return newKeyDoc(bounds, func(path string) bool { return slices.Contains(paths, path) })
}

func newKeyDoc(bounds []plan.FieldBounds, wanted func(path string) bool) *KeyDoc {
	k := &KeyDoc{}
	for i := range bounds {
		if bounds[i].Desc {
			k.ord |= 1 << uint(i)
		}
		path := bounds[i].Path
		k.names = append(k.names, path)
		if wanted(path) {
			k.tree = insert(k.tree, strings.Split(path, "."), i)
		}
	}
	return k
}

func insert(tree []branch, parts []string, at int) []branch {
	for i := range tree {
		if tree[i].name != parts[0] {
			continue
		}
		switch {
		case len(parts) == 1:
			tree[i] = branch{name: parts[0], at: at}
		case tree[i].sub != nil:
			tree[i].sub = insert(tree[i].sub, parts[1:], at)
		}
		return tree // of a and a.b, the whole includes the part
	}
	b := branch{name: parts[0], at: at}
	if len(parts) > 1 {
		b.sub = insert(nil, parts[1:], at)
	}
	return append(tree, b)
}

// Doc returns the document of a key, borrowed until the next call; ok is false if the key is malformed.
func (k *KeyDoc) Doc(key, typeBits []byte) (doc []byte, ok bool) {
	k.dec.Reset(key, typeBits, k.ord)
	k.vals = k.vals[:0]
	for range k.names {
		v, ok := k.dec.Next()
		if !ok {
			return nil, false
		}
		k.vals = append(k.vals, v)
	}
	var mark int
	k.buf, mark = value.Begin(k.buf[:0])
	k.buf = value.End(k.appendTree(k.buf, k.tree), mark)
	return k.buf, true
}

// Values returns the key's fields of the last Doc, borrowed likewise.
func (k *KeyDoc) Values() []value.Value { return k.vals }

func (k *KeyDoc) appendTree(dst []byte, tree []branch) []byte {
	for i := range tree {
		b := &tree[i]
		if b.sub == nil {
			dst = value.Append(dst, b.name, k.vals[b.at])
			continue
		}
		inner, mark := value.BeginKey(dst, value.Document, b.name)
		dst = value.End(k.appendTree(inner, b.sub), mark)
	}
	return dst
}
