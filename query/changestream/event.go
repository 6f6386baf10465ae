package changestream

import (
	"strings"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
)

// Event is a change that streams report.
type Event struct {
	Token        *Token
	Type         string // operationType
	DB, Coll     string
	ToDB, ToColl string // the new name, of a rename
	UUID         value.Value
	Index        int    // in its transaction
	Key          []byte // documentKey; nil if it is not a change of a document
	FromMigrate  bool

	at, op      *Entry // the entry with which it commits, and the operation
	inTxn       bool   // the event has its transaction's lsid and txnNumber
	expanded    bool   // only for streams with showExpandedEvents
	system      bool   // only for streams with showSystemEvents
	nsType      string // of a create
	description []byte // operationDescription
	forms       [4]atomic.Pointer[[]byte]
}

// ClusterTime returns when the change happened.
func (e *Event) ClusterTime() uint64 { return e.at.TS }

// ImageTime returns the time under which the event's pre-image is stored: the one in a field of a transaction's
// entry, or that of the event.
func (e *Event) ImageTime(field string) uint64 {
	if e.at.ApplyOps() != nil || e.at.Commits() {
		if v := value.Lookup(e.at.O, field); !v.IsMissing() {
			return v.TimestampU64()
		}
	}
	return e.at.TS
}

// FullDocument returns the document of an insert or a replacement; nil for others.
func (e *Event) FullDocument() []byte {
	if e.Type == "insert" || e.Type == "replace" {
		return e.op.O
	}
	return nil
}

// Diff returns the delta of an update; nil for others.
func (e *Event) Diff() []byte {
	if e.Type == "update" {
		return value.Lookup(e.op.O, "diff").Doc()
	}
	return nil
}

// Changes reports whether a document had a state before the event.
func (e *Event) Changes() bool {
	return e.Type == "update" || e.Type == "replace" || e.Type == "delete"
}

func (e *Event) ofDocument() bool {
	if e.Coll == "system.views" {
		return e.ofView()
	}
	switch e.op.Op {
	case 'i':
		e.Type, e.Key = "insert", e.op.O2
		if e.Key == nil {
			e.Key = idOf(e.op.O)
		}
	case 'd':
		e.Type, e.Key = "delete", e.op.O
	case 'u':
		e.Type, e.Key = "replace", e.op.O2
		if !value.Lookup(e.op.O, "$v").IsMissing() && value.Lookup(e.op.O, "diff").T == value.Document {
			e.Type = "update"
		}
	}
	return true
}

func idOf(doc []byte) []byte { return value.Doc(value.F("_id", value.Lookup(doc, "_id"))) }

// ofView reads an event about a view from a write to system.views.
func (e *Event) ofView() bool {
	id := value.Lookup(e.op.O, "_id")
	if e.op.Op == 'u' {
		id = value.Lookup(e.op.O2, "_id")
	}
	db, coll, ok := strings.Cut(id.Str(), ".")
	if !ok {
		return false
	}
	e.DB, e.Coll, e.expanded, e.UUID = db, coll, true, value.Value{}
	switch e.op.Op {
	case 'i':
		e.Type, e.nsType, e.description = "create", "view", without(e.op.O, "_id")
		if strings.HasPrefix(value.Lookup(e.op.O, "viewOn").Str(), "system.buckets.") {
			e.nsType = "timeseries"
		}
	case 'd':
		e.Type = "drop"
	case 'u':
		e.Type, e.description = "modify", without(e.op.O, "_id", "$v", "diff")
	}
	return true
}

// commands are the commands in the oplog that streams report, each with a function that reads its description.
var commands = map[string]func(e *Event, arg value.Value){
	"drop":             func(e *Event, arg value.Value) { e.Type, e.Coll = "drop", arg.Str() },
	"dropDatabase":     func(e *Event, _ value.Value) { e.Type, e.Coll = "dropDatabase", "" },
	"renameCollection": (*Event).ofRename,
	"create": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.expanded, e.nsType = "create", arg.Str(), true, "collection"
		e.description = without(e.op.O, "create")
	},
	"createIndexes": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.expanded = "createIndexes", arg.Str(), true
		e.indexes(value.NewDocument(without(e.op.O, "createIndexes")))
	},
	"commitIndexBuild": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.expanded = "createIndexes", arg.Str(), true
		e.indexes(value.Values(value.Lookup(e.op.O, "indexes").Doc())...)
	},
	"startIndexBuild": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.system = "startIndexBuild", arg.Str(), true
		e.indexes(value.Values(value.Lookup(e.op.O, "indexes").Doc())...)
	},
	"abortIndexBuild": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.system = "abortIndexBuild", arg.Str(), true
		e.indexes(value.Values(value.Lookup(e.op.O, "indexes").Doc())...)
	},
	"dropIndexes": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.expanded = "dropIndexes", arg.Str(), true
		e.indexes(value.NewDocument(e.op.O2))
	},
	"collMod": func(e *Event, arg value.Value) {
		e.Type, e.Coll, e.expanded = "modify", arg.Str(), true
		e.description = without(e.op.O, "collMod")
	},
}

func (e *Event) ofCommand() bool {
	it := value.Walk(e.op.O)
	k, arg, _ := it.Next()
	read := commands[string(k)]
	if read != nil {
		read(e, arg)
	}
	return read != nil
}

func (e *Event) indexes(specs ...value.Value) {
	e.description = value.Doc(value.F("indexes", value.NewArray(value.ArrayOf(specs...))))
}

func (e *Event) ofRename(from value.Value) {
	e.Type = "rename"
	e.DB, e.Coll, _ = strings.Cut(from.Str(), ".")
	e.ToDB, e.ToColl, _ = strings.Cut(value.Lookup(e.op.O, "to").Str(), ".")
	f := []value.Field{value.F("to", namespace(e.ToDB, e.ToColl))}
	if t := value.Lookup(e.op.O, "dropTarget"); t.T == value.Binary {
		f = append(f, value.F("dropTarget", t))
	}
	e.description = value.Doc(f...)
}

// noops are the events that are logged as no-op entries: o2 has their namespace as its first field. True means
// showExpandedEvents, false showSystemEvents.
var noops = map[string]bool{
	"shardCollection": true, "reshardCollection": true, "refineCollectionShardKey": true, "movePrimary": true,
	"migrateChunkToNewShard": false, "migrateLastChunkFromShard": false,
}

func (e *Event) ofNoop() bool {
	it := value.Walk(e.op.O2)
	k, arg, ok := it.Next()
	expanded, known := noops[string(k)]
	if !ok || !known {
		return false
	}
	e.Type, e.expanded, e.system = string(k), expanded, !expanded
	e.DB, e.Coll, _ = strings.Cut(arg.Str(), ".")
	e.description = without(e.op.O2, string(k))
	return true
}

// without copies a document without some of its fields.
func without(doc []byte, names ...string) []byte {
	dst, mark := value.Begin(nil)
next:
	for it := value.Walk(doc); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return value.End(dst, mark)
		}
		for _, n := range names {
			if string(k) == n {
				continue next
			}
		}
		dst = append(dst, raw...)
	}
}

func namespace(db, coll string) value.Value {
	f := []value.Field{value.F("db", value.NewString(db))}
	if coll != "" {
		f = append(f, value.F("coll", value.NewString(coll)))
	}
	return value.NewDocument(value.Doc(f...))
}

// Form has the options of a stream on which an event's document depends.
type Form struct {
	Expanded bool // showExpandedEvents
	Raw      bool // showRawUpdateDescription
}

// Document returns the event's document in a form, without what has to be looked up. It is shared and must not be modified.
func (e *Event) Document(f Form) []byte {
	i := 0
	if f.Expanded {
		i |= 1
	}
	if f.Raw {
		i |= 2
	}
	if p := e.forms[i].Load(); p != nil {
		return *p
	}
	doc := e.build(f)
	e.forms[i].Store(&doc)
	return doc
}

func (e *Event) build(f Form) []byte {
	dst, mark := value.Begin(make([]byte, 0, 256+len(e.FullDocument())))
	dst = e.appendHead(dst, e.Token, e.Type)
	if f.Expanded && !e.UUID.IsMissing() {
		dst = value.Append(dst, "collectionUUID", e.UUID)
	}
	dst = value.Append(dst, "wallTime", value.NewDateTime(e.at.Wall))
	if e.inTxn {
		dst = value.Append(dst, "lsid", value.NewDocument(e.at.LSID))
		dst = value.Append(dst, "txnNumber", value.NewInt64(e.at.Number))
	}
	if full := e.FullDocument(); full != nil {
		dst = value.Append(dst, "fullDocument", value.NewDocument(full))
	}
	dst = value.Append(dst, "ns", namespace(e.DB, e.Coll))
	if f.Expanded && e.nsType != "" {
		dst = value.Append(dst, "nsType", value.NewString(e.nsType))
	}
	if e.Type == "rename" {
		dst = value.Append(dst, "to", namespace(e.ToDB, e.ToColl))
	}
	if e.Key != nil {
		dst = value.Append(dst, "documentKey", value.NewDocument(e.Key))
	}
	if f.Expanded && e.description != nil || e.system {
		dst = value.Append(dst, "operationDescription", value.NewDocument(e.description))
	}
	if f.Expanded && e.Type == "modify" && e.op.O2 != nil && e.op.Op == 'c' {
		dst = value.Append(dst, "stateBeforeChange", value.NewDocument(stateBefore(e.op.O2)))
	}
	if diff := e.Diff(); diff != nil {
		if f.Raw {
			dst = value.Append(dst, "rawUpdateDescription", value.NewDocument(diff))
		} else {
			dst = value.Append(dst, "updateDescription", value.NewDocument(describeUpdate(diff, f.Expanded)))
		}
	}
	return value.End(dst, mark)
}

func (e *Event) appendHead(dst []byte, t *Token, kind string) []byte {
	dst = value.Append(dst, "_id", value.NewDocument(t.Document()))
	dst = value.Append(dst, "operationType", value.NewString(kind))
	return value.Append(dst, "clusterTime", value.NewTimestampU64(e.at.TS))
}

// stateBefore returns the previous values of the options that a collMod changed.
func stateBefore(o2 []byte) []byte {
	var f []value.Field
	for _, name := range []string{"collectionOptions", "indexOptions"} {
		if v := value.Lookup(o2, name+"_old"); v.T == value.Document {
			f = append(f, value.F(name, v))
		}
	}
	return value.Doc(f...)
}

// Invalidate returns the event that ends a stream after e, with its token.
func (e *Event) Invalidate() (*Token, []byte) {
	t := e.Token.Invalidate()
	dst, mark := value.Begin(nil)
	dst = e.appendHead(dst, t, "invalidate")
	dst = value.Append(dst, "wallTime", value.NewDateTime(e.at.Wall))
	return t, value.End(dst, mark)
}
