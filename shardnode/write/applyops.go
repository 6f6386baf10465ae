package write

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func applyOpsSpec(wr *Writer) command.Spec {
	return command.Spec{
		Name: "applyOps", Roles: command.Shard | command.Config, Kind: command.Write, AdminOnly: true, WriteConcern: true, Lenient: true,
		Fields: []command.Field{
			command.Opt("allowAtomic", command.TAny), command.Opt("alwaysUpsert", command.TBool), command.Opt("preCondition", command.TAny),
			command.Opt("prepare", command.TAny), command.Opt("partialTxn", command.TAny), command.Opt("count", command.TInt),
			command.Opt("bypassDocumentValidation", command.TSafeBool),
		},
		Run: wr.runApplyOps,
	}
}

func (wr *Writer) runApplyOps(op *command.Op, dst []byte) ([]byte, error) {
	if op.Req.Cmd.T != value.Array {
		return dst, command.WrongType("applyOps.applyOps", op.Req.Cmd.T, command.TArray)
	}
	if err := checkApplyOps(op); err != nil {
		return dst, err
	}
	var ops []txn.LoggedOp
	atomic := op.BoolOr("allowAtomic", true)
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		o, err := txn.ParseLoggedOp(i, v)
		if err == nil && o.Op == 'c' {
			err = command.CheckLoggedCommand(commandOf(&o))
		}
		if err != nil {
			return dst, err
		}
		atomic = atomic && o.Op != 'c'
		// A restore replays the oplog of another server, which has entries for that server's own sessions and transactions.
		theirs := o.NS == txn.TransactionsNS || catalog.DBOf(o.NS) == "config" && command.CheckClientWrite(op, o.NS) != nil
		if o.Op != 'n' && !theirs {
			ops = append(ops, o)
		}
	}
	w, err := wr.Begin(op)
	if err != nil {
		return dst, err
	}
	var results []value.Value
	if atomic {
		err = w.applyTogether(ops)
		for range ops {
			results = append(results, value.NewBool(err == nil))
		}
	} else {
		for i := range ops {
			if err = w.applyOne(&ops[i]); err != nil {
				results = append(results, value.NewBool(false))
				break
			}
			results = append(results, value.NewBool(true))
		}
	}
	if err != nil {
		return dst, err
	}
	w.Finish()
	dst = value.Append(dst, "applied", value.NewInt32(int32(len(results))))
	return value.Append(dst, "results", value.NewArray(value.ArrayOf(results...))), nil
}

// commandOf returns the name of the command that an operation is.
func commandOf(o *txn.LoggedOp) string {
	it := value.Walk(o.O)
	name, _, _ := it.Next()
	return string(name)
}

// checkApplyOps refuses the fields that only the oplog's own applyOps entries have, and those of old versions.
func checkApplyOps(op *command.Op) error {
	switch {
	case !op.Arg("preCondition").IsMissing():
		return mongoerr.New(6711600, "The 'preCondition' argument of applyOps is not supported")
	case op.Bool("alwaysUpsert"):
		return mongoerr.New(6711601, "The 'alwaysUpsert' argument of applyOps may only be false")
	case !op.Arg("prepare").IsMissing():
		return mongoerr.New(mongoerr.BadValue, "The 'prepare' field is for internal use by the oplog only")
	case !op.Arg("partialTxn").IsMissing():
		return mongoerr.New(31056, "The 'partialTxn' field is for internal use by the oplog only")
	}
	return nil
}

// applyTogether applies operations on documents in one unit of work.
func (w *Command) applyTogether(ops []txn.LoggedOp) error {
	if len(ops) == 0 {
		return nil
	}
	names := make([]string, len(ops))
	for i := range ops {
		names[i] = ops[i].NS
	}
	unlock, err := w.lock(lock.IX, names...)
	if err != nil {
		return err
	}
	defer w.AfterCommit(unlock)
	return w.Retry(func() error {
		u := w.Unit(nil)
		defer u.Rollback()
		s := u.Snapshot()
		for i := range ops {
			if err := w.mayApply(&ops[i], ops[i].Target(s)); err != nil {
				return err
			}
			if err := ops[i].Apply(s, u, w.validate); err != nil {
				return err
			}
		}
		return w.Commit(u, replication.Visible)
	})
}

// validate runs the collection's validator on a document that an operation inserts or changes.
func (w *Command) validate(c *catalog.Collection, doc, old []byte) error {
	if w.bypass || len(c.Options) <= 5 {
		return nil
	}
	return w.writer.Compiled.Of(c).Check(c, doc, old)
}

// mayApply returns an error for an operation whose UUID belongs to a different collection than its namespace, unless the
// user has the privileges on that collection, too.
func (w *Command) mayApply(o *txn.LoggedOp, c *catalog.Collection) error {
	if c == nil || c.NS == o.NS {
		return nil
	}
	if !w.Op.MayApply(string(o.Op), catalog.DBOf(c.NS), c.Name()) || w.bypass && !w.Op.Allowed("bypassDocumentValidation", catalog.DBOf(c.NS), c.Name()) {
		return w.Op.Refuse()
	}
	return nil
}

// commandFields returns the fields of the command that an operation is. A createIndexes of an oplog is about one index, whose specification stands beside
// the collection's name; the command has a list of them.
func commandFields(o *txn.LoggedOp) []value.Field {
	var fields, index []value.Field
	for k, v := range value.Elements(o.O) {
		fields = append(fields, value.F(k, v))
		if len(fields) > 1 && k != "writeConcern" {
			index = append(index, value.F(k, v))
		}
	}
	if commandOf(o) != "createIndexes" || !value.Lookup(o.O, "indexes").IsMissing() {
		return fields
	}
	return []value.Field{fields[0], value.F("indexes", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(index...)))))}
}

// applyOne applies an operation by itself.
func (w *Command) applyOne(o *txn.LoggedOp) error {
	if o.Op != 'c' {
		return w.applyTogether([]txn.LoggedOp{*o})
	}
	if w.pending != nil { // another command would not see the detached writes of this one
		return w.pending.Refusal()
	}
	fields := commandFields(o)
	db := catalog.DBOf(o.NS)
	if commandOf(o) == "renameCollection" { // its entry has the collection's database, the command runs on admin
		db = "admin"
	}
	fields = append(fields, value.F("$db", value.NewString(db)))
	if w.Concern.Timeout > 0 && value.Lookup(o.O, "writeConcern").IsMissing() {
		fields = append(fields, value.F("writeConcern", value.NewDocument(w.Op.Req.AskedConcern().Doc)))
	}
	if id, ok := catalog.UUIDFrom(o.UI); ok {
		w.Op.EntryUUID = (*[16]byte)(&id)
		defer func() { w.Op.EntryUUID = nil }()
	}
	reply := w.writer.Service.Run(w.Op, w.Op.Client, &wire.Message{Body: value.Doc(fields...)}, nil)
	if !value.Lookup(reply, "ok").Truthy() {
		code, _ := value.Lookup(reply, "code").AsInt64()
		return mongoerr.New(mongoerr.Code(code), value.Lookup(reply, "errmsg").Str())
	}
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		w.Op.SetWriteConcernError(e)
		if e.Code == mongoerr.WriteConcernTimeout {
			w.pending = txn.NewPending(storage.ErrWaitTimeout) // no further operation is applied
		}
	}
	return nil
}
