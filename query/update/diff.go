package update

import (
	"bytes"
	"strconv"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A delta is a document: d: {field: false, …} removes fields, u: {field: value, …} changes them in place, i: {field:
// value, …} adds them at the end (moving existing ones), s<field>: <delta> changes a nested document or array. The
// delta of an array is {a: true, l: <new length, if it shrinks>, u<index>: value, s<index>: <delta>}.

// Diff returns the change from old to new as an oplog delta, for updates of which only the result is known: pipelines. ok is false if
// a delta would not be smaller than the new document, so that a replacement should be logged instead.
func Diff(old, new []byte) (diff []byte, ok bool) {
	diff = docDiff(old, new)
	return diff, len(diff) < len(new)
}

// OplogEntry returns the `o` of the oplog entry for the document that Apply has made of ctx.Doc last; nil for the whole new document.
// What operators did is logged as they did it, however long that is.
func (u *Update) OplogEntry(ctx *Context, now []byte) []byte {
	switch u.form {
	case operators:
		return ctx.run.entry(now)
	case pipeline:
		if diff, ok := Diff(ctx.Doc, now); ok {
			return DiffEntry(diff)
		}
	}
	return nil
}

// DiffEntry wraps a delta in the form of the oplog's o field.
func DiffEntry(diff []byte) []byte {
	return value.Doc(value.F("$v", value.NewInt32(2)), value.F("diff", value.NewDocument(diff)))
}

type delta struct{ deletes, updates, inserts, subs []byte }

func docDiff(old, new []byte) []byte {
	var d delta
	var gone [][]byte
	a, b := value.Walk(old), value.Walk(new)
	rawA, ka, va, okA := a.NextRaw()
	rawB, kb, vb, okB := b.NextRaw()
	for okA && okB {
		if !bytes.Equal(ka, kb) {
			gone = append(gone, ka)
			rawA, ka, va, okA = a.NextRaw()
			continue
		}
		if !bytes.Equal(rawA, rawB) {
			d.change(kb, va, vb, rawB)
		}
		rawA, ka, va, okA = a.NextRaw()
		rawB, kb, vb, okB = b.NextRaw()
	}
	for ; okA; _, ka, _, okA = a.NextRaw() {
		gone = append(gone, ka)
	}
	for ; okB; rawB, kb, _, okB = b.NextRaw() {
		d.inserts = append(d.inserts, rawB...)
		for i, g := range gone {
			if bytes.Equal(g, kb) {
				gone = append(gone[:i], gone[i+1:]...)
				break
			}
		}
	}
	for _, g := range gone {
		d.deletes = value.AppendKeyBytes(d.deletes, g, value.NewBool(false))
	}
	return d.document()
}

func (d *delta) change(key []byte, old, new value.Value, raw []byte) {
	if sub := subDiff(old, new); sub != nil {
		d.subs = value.Append(d.subs, "s"+string(key), value.NewDocument(sub))
		return
	}
	d.updates = append(d.updates, raw...)
}

// subDiff returns the delta between two documents or two arrays; nil if there is none that is shorter than the new value.
func subDiff(old, new value.Value) (sub []byte) {
	switch {
	case old.T == value.Document && new.T == value.Document:
		sub = docDiff(old.Doc(), new.Doc())
	case old.T == value.Array && new.T == value.Array:
		sub = arrayDiff(old.Doc(), new.Doc())
	}
	if len(sub) >= len(new.Doc()) {
		return nil
	}
	return sub
}

func (d *delta) document() []byte {
	dst, mark := value.Begin(nil)
	for _, part := range []struct {
		key  string
		body []byte
	}{{"d", d.deletes}, {"u", d.updates}, {"i", d.inserts}} {
		if len(part.body) > 0 {
			var inner int
			dst, inner = value.BeginKey(dst, value.Document, part.key)
			dst = value.End(append(dst, part.body...), inner)
		}
	}
	return value.End(append(dst, d.subs...), mark)
}

func arrayDiff(old, new []byte) []byte {
	dst, mark := value.Begin(nil)
	dst = value.Append(dst, "a", value.NewBool(true))
	was, now := value.Values(old), value.Values(new)
	if len(now) < len(was) {
		dst = value.Append(dst, "l", value.NewInt32(int32(len(now))))
	}
	for i, v := range now {
		if i < len(was) {
			if same(was[i], v) {
				continue
			}
			if sub := subDiff(was[i], v); sub != nil {
				dst = value.Append(dst, "s"+strconv.Itoa(i), value.NewDocument(sub))
				continue
			}
		}
		dst = value.Append(dst, "u"+strconv.Itoa(i), v)
	}
	return value.End(dst, mark)
}

// same reports whether values have the same type and bytes.
func same(a, b value.Value) bool {
	var bufA, bufB [32]byte
	return a.T == b.T && bytes.Equal(value.AppendPayload(bufA[:0], a), value.AppendPayload(bufB[:0], b))
}

// ApplyDiff applies a delta made by Diff.
func ApplyDiff(doc, diff []byte) ([]byte, error) {
	return applyDocDiff(make([]byte, 0, len(doc)+len(diff)), doc, diff)
}

func badDiff(what string) error {
	return mongoerr.Newf(4770500, "invalid diff: %s", what)
}

func applyDocDiff(dst, doc, diff []byte) ([]byte, error) {
	var deletes, updates, inserts []byte
	subs := map[string]value.Value{}
	for k, v := range value.Elements(diff) {
		if v.T != value.Document {
			return nil, badDiff("field " + k)
		}
		switch {
		case k == "d":
			deletes = v.Doc()
		case k == "u":
			updates = v.Doc()
		case k == "i":
			inserts = v.Doc()
		case k[:min(1, len(k))] == "s":
			subs[k[1:]] = v
		default:
			return nil, badDiff("field " + k)
		}
	}
	dst, mark := value.Begin(dst)
	for it := value.Walk(doc); ; {
		raw, key, v, ok := it.NextRaw()
		if !ok {
			break
		}
		k := string(key)
		if has(deletes, k) || has(inserts, k) {
			continue
		}
		if now := value.Lookup(updates, k); now.T != value.Missing {
			dst = value.AppendKeyBytes(dst, key, now)
			continue
		}
		sub, changed := subs[k]
		if !changed {
			dst = append(dst, raw...)
			continue
		}
		now, err := applySub(v, sub.Doc())
		if err != nil {
			return nil, err
		}
		dst = value.AppendKeyBytes(dst, key, now)
	}
	for it := value.Walk(updates); ; { // an update of a missing field adds it, so that entries may be applied twice
		raw, key, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if !has(doc, string(key)) {
			dst = append(dst, raw...)
		}
	}
	if len(inserts) > 5 {
		dst = append(dst, inserts[4:len(inserts)-1]...)
	}
	return value.End(dst, mark), nil
}

func has(doc []byte, key string) bool { return value.Lookup(doc, key).T != value.Missing }

func applySub(v value.Value, diff []byte) (value.Value, error) {
	isArray := value.Lookup(diff, "a").T == value.Boolean
	switch {
	case isArray && v.T == value.Array:
		out, err := applyArrayDiff(v.Doc(), diff)
		return value.NewArray(out), err
	case !isArray && v.T == value.Document:
		out, err := applyDocDiff(nil, v.Doc(), diff)
		return value.NewDocument(out), err
	}
	return v, nil // the value has been replaced since: a later entry has the new value
}

func applyArrayDiff(arr, diff []byte) ([]byte, error) {
	vals := value.Values(arr)
	for k, v := range value.Elements(diff) {
		switch {
		case k == "a":
			continue
		case k == "l":
			if n := int(v.Int32()); n >= 0 && n < len(vals) {
				vals = vals[:n]
			}
			continue
		case len(k) < 2 || k[0] != 'u' && k[0] != 's':
			return nil, badDiff("field " + k)
		}
		i, err := strconv.Atoi(k[1:])
		if err != nil || i < 0 || i > maxBackfill+len(vals) {
			return nil, badDiff("index " + k)
		}
		for i >= len(vals) {
			vals = append(vals, value.NewNull())
		}
		if k[0] == 's' {
			if v, err = applySub(vals[i], v.Doc()); err != nil {
				return nil, err
			}
		}
		vals[i] = v
	}
	return value.ArrayOf(vals...), nil
}
