package command

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// CurrentOp runs the command: $currentOp (docs) with a filter, the command's other fields. Long commands are
// shortened unless the command says otherwise.
func CurrentOp(op *Op, dst []byte, docs func(spec []byte) ([][]byte, error)) ([]byte, error) {
	filter, fm := value.Begin(nil)
	first, all, own, truncate := true, false, false, true
	for k, v := range value.Elements(op.Req.Body) {
		switch {
		case first || IsGeneric(k):
		case k == "$all":
			all = v.Truthy()
		case k == "$ownOps":
			own = v.Truthy()
		case k == "$truncateOps":
			truncate = v.Truthy()
		default:
			filter = value.Append(filter, k, v)
		}
		first = false
	}
	m, err := match.Compile(value.End(filter, fm), &match.Options{Deny: match.DenyWhere | match.DenyText | match.DenyNear})
	if err != nil {
		return dst, err
	}
	found, err := docs(value.Doc(value.F("idleConnections", value.NewBool(all)), value.F("allUsers", value.NewBool(!own)), value.F("truncateOps", value.NewBool(truncate))))
	if err != nil {
		return dst, err
	}
	dst, am := value.BeginKey(dst, value.Array, "inprog")
	i := 0
	for _, doc := range found {
		ok, err := m.Match(doc)
		if err != nil {
			return dst, err
		}
		if ok {
			dst = value.AppendIndex(dst, i, value.NewDocument(doc))
			i++
		}
	}
	return value.End(dst, am), nil
}

// CursorView is a cursor as $currentOp shows it.
type CursorView struct {
	ID                             int64
	Created, Used                  time.Time
	Returned, Batches              int64
	NoTimeout, Tailable, AwaitData bool
	Origin                         []byte // the command that opened it
}

// Fields returns those of the document cursor.
func (c CursorView) Fields() []value.Field {
	return []value.Field{
		value.F("cursorId", value.NewInt64(c.ID)), value.F("createdDate", value.NewTime(c.Created)), value.F("lastAccessDate", value.NewTime(c.Used)),
		value.F("nDocsReturned", value.NewInt64(c.Returned)), value.F("nBatchesReturned", value.NewInt64(c.Batches)),
		value.F("noCursorTimeout", value.NewBool(c.NoTimeout)), value.F("tailable", value.NewBool(c.Tailable)), value.F("awaitData", value.NewBool(c.AwaitData)),
		value.F("originatingCommand", value.NewDocument(c.Origin)),
	}
}

// IdleCursor describes a cursor that no request is using.
func IdleCursor(host, ns string, lsid []byte, cursor []value.Field) []byte {
	d, m := value.Begin(nil)
	d = value.Append(d, "type", value.NewString("idleCursor"))
	d = value.Append(d, "host", value.NewString(host))
	d = value.Append(d, "ns", value.NewString(ns))
	if len(lsid) > 0 {
		d = value.Append(d, "lsid", value.NewDocument(cluster.ShownLSID(lsid)))
	}
	d = value.Append(d, "cursor", value.NewDocument(value.Doc(cursor...)))
	return value.End(d, m)
}

// TxnView is an open transaction as $currentOp shows it.
type TxnView struct {
	Number      int64
	ReadConcern []byte
	Started     time.Time
	Active      time.Duration // time spent in its commands
}

// Fields returns those of the document transaction; read is the time at which it reads.
func (t TxnView) Fields(now time.Time, read value.Field) []value.Field {
	open := now.Sub(t.Started)
	rc := t.ReadConcern
	if rc == nil {
		rc = value.Doc()
	}
	return []value.Field{
		value.F("parameters", value.NewDocument(value.Doc(value.F("txnNumber", value.NewInt64(t.Number)), value.F("autocommit", value.NewBool(false)),
			value.F("readConcern", value.NewDocument(rc))))),
		read, value.F("startWallClockTime", value.NewString(WallClock(t.Started))),
		value.F("timeOpenMicros", value.NewInt64(open.Microseconds())), value.F("timeActiveMicros", value.NewInt64(t.Active.Microseconds())),
		value.F("timeInactiveMicros", value.NewInt64(open.Microseconds()-t.Active.Microseconds())),
	}
}

// Running returns the view while one of the transaction's commands runs, which began at a time.
func (t TxnView) Running(since, now time.Time) TxnView {
	t.Active += ActiveFor(t.Started, since, now)
	return t
}

// ActiveFor returns how long a command that began at a time has been active in a transaction. The first one may have waited before it began the transaction.
func ActiveFor(started, since, now time.Time) time.Duration {
	if since.Before(started) {
		since = started
	}
	return now.Sub(since)
}

// BeginIdleTxn begins the description of an open transaction in which no command is running.
func BeginIdleTxn(host string, by Caller, lsid []byte) (d []byte, mark int) {
	d, mark = value.Begin(nil)
	d = value.Append(d, "type", value.NewString("idleSession"))
	d = value.Append(d, "host", value.NewString(host))
	d = value.Append(d, "desc", value.NewString("inactive transaction"))
	d = by.Describe(d)
	return value.Append(d, "lsid", value.NewDocument(cluster.ShownLSID(lsid))), mark
}

// WallClock returns a time as diagnostics write it.
func WallClock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
