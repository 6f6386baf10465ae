package coordinator

import (
	"bytes"
	"slices"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// documentsNS is the namespace of the state documents.
const documentsNS = "config.system.sharding_ddl_coordinators"

// undoing is the phase of a run that is being undone.
const undoing = "undo"

// document is the stored state of a run.
type document struct {
	id      catalog.UUID
	op      operation
	ns      string // the name that identifies the operation
	command []byte // as nodes send it, without generic arguments
	forwarded
	phase   string
	failed  *mongoerr.Error // the error for which it is undone
	request catalog.UUID    // of the router that sent it; zero for none
	joined  []catalog.UUID  // the requests of other routers that have joined it (joined.go)
	term    int64           // of the primary that executes the run (run.through)
}

// forwarded is what nodes pass on with a client's command to those that execute parts of it.
type forwarded struct {
	comment  value.Value
	bypasses bool // write blocks (setUserWriteBlockMode)
}

func forwardedOf(op *command.Op) forwarded {
	return forwarded{value.Lookup(op.Req.Body, "comment").Clone(), op.BypassesWriteBlock()}
}

func (f *forwarded) fields() (list []value.Field) {
	if !f.comment.IsMissing() {
		list = append(list, value.F("comment", f.comment))
	}
	if f.bypasses {
		list = append(list, value.F(msg.BypassesWriteBlock, value.NewBool(true)))
	}
	return list
}

func readForwarded(doc []byte) forwarded {
	return forwarded{value.Lookup(doc, "comment").Clone(), value.Lookup(doc, msg.BypassesWriteBlock).Truthy()}
}

// takenOver gives the run the term of a primary that begins to execute it: a later one than those of the primaries before it, even if the terms of the set began
// anew.
func (d *document) takenOver(term int64) { d.term = max(d.term+1, term) }

func documents(store statedoc.Store) statedoc.Collection[*document] {
	return statedoc.In(store, documentsNS, readDocument)
}

// ID implements statedoc.Doc: there is one run of a kind at a time on a name.
func (d *document) ID() value.Value {
	return value.NewDocument(value.Doc(value.F("namespace", value.NewString(d.ns)), value.F("operationType", value.NewString(d.op.name()))))
}

// Doc implements statedoc.Doc.
func (d *document) Doc() []byte {
	f := []value.Field{value.F("_id", d.ID()), value.F("id", d.id.Value()), value.F("phase", value.NewString(d.phase)), value.F("command", value.NewDocument(d.command))}
	if list := d.forwarded.fields(); len(list) > 0 {
		f = append(f, value.F("forwardableOpMetadata", value.NewDocument(value.Doc(list...))))
	}
	if !d.request.IsZero() {
		f = append(f, value.F("request", d.request.Value()))
	}
	if len(d.joined) > 0 {
		f = append(f, value.F("joined", uuids(d.joined)))
	}
	if d.term != 0 {
		f = append(f, value.F("coordinatorTerm", value.NewInt64(d.term)))
	}
	if found := d.op.found(); found != nil {
		f = append(f, value.F("found", value.NewDocument(fieldsOf(found))))
	}
	if d.failed != nil {
		why := value.Doc(value.F("code", value.NewInt32(int32(d.failed.Code))), value.F("errmsg", value.NewString(d.failed.Message)))
		f = append(f, value.F("abortReason", value.NewDocument(why)))
	}
	return value.Doc(f...)
}

func readDocument(doc []byte) (*document, error) {
	odd := func(what string) error { return mongoerr.New(mongoerr.BadValue, what) }
	id, ok := catalog.UUIDFrom(value.Lookup(doc, "id"))
	d := &document{
		id: id, ns: value.Lookup(value.LookupDoc(doc, "_id"), "namespace").Str(), command: bytes.Clone(value.LookupDoc(doc, "command")),
		phase: value.Lookup(doc, "phase").Str(), term: value.SafeInt64(value.Lookup(doc, "coordinatorTerm")), forwarded: readForwarded(value.LookupDoc(doc, "forwardableOpMetadata")),
	}
	if !ok || d.ns == "" || len(d.command) == 0 {
		return nil, odd("unknown operation")
	}
	d.request, _ = catalog.UUIDFrom(value.Lookup(doc, "request"))
	d.joined = uuidsFrom(value.Lookup(doc, "joined"))
	var err error
	if d.op, err = parseOperation(d.command); err != nil {
		return nil, err
	}
	if d.op.name() != value.Lookup(value.LookupDoc(doc, "_id"), "operationType").Str() {
		return nil, odd("its operationType does not match its command")
	}
	if found := d.op.found(); found != nil {
		if err := msg.Parse(bytes.Clone(value.LookupDoc(doc, "found")), found); err != nil {
			return nil, err
		}
	}
	if why := value.LookupDoc(doc, "abortReason"); len(why) > 0 {
		code, _ := value.Lookup(why, "code").AsInt64()
		d.failed = mongoerr.New(mongoerr.Code(code), value.Lookup(why, "errmsg").Str())
	}
	if d.phase != undoing && phaseIndex(d.op, d.phase) < 0 || d.phase == undoing && d.failed == nil {
		return nil, odd("unknown phase")
	}
	return d, nil
}

func phaseIndex(op operation, name string) int {
	for i, p := range op.phases() {
		if p.name == name || slices.Contains(p.former, name) {
			return i
		}
	}
	return -1
}

// fieldsOf returns a message without a name as a document.
func fieldsOf(m msg.Message) []byte {
	dst, mark := value.Begin(nil)
	return value.End(msg.AppendFields(dst, m), mark)
}
