package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// startRetry checks out the session of a command that is a retryable write.
func (w *Command) startRetry() error {
	r := &w.Op.Req
	if !r.HasTxnNumber || r.LSID == nil || !r.Autocommit.IsMissing() || w.session != nil {
		return nil
	}
	if w.writer.node.Lone() {
		return mongoerr.New(mongoerr.IllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos")
	}
	s, release, err := w.writer.Txns.CheckoutRetry(w.Op)
	if err != nil {
		return err
	}
	w.session, w.endRetry = s, release
	if err := w.awaitDetached(); err != nil {
		w.release()
		return err
	}
	return nil
}

// stmtID returns the id of a command's statement.
func (w *Command) stmtID(i int) int32 { return w.Op.Req.StatementID(i) }

// executed reports whether a statement was executed before, and if so records that for the reply.
func (w *Command) executed(i int) (txn.Run, bool) {
	if w.session == nil {
		return txn.Run{}, false
	}
	run, ok := w.session.Executed(w.stmtID(i))
	if !ok && w.pending != nil {
		run, ok = w.pending.Executed(w.stmtID(i))
	}
	if ok {
		w.retried = append(w.retried, value.NewInt32(w.stmtID(i)))
	}
	return run, ok
}

// checkBlocked returns an error if users have been blocked since the command was checked first: only writers that had their locks before are waited for. If statements of a retryable write were executed
// before, their results are returned, and the others are refused (refuseUnknown).
func (w *Command) checkBlocked(ns string) error {
	if w.blocked = w.writer.node.CheckBlocked(w.Op, ns); w.blocked == nil {
		return nil
	}
	if w.session != nil && (w.session.HasExecuted() || w.session.Incomplete() || w.pending != nil) {
		return nil
	}
	return w.blocked
}

// refuseUnknown returns an error if a statement that the session's history does not contain may have been executed, or users are blocked. It is
// called before the statement reads documents, which the first execution may have changed.
func (w *Command) refuseUnknown() error {
	if w.session != nil && w.session.Incomplete() {
		return w.session.IncompleteError(w.session.Number)
	}
	return w.blocked
}

// prepareNew returns a document as it will be inserted.
func (w *Command) prepareNew(ns string, doc []byte) ([]byte, error) {
	if err := w.refuseUnknown(); err != nil {
		return nil, err
	}
	stored, err := prepareInsert(doc, w.keepTS, w.now)
	if err == nil && (!namespace.IsBuckets(ns) || w.bucketsIn(w.Catalog(), ns) == nil) {
		err = w.validateNew(ns, stored)
	}
	return stored, err
}

// replay returns the result of a statement that was executed before. It is an error if the required image no longer
// exists.
func (w *Command) replay(st *statement) (r result, ok bool, err error) {
	run, ok := w.executed(int(w.stmt))
	if !ok {
		return r, false, nil
	}
	switch run.Op {
	case 'i':
		r.upserted = run.ID
	case 'u':
		r.matched, r.modified = 1, 1
	case 'd':
		r.deleted = 1
	}
	if st.onWrite == nil {
		return r, true, nil
	}
	if w.session.Image == nil {
		w.session.Image = w.storedImage()
	}
	switch {
	case w.session.Image != nil:
		st.onWrite(w.session.Image, w.session.Image)
	case run.Op != 'i': // an upsert may have returned nothing
		return r, false, w.session.IncompleteError(w.session.Number)
	}
	return r, true, nil
}

// storedImage returns the image that keepImage stored, nil for none.
func (w *Command) storedImage() []byte {
	doc, err := w.writer.Docs.Get(txn.ImagesNS, value.NewDocument(w.session.LSID))
	if err != nil || value.SafeInt64(value.Lookup(doc, "txnNum")) != w.session.Number {
		return nil
	}
	return value.Lookup(doc, "image").Doc()
}

// runOf returns the record of a statement that changed a document; one that changed nothing may run again.
func (w *Command) runOf(r *result) txn.Run {
	if w.session == nil {
		return txn.Run{}
	}
	id := w.stmtID(int(w.stmt))
	switch {
	case !r.upserted.IsMissing():
		return txn.Run{From: id, To: id, Op: 'i', ID: r.upserted.Clone()}
	case r.deleted > 0:
		return txn.Run{From: id, To: id, Op: 'd'}
	}
	return txn.Run{From: id, To: id, Op: 'u'}
}

// refuseMulti refuses statements on many documents in a retryable write, because a retry could not tell which
// parts were executed.
func (w *Command) refuseMulti(st *statement, text string) error {
	if st.multi && w.session != nil {
		return mongoerr.New(mongoerr.InvalidOptions, text)
	}
	return nil
}

// keepImage stores, in the unit of a findAndModify, the document that it returns, for a retry after a restart.
func (w *Command) keepImage(s *storage.Snapshot, u *storage.UnitOfWork, image []byte) error {
	if w.session == nil || len(image) == 0 {
		return nil
	}
	c := s.Catalog().Lookup(txn.ImagesNS)
	if c == nil {
		return nil // the table in memory serves retries in the meantime
	}
	err := statedoc.PutIn(s, u, c, txn.ImageRecord(s, w.session, w.session.Number, w.imageKind, image))
	u.Accompanies(c)
	return err
}

// appendRetried lists the statements that had been executed before.
func (w *Command) appendRetried(dst []byte) []byte {
	return command.AppendRetried(dst, w.retried)
}

// consecutive returns the number of leading documents with consecutive statement ids: a unit of a retryable write
// numbers its entries consecutively.
func (w *Command) consecutive(docs []pendingDoc) int {
	if w.session == nil {
		return len(docs)
	}
	for k := range docs {
		if w.stmtID(docs[k].index) != w.stmtID(docs[0].index)+int32(k) {
			return k
		}
	}
	return len(docs)
}
