package changestream

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Entry has the fields of an oplog entry that matter to change streams. It owns its memory.
type Entry struct {
	TS          uint64
	Wall        int64 // milliseconds
	Op          byte  // i, u, d, c, n
	NS          string
	UUID        value.Value
	O, O2       []byte
	LSID        []byte // of an entry of a session, with its Number
	Number      int64
	Prev        uint64 // prevOpTime's timestamp: the previous entry of its session, 0 for none
	FromMigrate bool
	Separate    bool // its operations are no transaction, although they are logged together (multiOpType 1)
}

// PositionNote is the message of the no-op writes by which a router makes one of a shard's streams report its position.
// They name the stream's cursor.
const PositionNote = "change stream position"

// ParseEntry reads a document of local.oplog.rs, which the entry owns from now on.
func ParseEntry(doc []byte) *Entry {
	e := &Entry{}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return e
		}
		switch string(k) {
		case "ts":
			e.TS = v.TimestampU64()
		case "wall":
			e.Wall = v.DateTime()
		case "op":
			if s := v.Bytes(); len(s) == 1 {
				e.Op = s[0]
			}
		case "ns":
			e.NS = v.Str()
		case "ui":
			e.UUID = v
		case "o":
			e.O = v.Doc()
		case "o2":
			e.O2 = v.Doc()
		case "lsid":
			e.LSID = v.Doc()
		case "txnNumber":
			e.Number, _ = v.AsInt64()
		case "prevOpTime":
			e.Prev = value.Lookup(v.Doc(), "ts").TimestampU64()
		case "fromMigrate":
			e.FromMigrate = v.Truthy()
		case "multiOpType":
			e.Separate = value.SafeInt64(v) == 1
		}
	}
}

// ApplyOps returns the array of operations of a transaction's entry; nil for other entries.
func (e *Entry) ApplyOps() []byte {
	if e.Op != 'c' {
		return nil
	}
	it := value.Walk(e.O)
	if k, v, ok := it.Next(); ok && string(k) == "applyOps" {
		return v.Doc()
	}
	return nil
}

// Waits reports whether the entry's operations take effect with a later entry: it is a part of a transaction,
// or prepared.
func (e *Entry) Waits() bool {
	return e.ApplyOps() != nil && (value.Lookup(e.O, "partialTxn").Truthy() || value.Lookup(e.O, "prepare").Truthy())
}

// Commits reports whether the entry is the commit decision of a prepared transaction, whose operations are in
// earlier entries.
func (e *Entry) Commits() bool {
	it := value.Walk(e.O)
	k, _, _ := it.Next()
	return e.Op == 'c' && string(k) == "commitTransaction"
}

// Continues reports whether an entry that commits a transaction has only the last of its operations: the others
// are in the entries that Prev leads to.
func (e *Entry) Continues() bool {
	return e.Commits() || e.ApplyOps() != nil && !e.Waits() && !value.Lookup(e.O, "count").IsMissing()
}

// Events returns the changes of an entry that is not part of a longer transaction.
func (e *Entry) Events() []*Event {
	if ops := e.ApplyOps(); ops != nil {
		if e.Waits() {
			return nil
		}
		events, _ := e.Operations(ops, 0)
		return events
	}
	if ev := e.event(e, 0); ev != nil {
		return []*Event{ev}
	}
	return nil
}

// Operations returns the changes of an array of operations; index is the position of the first one in its
// transaction, which commits with e. next is the index of the following one.
func (e *Entry) Operations(ops []byte, index int) (events []*Event, next int) {
	for it := value.Walk(ops); ; {
		_, v, ok := it.Next()
		if !ok {
			return events, index
		}
		if v.T == value.Document {
			if ev := e.event(ParseEntry(v.Doc()), index); ev != nil {
				ev.inTxn = e.LSID != nil && !e.Separate
				events = append(events, ev)
			}
		}
		index++
	}
}

// event returns the change of one operation, which commits with e; nil if streams do not report it.
func (e *Entry) event(op *Entry, index int) *Event {
	ev := &Event{at: e, op: op, UUID: op.UUID, FromMigrate: op.FromMigrate || e.FromMigrate}
	ev.DB, ev.Coll, _ = strings.Cut(op.NS, ".")
	known := false
	switch op.Op {
	case 'i', 'u', 'd':
		known = ev.ofDocument()
	case 'c':
		known = ev.ofCommand()
	case 'n':
		known = ev.ofNoop()
	}
	if !known {
		return nil
	}
	identifier := []value.Field{value.F("operationType", value.NewString(ev.Type))}
	if ev.Key != nil {
		identifier = append(identifier, value.F("documentKey", value.NewDocument(ev.Key)))
	} else if ev.description != nil {
		identifier = append(identifier, value.F("operationDescription", value.NewDocument(ev.description)))
	}
	uuid := ev.UUID
	if uuid.IsMissing() {
		uuid = value.NewNull()
	}
	ev.Index = index
	ev.Token = makeToken(e.TS, EventToken, index, uuid, value.NewDocument(value.Doc(identifier...)))
	return ev
}
