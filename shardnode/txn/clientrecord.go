package txn

import (
	"bytes"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// clientRecord is a record of config.transactions as a client writes it:
//
//	{_id: {id, uid}, txnNum, lastWriteOpTime: {ts, t}, lastWriteDate, state, startOpTime, parentLsid, affectedNamespaces}
//
// The fields after lastWriteDate are optional.
type clientRecord struct {
	id     cluster.LogicalSessionID
	number int64
	last   storage.OpTime
	used   time.Time
	state  string        // "" for retryable writes
	fields []value.Field // all of them
}

func recordField(name string) string { return "sessionTxnRecord." + name }

// parseClientRecord checks a record.
func parseClientRecord(doc []byte) (r clientRecord, err error) {
	seen := make(map[string]bool)
	var parent []byte
	for k, v := range value.Elements(doc) {
		if seen[k] {
			return r, mongoerr.DuplicateField(recordField(k))
		}
		seen[k] = true
		switch k {
		case "parentLsid":
			parent = v.Doc()
			err = isOf(k, v, value.Document)
		default:
			err = r.field(k, v)
		}
		if err != nil {
			return r, err
		}
		r.fields = append(r.fields, value.F(k, v))
	}
	for _, k := range []string{"_id", "txnNum", "lastWriteOpTime", "lastWriteDate"} {
		if !seen[k] {
			return r, mongoerr.MissingField(recordField(k))
		}
	}
	if seen["parentLsid"] && (!r.id.IsChild() || !bytes.Equal(parent, r.id.Parent().Doc())) {
		return r, mongoerr.Newf(mongoerr.BadValue, "%s is not the parent of session %s", value.ShowDoc(parent), value.ShowDoc(r.id.Doc()))
	}
	return r, nil
}

// field checks one field and takes its value.
func (r *clientRecord) field(k string, v value.Value) (err error) {
	switch k {
	case "_id":
		if err = isOf(k, v, value.Document); err == nil {
			r.id, err = recordID(v.Doc())
		}
		return err
	case "txnNum":
		if err = isOf(k, v, value.Int64); err == nil {
			r.number = value.SafeInt64(v)
		}
		if err == nil && r.number < 0 {
			err = mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 0, actual value '%d'", recordField(k), r.number)
		}
		return err
	case "lastWriteOpTime":
		r.last, err = recordTime(k, v)
		return err
	case "startOpTime":
		_, err = recordTime(k, v)
		return err
	case "lastWriteDate":
		if err = isOf(k, v, value.DateTime); err == nil {
			r.used = v.Time()
		}
		return err
	case "state":
		if err = isOf(k, v, value.String); err == nil {
			r.state, err = v.Str(), checkState(v.Str())
		}
		return err
	case "affectedNamespaces":
		return isOf(k, v, value.Array)
	}
	return mongoerr.UnknownField(recordField(k))
}

// isOf checks the type of a field.
func isOf(k string, v value.Value, want value.Type) error {
	if v.T == want || want == value.Int64 && v.T == value.Int32 {
		return nil
	}
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type '%s'", recordField(k), v.T.Name(), want.Name())
}

// recordID reads the _id of a record, which has to be the one under which the node finds the session.
func recordID(doc []byte) (id cluster.LogicalSessionID, err error) {
	if value.Lookup(doc, "uid").IsMissing() {
		return id, mongoerr.MissingField(recordField("_id.uid"))
	}
	if id, err = cluster.ParseLSID(doc, cluster.NoUser); err != nil {
		return id, err
	}
	if !bytes.Equal(doc, id.Doc()) {
		return id, mongoerr.Newf(mongoerr.BadValue, "%s is not a valid session id; it would have to be %s", value.ShowDoc(doc), value.ShowDoc(id.Doc()))
	}
	return id, nil
}

// recordTime reads an optime.
func recordTime(k string, v value.Value) (at storage.OpTime, err error) {
	if err := isOf(k, v, value.Document); err != nil {
		return at, err
	}
	ts, term := value.Lookup(v.Doc(), "ts"), value.Lookup(v.Doc(), "t")
	for _, f := range []struct {
		name string
		v    value.Value
		want value.Type
	}{{k + ".ts", ts, value.Timestamp}, {k + ".t", term, value.Int64}} {
		if f.v.IsMissing() {
			return at, mongoerr.MissingField(recordField(f.name))
		}
		if err := isOf(f.name, f.v, f.want); err != nil {
			return at, err
		}
	}
	return storage.OpTime{TS: storage.Timestamp(ts.TimestampU64()), Term: value.SafeInt64(term)}, nil
}

// checkState checks the state of a transaction. A client cannot write prepared: that also needs the operations in the oplog, claims and a coordinator.
func checkState(state string) error {
	switch state {
	case "committed", "aborted", "inProgress":
		return nil
	case "prepared":
		return mongoerr.New(mongoerr.BadValue, "A transaction cannot be prepared by writing its record")
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", state, recordField("state"))
}

// agrees reports whether the record names the same history as the one that it replaces: then what the node knows of it stays.
func (r *clientRecord) agrees(old []byte) bool {
	if old == nil {
		return false
	}
	was, err := parseClientRecord(old)
	return err == nil && was.number == r.number && was.last == r.last && was.state == r.state
}

// history reads from the oplog which statements of the record's number were executed.
func (r *clientRecord) history(snap *storage.Snapshot) (h history, err error) {
	h = history{number: r.number, last: r.last, committed: r.state == "committed"}
	if r.state != "" {
		return h, nil
	}
	sessions := make(map[cluster.LogicalSessionID]*Session)
	own := sessionOf(sessions, r.id)
	whole, err := snap.SessionHistory(r.last, func(e *storage.SessionEntry) bool {
		if err != nil {
			return false
		}
		id, bad := cluster.ParseLSID(e.LSID, cluster.NoUser)
		own.Number = r.number // the entries come from the newest to the oldest
		switch {
		case bad != nil:
			return false
		case id == r.id && e.Number == r.number && e.Op != 'c':
			err = noteEntry(snap, sessions, e)
			return true
		case id.IsChild() && id.Parent() == r.id && id.TxnNumber == r.number:
			err = noteMovedWrites(snap, sessions, e, !value.Lookup(e.O, "commitTransaction").IsMissing())
		}
		return false // what came before the transaction of a child is not known
	})
	h.runs, h.torn = own.runs, !whole
	return h, err
}
