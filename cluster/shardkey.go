package cluster

import (
	"bytes"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/hashkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// KeyPart is one field of a shard key.
type KeyPart struct {
	Path   string
	Hashed bool
	fields []value.FieldName // Path split at its dots
}

// ShardKeyPattern is a parsed shard key: {a: 1}, {a: 1, "b.c": 1}, {a: "hashed"} or compound with one hashed field.
type ShardKeyPattern struct {
	Parts  []KeyPart
	doc    []byte
	hashed int // index of the hashed part, -1 if there is none
	simple bool
}

// ParseShardKey validates a key pattern. The rules are the manual's: at least one field, values 1 or "hashed", at most
// one hashed field, no empty path parts.
func ParseShardKey(pattern []byte) (*ShardKeyPattern, error) {
	k := &ShardKeyPattern{doc: append([]byte(nil), pattern...), hashed: -1, simple: true}
	for it := value.Walk(k.doc); ; {
		name, v, ok := it.Next()
		if !ok {
			break
		}
		p := KeyPart{Path: string(name)}
		if err := validPath(p.Path); err != nil {
			return nil, err
		}
		n, isNum := v.AsInt64()
		switch {
		case isNum && n == 1:
		case v.T == value.String && v.Str() == "hashed":
			if k.hashed >= 0 {
				return nil, mongoerr.New(mongoerr.BadValue, "Shard key pattern can contain at most one hashed field, and thus cannot be used")
			}
			p.Hashed, k.hashed = true, len(k.Parts)
		default:
			return nil, mongoerr.Newf(mongoerr.BadValue, "Field %s must contain a number with value 1 or the string 'hashed'", p.Path)
		}
		for name := range strings.SplitSeq(p.Path, ".") {
			p.fields = append(p.fields, value.NewFieldName(name))
		}
		k.simple = k.simple && len(p.fields) == 1
		k.Parts = append(k.Parts, p)
	}
	if len(k.Parts) == 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "Shard key is empty")
	}
	return k, nil
}

func validPath(p string) error {
	for _, part := range strings.Split(p, ".") {
		if part == "" {
			return mongoerr.Newf(mongoerr.BadValue, "Field %q of the shard key contains empty parts", p)
		}
		if part[0] == '$' {
			return mongoerr.Newf(mongoerr.BadValue, "Field %q of the shard key contains parts that start with '$'", p)
		}
	}
	return nil
}

// Doc returns the pattern as given.
func (k *ShardKeyPattern) Doc() []byte { return k.doc }

// IsHashed reports whether one of the fields is hashed.
func (k *ShardKeyPattern) IsHashed() bool   { return k.hashed >= 0 }
func (k *ShardKeyPattern) HashedIndex() int { return k.hashed }

// Index returns the index of a path among the key's fields, or -1.
func (k *ShardKeyPattern) Index(path string) int {
	for i := range k.Parts {
		if k.Parts[i].Path == path {
			return i
		}
	}
	return -1
}

// Paths returns the paths of the key's fields.
func (k *ShardKeyPattern) Paths() []string {
	out := make([]string, len(k.Parts))
	for i := range k.Parts {
		out[i] = k.Parts[i].Path
	}
	return out
}

// Covers reports whether updating path may change the shard key: path is a field of the key, or an ancestor or
// descendant.
func (k *ShardKeyPattern) Covers(path string) bool {
	for i := range k.Parts {
		p := k.Parts[i].Path
		if p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(path, p+".") {
			return true
		}
	}
	return false
}

// FromDocument appends to dst the values of a document's shard key, hashed as the pattern requires. A missing
// field counts as null. A field that is an array, or is below one, is refused.
func (k *ShardKeyPattern) FromDocument(doc []byte, dst []value.Value) ([]value.Value, error) {
	for i := range k.Parts {
		v, err := k.Parts[i].lookup(doc)
		if err != nil {
			return nil, err
		}
		// An index has the hash of undefined itself, and the shard key must agree with the index.
		if v.T == value.Missing || v.T == value.Undefined && !k.Parts[i].Hashed {
			v = value.NewNull()
		}
		if k.Parts[i].Hashed {
			v = value.NewInt64(hashkey.Hash(v))
		}
		dst = append(dst, v)
	}
	return dst, nil
}

// HashParts hashes in place the hashed field of a full key of raw values.
func (k *ShardKeyPattern) HashParts(key []value.Value) {
	if k.hashed >= 0 && k.hashed < len(key) {
		key[k.hashed] = value.NewInt64(hashkey.Hash(key[k.hashed]))
	}
}

// lookup follows the path through documents only.
func (p *KeyPart) lookup(doc []byte) (value.Value, error) {
	for i := range p.fields {
		v := p.fields[i].Lookup(doc)
		if v.T == value.Array {
			return v, mongoerr.New(mongoerr.ShardKeyNotFound, "Shard key cannot contain array values or array descendants.")
		}
		if i == len(p.fields)-1 {
			return v, nil
		}
		if v.T != value.Document {
			break
		}
		doc = v.Doc()
	}
	return value.Value{}, nil
}

// Extract returns a document's shard key as a document in the pattern's order, unhashed; missing fields are null.
func (k *ShardKeyPattern) Extract(doc []byte) ([]byte, error) {
	dst, m := value.Begin(nil)
	for i := range k.Parts {
		v, err := k.Parts[i].lookup(doc)
		if err != nil {
			return nil, err
		}
		if v.T == value.Missing {
			v = value.NewNull()
		}
		dst = value.Append(dst, k.Parts[i].Path, v)
	}
	return value.End(dst, m), nil
}

// DocumentKey returns what identifies a document in the oplog: its shard key, unhashed, and its _id.
func (k *ShardKeyPattern) DocumentKey(doc []byte) []byte {
	out, err := k.Extract(doc)
	if err != nil {
		out = value.Doc()
	}
	if k.Index("_id") < 0 {
		out = value.End(value.Append(out[:len(out)-1], "_id", value.Lookup(doc, "_id")), 0)
	}
	return out
}

// FromDocumentKey is FromDocument for what DocumentKey returns; ok is false if that lacks a field of the shard key, as the key of a document of
// another pattern does.
func (k *ShardKeyPattern) FromDocumentKey(key []byte) (vals []value.Value, ok bool) {
	for i := range k.Parts {
		v := value.Lookup(key, k.Parts[i].Path)
		if v.IsMissing() {
			return nil, false
		}
		if v.T == value.Undefined && !k.Parts[i].Hashed {
			v = value.NewNull()
		}
		vals = append(vals, v)
	}
	k.HashParts(vals)
	return vals, true
}

// IndexName is the name of an index on the key.
func (k *ShardKeyPattern) IndexName() string {
	out := ""
	for i, p := range k.Parts {
		if i > 0 {
			out += "_"
		}
		if p.Hashed {
			out += p.Path + "_hashed"
		} else {
			out += p.Path + "_1"
		}
	}
	return out
}

// KeyDoc builds a document of the pattern's fields from values, as chunk bounds are stored.
func (k *ShardKeyPattern) KeyDoc(vals []value.Value) []byte {
	dst, m := value.Begin(nil)
	for i := range k.Parts {
		dst = value.Append(dst, k.Parts[i].Path, vals[i])
	}
	return value.End(dst, m)
}

// GlobalMin and GlobalMax are the ends of the key space.
func (k *ShardKeyPattern) GlobalMin() []byte {
	return k.KeyDoc(repeated(value.NewMinKey(), len(k.Parts)))
}
func (k *ShardKeyPattern) GlobalMax() []byte {
	return k.KeyDoc(repeated(value.NewMaxKey(), len(k.Parts)))
}

func repeated(v value.Value, n int) []value.Value {
	out := make([]value.Value, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// NormalizeBound turns a user's bound (fields in any numeric type, possibly a prefix of the key) into a full one: the
// fields it leaves out become MinKey. Fields outside the key, or not in its order, are refused.
func (k *ShardKeyPattern) NormalizeBound(bound []byte) ([]byte, error) {
	vals := make([]value.Value, 0, len(k.Parts))
	i := 0
	for it := value.Walk(bound); ; i++ {
		name, v, ok := it.Next()
		if !ok {
			break
		}
		if i >= len(k.Parts) || string(name) != k.Parts[i].Path {
			return nil, mongoerr.Newf(mongoerr.BadValue, "field %s of the bound does not match the shard key", name)
		}
		vals = append(vals, v)
	}
	if err := CheckKeyValues(vals); err != nil {
		return nil, err
	}
	for len(vals) < len(k.Parts) {
		vals = append(vals, value.NewMinKey())
	}
	return k.KeyDoc(vals), nil
}

// HasBounds reports whether documents have the key's fields, in their order. Bounds that were computed for another key of the collection do not: it may have been
// resharded, or its key refined, since.
func (k *ShardKeyPattern) HasBounds(bounds ...[]byte) bool {
	for _, bound := range bounds {
		i := 0
		for name := range value.Elements(bound) {
			if i == len(k.Parts) || k.Parts[i].Path != name {
				return false
			}
			i++
		}
		if i < len(k.Parts) {
			return false
		}
	}
	return true
}

// CheckKeyValues returns an error for values that no document's shard key can have: arrays, regular expressions, and documents that cannot
// be stored within another.
func CheckKeyValues(vals []value.Value) error {
	for _, v := range vals {
		bad := v.T == value.Array || v.T == value.Regex || v.T == value.Undefined
		if v.T == value.Document {
			for name := range value.Elements(v.Doc()) {
				bad = bad || strings.HasPrefix(name, "$")
			}
		}
		if bad {
			return mongoerr.Newf(mongoerr.BadValue, "%s cannot be a value of a shard key", value.Show(v))
		}
	}
	return nil
}

// CheckRange returns an error for a range that does not begin before its end: as a chunk it would permanently corrupt the routing
// table.
func CheckRange(min, max []byte) error {
	if CompareKeys(value.Values(min), value.Values(max)) >= 0 {
		return mongoerr.Newf(mongoerr.FailedToParse, "min: %s should be less than max: %s", value.ShowDoc(min), value.ShowDoc(max))
	}
	return nil
}

// ExtendBound completes a bound from before the key was refined: missing fields become MinKey, or MaxKey if the bound is the end of
// the key space. A complete bound is returned unchanged.
func (k *ShardKeyPattern) ExtendBound(bound []byte) []byte {
	vals := value.Values(bound)
	if len(vals) >= len(k.Parts) || len(vals) == 0 {
		return bound
	}
	return k.KeyDoc(k.ExtendValues(vals))
}

// ExtendValues is ExtendBound for values.
func (k *ShardKeyPattern) ExtendValues(vals []value.Value) []value.Value {
	if len(vals) >= len(k.Parts) || len(vals) == 0 {
		return vals
	}
	fill := value.NewMinKey()
	if allOfType(vals, value.MaxKey) {
		fill = value.NewMaxKey()
	}
	return append(slices.Clip(vals), repeated(fill, len(k.Parts)-len(vals))...)
}

// ExtendedBy reports whether another key begins with all fields of this one, and has more.
func (k *ShardKeyPattern) ExtendedBy(longer *ShardKeyPattern) bool {
	return len(longer.Parts) > len(k.Parts) && slices.EqualFunc(longer.Parts[:len(k.Parts)], k.Parts, func(a, b KeyPart) bool { return a.Path == b.Path && a.Hashed == b.Hashed })
}

// IsPrefixOfIndex reports whether an index key pattern begins with the shard key, so that the index can serve as shard key index. It must be ascending in the
// fields of the shard key (manual: Shard Key Indexes Cannot Be Descending): a range of chunks would not be a range of a descending index.
func (k *ShardKeyPattern) IsPrefixOfIndex(index []byte) bool {
	it := value.Walk(index)
	for i := range k.Parts {
		name, v, ok := it.Next()
		if !ok || string(name) != k.Parts[i].Path {
			return false
		}
		if k.Parts[i].Hashed != (v.T == value.String && v.Str() == "hashed") {
			return false
		}
		if n, num := v.AsInt64(); !k.Parts[i].Hashed && !(num && n == 1) {
			return false
		}
	}
	return true
}

// AdmitsIndex reports whether an index with a specification may exist on a collection sharded by k. One that refuses duplicates, because it is unique or is being made
// so (prepareUnique), finds those on its own shard alone.
func (k *ShardKeyPattern) AdmitsIndex(spec []byte) bool {
	enforces := value.Lookup(spec, "unique").Truthy() || value.Lookup(spec, "prepareUnique").Truthy()
	return !enforces || k.UniqueIndexAllowed(value.LookupDoc(spec, "key"))
}

// UniqueIndexAllowed reports whether a unique index may exist on a collection sharded by k: its fields must begin
// with the shard key (the _id index is unique per shard only).
func (k *ShardKeyPattern) UniqueIndexAllowed(index []byte) bool {
	if bytes.Equal(index, idIndexKey) {
		return true
	}
	it := value.Walk(index)
	for i := range k.Parts {
		name, _, ok := it.Next()
		if !ok || string(name) != k.Parts[i].Path {
			return false
		}
	}
	return !k.IsHashed()
}

var idIndexKey = value.Doc(value.F("_id", value.NewInt32(1)))
