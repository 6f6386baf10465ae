package resharding

import (
	"bytes"
	"context"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The state documents of participants.
const (
	donorsNS     = "config.localReshardingOperations.donor"
	recipientsNS = "config.localReshardingOperations.recipient"
	clonesNS     = "config.localReshardingOperations.recipient.progress_cloner"
	appliersNS   = "config.localReshardingOperations.recipient.progress_applier"
	sessionsNS   = "config.localReshardingOperations.recipient.progress_txn_cloner"
	stashPrefix  = "config.localReshardingConflictStash."
	bufferPrefix = "config.localReshardingOplogBuffer."
)

// States of participants, as in state documents and currentOp.
const (
	donatingData  = "donating-initial-data"
	donatingOplog = "donating-oplog-entries"

	cloning  = "cloning"
	applying = "applying"
	strict   = "strict-consistency"
	failed   = "error"
)

// about has the fields that a donor's and a recipient's document share.
type about struct {
	id      catalog.UUID // of the operation, and of the temporary collection
	ns      string
	uuid    catalog.UUID // of the collection as it is
	temp    string
	since   int64  // milliseconds since the epoch
	command []byte // that began the operation
}

func (a *about) ID() value.Value { return a.id.Value() }

func (a *about) fields() []value.Field {
	return []value.Field{
		value.F("_id", a.ID()), value.F("ns", value.NewString(a.ns)), value.F("ui", a.uuid.Value()), value.F("tempNs", value.NewString(a.temp)),
		value.F("startTime", value.NewDateTime(a.since)), value.F("originatingCommand", value.NewDocument(a.command)),
	}
}

func readAbout(doc []byte) (a about, err error) {
	var ok, known bool
	a.id, ok = catalog.UUIDFrom(value.Lookup(doc, "_id"))
	a.uuid, known = catalog.UUIDFrom(value.Lookup(doc, "ui"))
	a.ns, a.temp, a.since = value.Lookup(doc, "ns").Str(), value.Lookup(doc, "tempNs").Str(), value.Lookup(doc, "startTime").DateTime()
	a.command = bytes.Clone(value.LookupDoc(doc, "originatingCommand"))
	if len(a.command) == 0 { // written by an earlier version
		a.command = value.Doc(value.F("reshardCollection", value.NewString(a.ns)))
	}
	if !ok || !known || command.CheckFullName(a.ns) != nil || a.temp == "" {
		return a, mongoerr.New(mongoerr.BadValue, "it has no resharding id")
	}
	return a, nil
}

// begun stores the document with which a participant's part begins, or once more the one that an earlier message has stored, and returns it.
func begun[T statedoc.Doc](ctx context.Context, docs statedoc.Collection[T], store statedoc.Store, doc T) (stored T, err error) {
	err = store.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		have, ok, err := docs.GetIn(s, doc.ID())
		if err != nil {
			return err
		}
		if stored = doc; ok {
			stored = have
		}
		return docs.PutIn(s, u, stored)
	})
	return stored, err
}

// donorDoc is the stored state of a donor.
type donorDoc struct {
	about
	minFetch   storage.Timestamp // the oplog is kept from here on
	recipients []string
	state      string // donatingData until all recipients have cloned; guarded by the donor's mu
}

func donorDocs(store statedoc.Store) statedoc.Collection[*donorDoc] {
	return statedoc.In(store, donorsNS, readDonorDoc)
}

// Doc implements statedoc.Doc.
func (d *donorDoc) Doc() []byte {
	state := value.Doc(value.F("state", value.NewString(d.state)), value.F("minFetchTimestamp", d.minFetch.Value()))
	return value.Doc(append(d.fields(), value.F("recipientShards", stringsValue(d.recipients)), value.F("mutableState", value.NewDocument(state)))...)
}

// NeededHistory returns the oldest time that a clone of what is stored in a snapshot reads.
//
// Hazard: a donor's primary keeps what is cloned by a snapshot, which its successor, or itself after a restart, does not have: a clone that had lasted longer than the history window could not go on. Every
// member therefore keeps it for as long as the donor's document says that it is cloned. The time of the clone is chosen once all donors' documents are stored.
func NeededHistory(s *storage.Snapshot) (storage.Timestamp, error) {
	needed := storage.MaxTimestamp
	c := s.Catalog().Lookup(donorsNS)
	if c == nil {
		return needed, nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		if d, err := readDonorDoc(cur.Doc()); err == nil && d.state == donatingData { // one that cannot be read is never used
			needed = min(needed, d.minFetch)
		}
	}
	return needed, cur.Err()
}

func readDonorDoc(doc []byte) (*donorDoc, error) {
	a, err := readAbout(doc)
	state := value.LookupDoc(doc, "mutableState")
	return &donorDoc{
		about: a, minFetch: storage.Timestamp(value.Lookup(state, "minFetchTimestamp").TimestampU64()),
		recipients: stringsOf(value.Lookup(doc, "recipientShards")), state: value.Lookup(state, "state").Str(),
	}, err
}

// recipientDoc is the stored state of a recipient.
type recipientDoc struct {
	about
	donors      []string
	cloneAt     storage.Timestamp
	docs, bytes int64
	state       string
	why         *mongoerr.Error // why its work ended
}

func recipientDocs(store statedoc.Store) statedoc.Collection[*recipientDoc] {
	return statedoc.In(store, recipientsNS, readRecipientDoc)
}

// Doc implements statedoc.Doc.
func (d *recipientDoc) Doc() []byte {
	state := []value.Field{value.F("state", value.NewString(d.state))}
	if d.why != nil {
		why := value.Doc(value.F("code", value.NewInt32(int32(d.why.Code))), value.F("errmsg", value.NewString(d.why.Message)))
		state = append(state, value.F("abortReason", value.NewDocument(why)))
	}
	return value.Doc(append(d.fields(), value.F("donorShards", stringsValue(d.donors)), value.F("cloneTimestamp", d.cloneAt.Value()),
		value.F("approxDocumentsToCopy", value.NewInt64(d.docs)), value.F("approxBytesToCopy", value.NewInt64(d.bytes)),
		value.F("mutableState", value.NewDocument(value.Doc(state...))))...)
}

func readRecipientDoc(doc []byte) (*recipientDoc, error) {
	a, err := readAbout(doc)
	state := value.LookupDoc(doc, "mutableState")
	d := &recipientDoc{
		about: a, donors: stringsOf(value.Lookup(doc, "donorShards")), cloneAt: storage.Timestamp(value.Lookup(doc, "cloneTimestamp").TimestampU64()),
		docs: value.SafeInt64(value.Lookup(doc, "approxDocumentsToCopy")), bytes: value.SafeInt64(value.Lookup(doc, "approxBytesToCopy")),
		state: value.Lookup(state, "state").Str(),
	}
	if why := value.LookupDoc(state, "abortReason"); len(why) > 0 {
		d.why = mongoerr.New(mongoerr.Code(value.SafeInt64(value.Lookup(why, "code"))), value.Lookup(why, "errmsg").Str())
	}
	if err == nil && (len(d.donors) == 0 || d.cloneAt == 0) {
		err = mongoerr.New(mongoerr.BadValue, "donors or fetch timestamp missing")
	}
	return d, err
}

// progress is a recipient's position in one stream of one donor: documents, changes or sessions.
type progress struct {
	id    catalog.UUID
	shard string
	at    value.Value // a RecordId or a time; missing at the beginning
	done  bool
	docs  int64
	bytes int64
}

func progressDocs(store statedoc.Store, ns string) statedoc.Collection[*progress] {
	return statedoc.In(store, ns, readProgress)
}

// ID implements statedoc.Doc.
func (p *progress) ID() value.Value {
	return value.NewDocument(value.Doc(value.F("reshardingUUID", p.id.Value()), value.F("shardId", value.NewString(p.shard))))
}

// Doc implements statedoc.Doc.
func (p *progress) Doc() []byte {
	f := []value.Field{value.F("_id", p.ID())}
	if !p.at.IsMissing() {
		f = append(f, value.F("progress", p.at))
	}
	return value.Doc(append(f, value.F("done", value.NewBool(p.done)), value.F("numDocuments", value.NewInt64(p.docs)), value.F("numBytes", value.NewInt64(p.bytes)))...)
}

func readProgress(doc []byte) (*progress, error) {
	of := value.LookupDoc(doc, "_id")
	id, ok := catalog.UUIDFrom(value.Lookup(of, "reshardingUUID"))
	p := &progress{
		id: id, shard: value.Lookup(of, "shardId").Str(), at: value.Lookup(doc, "progress").Clone(), done: value.Lookup(doc, "done").Truthy(),
		docs: value.SafeInt64(value.Lookup(doc, "numDocuments")), bytes: value.SafeInt64(value.Lookup(doc, "numBytes")),
	}
	if !ok || p.shard == "" {
		return nil, mongoerr.New(mongoerr.BadValue, "it has no resharding id or no donor")
	}
	return p, nil
}

func stringsValue(list []string) value.Value {
	out := make([]value.Value, len(list))
	for i, s := range list {
		out[i] = value.NewString(s)
	}
	return value.NewArray(value.ArrayOf(out...))
}

func stringsOf(v value.Value) (out []string) {
	if v.T != value.Array {
		return nil
	}
	for _, s := range value.Values(v.Doc()) {
		out = append(out, s.Str())
	}
	return out
}
