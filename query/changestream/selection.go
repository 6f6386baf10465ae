package changestream

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Selection is a condition of a stream: of the events about documents, it returns only those with a certain value at a path. Many streams
// of one namespace differ only in that value: once events are sorted by it, an event costs nothing for the streams that it does not
// concern.
type Selection struct {
	Path    string // begins with fullDocument or documentKey
	Key     string // of the value
	Updates bool   // updates may have a fullDocument, which is not part of their entry
}

// SelectionOf returns the condition that a stream's pipeline sets in its first $match; nil if there is none that can be
// sorted by. updates means that the stream has the documents of updates.
func SelectionOf(pipeline value.Value, updates bool) *Selection {
	stages := value.Values(pipeline.Doc())
	if len(stages) < 2 {
		return nil
	}
	s := selectionIn(value.Lookup(stages[1].Doc(), "$match"))
	if s != nil {
		s.Updates = updates
	}
	return s
}

func selectionIn(filter value.Value) *Selection {
	if filter.T != value.Document {
		return nil
	}
	for k, v := range value.Elements(filter.Doc()) {
		switch {
		case k == "$and" && v.T == value.Array:
			for _, part := range value.Values(v.Doc()) {
				if s := selectionIn(part); s != nil {
					return s
				}
			}
		case k == "$or" && v.T == value.Array:
			if s := selectionBeside(value.Values(v.Doc())); s != nil {
				return s
			}
		case strings.HasPrefix(k, "fullDocument.") || strings.HasPrefix(k, "documentKey."):
			if v.T == value.Document {
				it := value.Walk(v.Doc())
				if op, arg, ok := it.Next(); ok && string(op) == "$eq" {
					v = arg
				}
			}
			if key, ok := selectKey(v); ok {
				return &Selection{Path: k, Key: key}
			}
		}
	}
	return nil
}

// selectionBeside returns the condition in a list of alternatives whose others only match events that do not concern a
// document: those that a router admits in addition to the client's own condition.
func selectionBeside(parts []value.Value) (found *Selection) {
	for _, part := range parts {
		if ofNoDocument(part) {
			continue
		}
		s := selectionIn(part)
		if s == nil || found != nil {
			return nil
		}
		found = s
	}
	return found
}

func ofNoDocument(filter value.Value) bool {
	kinds := value.Lookup(value.Lookup(filter.Doc(), "operationType").Doc(), "$in")
	if kinds.T != value.Array {
		return false
	}
	for _, v := range value.Values(kinds.Doc()) {
		if v.T != value.String || OfDocument(v.Str()) {
			return false
		}
	}
	return true
}

// OfDocument reports whether events of a kind concern a document.
func OfDocument(kind string) bool {
	return kind == "insert" || kind == "update" || kind == "replace" || kind == "delete"
}

// selectKey returns a key for a value such that values with different keys are never equal; ok is false if there is no such key.
func selectKey(v value.Value) (key string, ok bool) {
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128, value.String, value.ObjectID, value.Boolean, value.DateTime, value.Binary:
		return string(value.AppendGroupKey(nil, v, nil)), true
	}
	return "", false
}

// Selects returns the key that an event has at a path; maybe is true if streams with other keys may have the event, too. key and
// full are its documentKey and its fullDocument.
func Selects(kind string, key, full []byte, path string, updates bool) (selected string, maybe bool) {
	if !OfDocument(kind) {
		return "", true
	}
	root, rest, _ := strings.Cut(path, ".")
	doc := key
	if root == "fullDocument" {
		if kind == "update" {
			return "", updates // it is looked up, or stored as an image
		}
		doc = full
	}
	v := value.NewDocument(doc)
	for more := true; more; {
		var name string
		switch name, rest, more = strings.Cut(rest, "."); v.T {
		case value.Document:
			v = value.Lookup(v.Doc(), name)
		case value.Array:
			return "", true
		default:
			return "", false
		}
	}
	selected, ok := selectKey(v)
	return selected, !ok && !v.IsMissing() && v.T != value.Null && v.T != value.Document
}
