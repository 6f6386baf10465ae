package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Documents that change shards. A shard refuses an update that would give a document a shard key owned by another
// shard, and returns both versions of it. The router then deletes the old one and inserts the new one where it
// belongs, in one transaction: the client's if the update is part of one, else a new one around the whole update:
//
//	update ──► shard: WouldChangeOwningShard
//	internal transaction {
//	    update ──► shard: WouldChangeOwningShard ──► delete ──► shard, insert ──► owner, note ──► shard
//	} commit
//
// The note records a retryable write on the shard that it was sent to: see shardnode/txn/movedwrite.go.

// movedDoc is a shard's report about a document that has to move, or about an upsert that belongs elsewhere.
type movedDoc struct {
	shard     string
	pre, post []byte      // pre is nil for an upsert
	shown     value.Value // the reply of findAndModify
	searched  bool        // the filter did not determine the shard
}

// movedDocOf reads a shard's report from its error; nil for other errors.
func movedDocOf(err error) *movedDoc {
	e, ok := err.(*mongoerr.Error)
	if !ok || e.Code != mongoerr.WouldChangeOwningShard {
		return nil
	}
	clone := func(name string) []byte { return append([]byte(nil), value.Lookup(e.Details, name).Doc()...) }
	d := &movedDoc{shard: value.Lookup(e.Details, "shard").Str(), post: clone("postImage"), shown: value.Lookup(e.Details, "value").Clone()}
	if !value.Lookup(e.Details, "shouldUpsert").Truthy() {
		d.pre = clone("preImage")
	}
	return d
}

func (d *movedDoc) upsert() bool { return d.pre == nil }

// mayMove refuses what is neither a retryable write nor part of a transaction. An upsert whose filter does not
// determine the shard goes where its document belongs in any case.
func (d *movedDoc) mayMove(op *command.Op) error {
	if op.Req.HasTxnNumber || d.upsert() && d.searched {
		return nil
	}
	return mongoerr.New(mongoerr.IllegalOperation, "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.")
}

// errMoveAlone refuses a document that moves in a batch of several statements.
var errMoveAlone = mongoerr.New(mongoerr.InvalidOptions, "Document shard key value updates that cause the doc to move shards must be sent with write batch of size 1")

// moveDocument moves the document within the operation's transaction. imageKind names the image that a retried
// findAndModify returns; it is empty for updates.
func (r *Router) moveDocument(op *command.Op, info *cluster.CollectionInfo, d *movedDoc, stmt int32, imageKind string) error {
	var key [4]value.Value
	owner, err := info.Map.Key.FromDocument(d.post, key[:0])
	if err != nil {
		return err
	}
	if err := r.removeMoved(op, info, d); err != nil {
		return err
	}
	if err := r.insertMoved(op, info, info.Map.ShardOf(owner), d); err != nil {
		return err
	}
	id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	if err != nil || !op.Client.Internal || !id.IsChild() {
		return err
	}
	op.AddTopLevel("movedDocument", value.NewBool(true))
	if id.TxnNumber == 0 {
		return nil // an internal transaction is not retried
	}
	return r.noteMoved(op, d, stmt, imageKind)
}

// removeMoved deletes the document from its old shard.
func (r *Router) removeMoved(op *command.Op, info *cluster.CollectionInfo, d *movedDoc) error {
	if d.upsert() {
		return nil
	}
	_, coll := cluster.SplitNS(info.NS)
	n, err := r.moveStep(op, info, d.shard, &msg.Delete{DB: op.DB(), Coll: coll, Deletes: []msg.DeleteStatement{{
		Query: value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$eq", value.Lookup(d.pre, "_id")))))), Limit: 1,
		Collation: value.Doc(value.F("locale", value.NewString("simple"))),
	}}})
	if err == nil && n != 1 {
		err = mongoerr.New(mongoerr.WouldChangeOwningShardDeletedNoDocument, "document that the update would move to another shard no longer exists")
	}
	return err
}

// insertMoved inserts the document on its new shard.
func (r *Router) insertMoved(op *command.Op, info *cluster.CollectionInfo, shard string, d *movedDoc) error {
	_, coll := cluster.SplitNS(info.NS)
	_, err := r.moveStep(op, info, shard, &msg.Insert{
		DB: op.DB(), Coll: coll, Documents: value.ArrayOf(value.NewDocument(d.post)), Bypass: op.Bool("bypassDocumentValidation"),
		KeepEmptyTimestamps: true, // the update has replaced them already
	})
	if e, ok := err.(*mongoerr.Error); ok && e.Code == mongoerr.DuplicateKey && value.Count(value.Lookup(e.Details, "keyPattern").Doc()) == 1 &&
		!value.Lookup(value.Lookup(e.Details, "keyPattern").Doc(), "_id").IsMissing() {
		return e.Prefix("Failed to update document's shard key field. There is either an orphan for this document or _id for this collection is not globally unique. :: caused by :: ")
	}
	return err
}

// moveStep sends one write of a move.
func (r *Router) moveStep(op *command.Op, info *cluster.CollectionInfo, shard string, write msg.Message) (n int64, err error) {
	reply, err := r.call(op, shard, msg.With(write, info.Suffix(shard)), nil)
	if err != nil {
		return 0, err
	}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		return 0, writeErrorOf(e.Doc())
	}
	n, _ = value.Lookup(reply, "n").AsInt64()
	return n, nil
}

// noteMoved tells the shard that received the statement to record it as executed when the transaction commits.
func (r *Router) noteMoved(op *command.Op, d *movedDoc, stmt int32, imageKind string) error {
	note := &msg.NoteMovedWrite{DB: op.DB(), Statement: int64(stmt), ImageKind: imageKind}
	if d.upsert() {
		note.Upserted = value.Lookup(d.post, "_id")
	}
	switch {
	case imageKind == "postImage":
		note.Image = d.post
	case imageKind == "preImage" && !d.upsert():
		note.Image = d.pre
	}
	_, err := r.call(op, d.shard, msg.Doc(note), nil)
	return err
}

// maxMoveTries limits the attempts at a move that meets conflicts.
const maxMoveTries = 50

// asTransaction runs a write as a transaction of its own and returns the write's reply. moved is false if no document
// has to move any more, or if the write has been executed already: then it must be retried. shard is the shard that
// the write was sent to.
func (r *Router) asTransaction(op *command.Op, shard string, stmt int32, body []byte) (reply []byte, moved bool, err error) {
	parent := cluster.NewSessionID(cluster.NoUser)
	if op.Req.LSID != nil {
		if parent, err = cluster.ParseLSID(op.Req.LSID, cluster.NoUser); err != nil {
			return nil, false, err
		}
	}
	number := int64(0)
	if op.Req.HasTxnNumber {
		number = op.Req.TxnNumber
	}
	for try := 0; ; try++ {
		child := parent.Child(number)
		reply, moved, err = r.tryTransaction(op, child, stmt, body)
		r.txns.drop(child)
		if err != nil && mongoerr.CodeOf(err).IsTransientTransaction(true) && try < maxMoveTries && cluster.Backoff(op, try) == nil {
			continue
		}
		if err == nil && value.Lookup(reply, "writeErrors").IsMissing() {
			return reply, moved, nil
		}
		// The transaction may have failed because a retry of the same write has overtaken it.
		if done, xerr := r.executedOn(op, []string{shard}, stmt); xerr != nil || done != "" {
			return nil, false, xerr
		}
		return reply, moved, err
	}
}

// ownFields are the fields of a command that an enclosing transaction sets itself.
var ownFields = map[string]bool{
	"lsid": true, "txnNumber": true, "stmtId": true, "stmtIds": true, "writeConcern": true, "readConcern": true, "$clusterTime": true,
	"apiVersion": true, "apiStrict": true, "apiDeprecationErrors": true,
}

func (r *Router) tryTransaction(op *command.Op, child cluster.LogicalSessionID, stmt int32, body []byte) (reply []byte, moved bool, err error) {
	run := func(c []byte, more ...value.Field) ([]byte, error) {
		more = append(more, value.F("lsid", value.NewDocument(child.Doc())), value.F("txnNumber", value.NewInt64(0)), value.F("autocommit", value.NewBool(false)))
		fields := value.Doc(more...)
		c = rebuild(c, ownFields, fields[4:len(fields)-1])
		reply := r.Service.Run(op, r.internalClient(), &wire.Message{OpCode: wire.OpMsg, Body: c}, nil)
		return reply, cluster.ReplyError(reply)
	}
	ids := value.NewArray(value.ArrayOf(value.NewInt32(stmt)))
	if reply, err = run(body, value.F("stmtIds", ids), value.F("startTransaction", value.NewBool(true))); err != nil {
		return nil, false, err // the error has ended the transaction
	}
	moved = value.Lookup(reply, "movedDocument").Truthy()
	if !moved || !value.Lookup(reply, "writeErrors").IsMissing() {
		_, _ = run(msg.Doc(new(msg.AbortTransaction))) // on a shard that is not reached the transaction times out
		return reply, moved, nil
	}
	var concern []value.Field
	if op.Req.WriteConcern != nil {
		concern = append(concern, value.F("writeConcern", value.NewDocument(op.Req.WriteConcern.Doc)))
	}
	for try := 0; ; try++ {
		done, err := run(msg.Doc(new(msg.CommitTransaction)), concern...)
		if cluster.Retryable(err) && cluster.Backoff(op, try) == nil {
			continue // it may have been executed: ask again
		}
		if err != nil {
			return nil, false, err
		}
		if ts := value.Lookup(done, "operationTime"); ts.T == value.Timestamp {
			op.AdvanceOperationTime(ts.TimestampU64())
		}
		if e := cluster.WriteConcernErrorOf(done); e != nil {
			op.SetWriteConcernError(e)
		}
		return reply, true, nil
	}
}

// executedOn looks for the shard that has executed a statement of a retryable write: a statement without a shard
// key may match other documents when it is retried, or none. It returns "" if there is none, and for writes that
// are not retryable.
func (r *Router) executedOn(op *command.Op, shards []string, stmt int32) (string, error) {
	if !op.Req.HasTxnNumber || op.Req.LSID == nil || transactionOf(op) != nil {
		return "", nil
	}
	body := msg.Doc(&msg.StatementExecuted{Session: op.Req.LSID, Number: op.Req.TxnNumber, Statement: int64(stmt)})
	replies := r.scatter(op, shards, func(string) ([]byte, []wire.Sequence) { return body, nil })
	if err := firstError(replies); err != nil {
		return "", err
	}
	for i := range replies {
		var reply msg.StatementExecutedReply
		if err := msg.Parse(replies[i].body, &reply); err != nil {
			return "", err
		}
		if reply.Executed {
			return replies[i].shard, nil
		}
	}
	return "", nil
}

// move executes an update of a batch that its shard refused because its document has to move.
func (b *writeBatch) move(info *cluster.CollectionInfo) error {
	i, d := b.moving.index, b.moving.doc
	b.moving = nil
	if err := d.mayMove(b.op); err != nil {
		b.fail(i, err)
		return nil
	}
	if transactionOf(b.op) != nil {
		return b.moveWithin(info, i, d)
	}
	list := value.NewArray(value.ArrayOf(value.NewDocument(b.items[i])))
	body := rebuild(b.op.Req.Body, map[string]bool{b.list: true}, value.Append(nil, b.list, list))
	reply, moved, err := b.r.asTransaction(b.op, d.shard, b.stmtID(i), body)
	switch {
	case err != nil:
		if isStale(err) { // its shard has been removed
			b.pending = mergeIndexes(b.pending, []int{i})
		}
		return err
	case !moved && value.Lookup(reply, "writeErrors").IsMissing():
		b.pending = mergeIndexes(b.pending, []int{i}) // the document has changed meanwhile, so the statement is retried
		return nil
	}
	b.absorb(b.op, reply, []int{i}, d.shard)
	return nil
}

// moveWithin moves a document within the operation's transaction.
func (b *writeBatch) moveWithin(info *cluster.CollectionInfo, i int, d *movedDoc) error {
	err := b.r.moveDocument(b.op, info, d, b.stmtID(i), "")
	switch mongoerr.CodeOf(err) {
	case mongoerr.DuplicateKey, mongoerr.DocumentValidationFailure:
		b.fail(i, err)
		b.failTransaction()
		return nil
	}
	if err != nil {
		if isStale(err) {
			b.pending = mergeIndexes(b.pending, []int{i})
		}
		return err
	}
	b.n++
	if d.upsert() {
		b.upserted = append(b.upserted, value.NewDocument(value.Doc(value.F("index", value.NewInt32(int32(i))), value.F("_id", value.Lookup(d.post, "_id")))))
	} else {
		b.modified++
	}
	return nil
}

// failTransaction makes the operation's transaction end with the command, whose reply contains a writeError of the
// router's own.
func (b *writeBatch) failTransaction() {
	if t := transactionOf(b.op); t != nil {
		t.mu.Lock()
		t.failed = true
		t.mu.Unlock()
	}
}

// stmtID returns the id of a statement of the batch.
func (b *writeBatch) stmtID(i int) int32 { return b.op.Req.StatementID(i) }

// modifyMoved runs a findAndModify that its shard refused because its document has to move. again is set if the
// document has changed meanwhile and the command must be retried.
func (r *Router) modifyMoved(op *command.Op, info *cluster.CollectionInfo, d *movedDoc, dst []byte) (out []byte, again bool, err error) {
	if err := d.mayMove(op); err != nil {
		return dst, false, err
	}
	if transactionOf(op) == nil {
		reply, moved, err := r.asTransaction(op, d.shard, op.Req.StatementID(0), op.Req.Body)
		if err != nil || !moved {
			return dst, err == nil, err
		}
		return append(dst, rebuildElements(reply, map[string]bool{
			"ok": true, "operationTime": true, "$clusterTime": true, "recoveryToken": true, "movedDocument": true})...), false, nil
	}
	kind := "preImage"
	if op.Bool("new") {
		kind = "postImage"
	}
	if err := r.moveDocument(op, info, d, op.Req.StatementID(0), kind); err != nil {
		return dst, false, err
	}
	dst, m := value.BeginKey(dst, value.Document, "lastErrorObject")
	dst = value.Append(dst, "n", value.NewInt32(1))
	dst = value.Append(dst, "updatedExisting", value.NewBool(!d.upsert()))
	if d.upsert() {
		dst = value.Append(dst, "upserted", value.Lookup(d.post, "_id"))
	}
	dst = value.End(dst, m)
	if d.shown.T != value.Document {
		return value.Append(dst, "value", value.NewNull()), false, nil
	}
	return value.Append(dst, "value", d.shown), false, nil
}
