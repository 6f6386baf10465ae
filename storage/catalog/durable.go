package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/indexkey"
)

// Encode returns the durable entry of a collection, in the shape of _mdb_catalog:
//
//	{md: {ns, options: {…, uuid}, indexes: [{spec, ready, multikey, multikeyPaths, arrayPaths?, head, backgroundSecondary, buildUUID?}]},
//	 idxIdent: {name: ident}, ns, ident}
func Encode(c *Collection) []byte {
	out, doc := value.Begin(nil)
	out, md := value.BeginKey(out, value.Document, "md")
	out = value.Append(out, "ns", value.NewString(c.NS))
	if !c.Replicated {
		out = value.Append(out, "unreplicated", value.NewBool(true))
	}
	out, opts := value.BeginKey(out, value.Document, "options")
	for it := value.Walk(c.Options); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		out = value.AppendKeyBytes(out, k, v)
	}
	out = value.Append(out, "uuid", c.UUID.Value())
	out = value.End(out, opts)
	out, arr := value.BeginKey(out, value.Array, "indexes")
	for i, idx := range c.Indexes {
		out = value.AppendIndex(out, i, value.NewDocument(encodeIndex(idx)))
	}
	out = value.End(out, arr)
	out = value.End(out, md)
	out, idents := value.BeginKey(out, value.Document, "idxIdent")
	for _, idx := range c.Indexes {
		out = value.Append(out, idx.Name, value.NewString(idx.IdentName))
	}
	out = value.End(out, idents)
	out = value.Append(out, "ns", value.NewString(c.NS))
	out = value.Append(out, "ident", value.NewString(c.IdentName))
	return value.End(out, doc)
}

func encodeIndex(i *Index) []byte {
	out, doc := value.Begin(nil)
	out = value.Append(out, "spec", value.NewDocument(i.Spec.Raw))
	out = value.Append(out, "ready", value.NewBool(i.Ready))
	out = value.Append(out, "multikey", value.NewBool(i.Multikey))
	out, paths := value.BeginKey(out, value.Document, "multikeyPaths")
	for n, f := range i.Spec.Fields {
		if !tracksArrays(f.Kind) {
			continue
		}
		bits := make([]byte, strings.Count(f.Path, ".")+1)
		for b := range bits {
			if n < len(i.MultikeyPaths) && i.MultikeyPaths[n]>>uint(b)&1 != 0 {
				bits[b] = 1
			}
		}
		out = value.Append(out, f.Path, value.NewBinary(0, bits))
	}
	out = value.End(out, paths)
	out = appendArrayPaths(out, i)
	out = value.Append(out, "head", value.NewInt64(0))
	out = value.Append(out, "backgroundSecondary", value.NewBool(false))
	if !i.Build.UUID.IsZero() {
		out = value.Append(out, "buildUUID", i.Build.UUID.Value())
		out = value.Append(out, "enforcing", value.NewBool(i.Enforcing))
		if i.Build.Loaded {
			out = value.Append(out, "loaded", value.NewBool(true))
		}
	}
	return value.End(out, doc)
}

// tracksArrays reports whether the multikey paths of a field of that kind are stored. A geometry has a key for each of its cells,
// which counts as an array at its path: a query's conditions on it may hold for different cells.
func tracksArrays(k indexkey.Kind) bool {
	return k == indexkey.BTree || k == indexkey.Sphere || k == indexkey.Geo2D
}

// appendArrayPaths writes the paths at which a wildcard index has met arrays. Without the element any path may have some: so it is in entries of
// earlier versions, and in those of an index with too many of them.
func appendArrayPaths(dst []byte, i *Index) []byte {
	if i.Spec.Kind != indexkey.Wildcard || !i.Multikey || i.ArrayPaths == nil {
		return dst
	}
	dst, arr := value.BeginKey(dst, value.Array, "arrayPaths")
	for n, p := range i.ArrayPaths {
		dst = value.AppendIndex(dst, n, value.NewString(p))
	}
	return value.End(dst, arr)
}

// decodeArrayPaths reads what appendArrayPaths has written.
func (i *Index) decodeArrayPaths(v value.Value) {
	if i.Spec.Kind != indexkey.Wildcard || !i.Multikey {
		return
	}
	for n, f := range i.Spec.Fields {
		if f.Kind == indexkey.Wildcard {
			i.MultikeyPaths[n] = 1
		}
	}
	if v.T != value.Array {
		return
	}
	i.ArrayPaths = []string{}
	for _, p := range value.Values(v.Doc()) {
		i.ArrayPaths = append(i.ArrayPaths, p.Str())
	}
	slices.Sort(i.ArrayPaths)
}

// Decode makes a collection from its durable entry. Counters start empty.
func Decode(id int64, entry []byte) (*Collection, error) {
	md := value.Lookup(entry, "md").Doc()
	c := &Collection{NS: value.Lookup(md, "ns").Str(), CatalogID: id, Counters: &Counters{}}
	c.IdentName = value.Lookup(entry, "ident").Str()
	var err error
	if c.Ident, err = ParseIdent(c.IdentName); err != nil {
		return nil, err
	}
	opts, mark := value.Begin(nil)
	for it := value.Walk(value.Lookup(md, "options").Doc()); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if string(k) == "uuid" {
			if c.UUID, ok = UUIDFrom(v); !ok {
				return nil, fmt.Errorf("catalog entry %d: bad uuid", id)
			}
			continue
		}
		opts = value.AppendKeyBytes(opts, k, v)
	}
	c.Replicated = !value.Lookup(md, "unreplicated").Truthy()
	c.SetOptions(value.End(opts, mark))
	idents := value.Lookup(entry, "idxIdent").Doc()
	for _, v := range value.Values(value.Lookup(md, "indexes").Doc()) {
		idx, err := decodeIndex(v.Doc(), idents, c.Clustered)
		if err != nil {
			return nil, err
		}
		c.Indexes = append(c.Indexes, idx)
	}
	return c, nil
}

func decodeIndex(doc, idents []byte, clustered bool) (*Index, error) {
	spec := append([]byte(nil), value.Lookup(doc, "spec").Doc()...)
	name := value.Lookup(spec, "name").Str()
	identName := value.Lookup(idents, name).Str()
	ident, err := ParseIdent(identName)
	if err != nil {
		return nil, err
	}
	idx, err := NewIndex(spec, ident, identName, clustered)
	if err != nil {
		return nil, fmt.Errorf("index %q: %w", name, err)
	}
	idx.Ready = value.Lookup(doc, "ready").Truthy()
	idx.Multikey = value.Lookup(doc, "multikey").Truthy()
	paths := value.Lookup(doc, "multikeyPaths").Doc()
	for _, f := range idx.Spec.Fields {
		var mask uint64
		stored := value.Lookup(paths, f.Path)
		for b, set := range stored.Bytes() {
			if set != 0 && b < 64 {
				mask |= 1 << uint(b)
			}
		}
		if idx.Multikey && stored.IsMissing() && tracksArrays(f.Kind) { // an earlier version did not store that of geometries
			mask = 1<<min(uint(strings.Count(f.Path, ".")+1), 64) - 1
		}
		idx.MultikeyPaths = append(idx.MultikeyPaths, mask)
	}
	idx.decodeArrayPaths(value.Lookup(doc, "arrayPaths"))
	if b, ok := UUIDFrom(value.Lookup(doc, "buildUUID")); ok {
		idx.Build.UUID = b
		idx.Enforcing = value.Lookup(doc, "enforcing").Truthy()
		idx.Build.Loaded = value.Lookup(doc, "loaded").Truthy()
	}
	return idx, nil
}

// SetOptions replaces the options and what is derived from them. It is for collections under construction.
func (c *Collection) SetOptions(options []byte) {
	c.Options = options
	c.Capped = value.Lookup(options, "capped").Truthy()
	c.CappedSize, c.CappedMax = 0, 0
	if c.Capped {
		c.CappedSize, _ = value.Lookup(options, "size").AsInt64()
		c.CappedMax, _ = value.Lookup(options, "max").AsInt64()
	}
	c.Temp = value.Lookup(options, "temp").Truthy()
	c.Images = value.Lookup(value.Lookup(options, "changeStreamPreAndPostImages").Doc(), "enabled").Truthy()
	ci := value.Lookup(options, "clusteredIndex")
	c.Clustered = ci.T == value.Document || ci.T == value.Boolean && ci.Bool()
	c.ClusteredName = ""
	if ci.T == value.Document {
		c.ClusteredName = value.Lookup(ci.Doc(), "name").Str()
	}
	c.Collation, c.Collator = nil, nil
	if v := value.Lookup(options, "collation"); v.T == value.Document {
		c.Collation = v.Doc()
		if spec, err := collation.Parse(c.Collation); err == nil {
			c.Collator = spec.Collator()
		}
	}
}

// IdentName returns a name in the style of the real server's, with the ident before the salt: "collection-17-…".
func IdentName(kind string, id Ident, salt uint64) string {
	return fmt.Sprintf("%s-%d-%d", kind, id, salt)
}

// ParseIdent extracts the number from an ident's name.
func ParseIdent(name string) (Ident, error) {
	parts := strings.SplitN(name, "-", 3)
	if len(parts) == 3 {
		if n, err := strconv.ParseUint(parts[1], 10, 32); err == nil && n > 0 {
			return Ident(n), nil
		}
	}
	return 0, fmt.Errorf("%q is not the name of an ident", name)
}
