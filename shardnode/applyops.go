package shardnode

import (
	"strconv"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/update"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func (n *Node) applyOpsSpecs() []command.Spec {
	return []command.Spec{{
		Name: "applyOps", Roles: command.Shard | command.Config, Kind: command.Write, AdminOnly: true, WriteConcern: true, Lenient: true,
		Fields: []command.Field{
			command.Opt("allowAtomic", command.TAny), command.Opt("alwaysUpsert", command.TBool), command.Opt("preCondition", command.TAny),
			command.Opt("prepare", command.TAny), command.Opt("partialTxn", command.TAny), command.Opt("count", command.TInt),
		},
		Run: n.runApplyOps,
	}}
}

// appliedOp is one entry of applyOps, checked.
type appliedOp struct {
	op    byte
	ns    string
	uuid  value.Value
	o, o2 []byte
}

func (n *Node) runApplyOps(op *command.Op, dst []byte) ([]byte, error) {
	if op.Req.Cmd.T != value.Array {
		return dst, command.WrongType("applyOps.applyOps", op.Req.Cmd.T, command.TArray)
	}
	if err := checkApplyOps(op); err != nil {
		return dst, err
	}
	var ops []appliedOp
	atomic := op.BoolOr("allowAtomic", true)
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		o, err := parseAppliedOp(i, v)
		if err != nil {
			return dst, err
		}
		atomic = atomic && o.op != 'c'
		// The oplog of another server, which a restoration replays, has what that one noted of its own sessions and promises.
		theirs := catalog.DBOf(o.ns) == "config" && command.CheckClientWrite(op, o.ns) != nil
		if o.op != 'n' && !theirs {
			ops = append(ops, o)
		}
	}
	w, err := n.newWriteOp(op)
	if err != nil {
		return dst, err
	}
	var results []value.Value
	if atomic {
		err = n.applyTogether(w, ops)
		for range ops {
			results = append(results, value.NewBool(err == nil))
		}
	} else {
		for i := range ops {
			if err = n.applyOne(w, &ops[i]); err != nil {
				results = append(results, value.NewBool(false))
				break
			}
			results = append(results, value.NewBool(true))
		}
	}
	if err != nil {
		return dst, err
	}
	w.finish()
	dst = value.Append(dst, "applied", value.NewInt32(int32(len(results))))
	return value.Append(dst, "results", value.NewArray(value.ArrayOf(results...))), nil
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

func parseAppliedOp(i int, v value.Value) (o appliedOp, err error) {
	if v.T != value.Document {
		return o, command.WrongType("applyOps.applyOps."+strconv.Itoa(i), v.T, command.TObject)
	}
	kind, ns, obj := value.Lookup(v.Doc(), "op"), value.Lookup(v.Doc(), "ns"), value.Lookup(v.Doc(), "o")
	switch {
	case kind.IsMissing():
		return o, mongoerr.New(mongoerr.NoSuchKey, "Missing expected field \"op\"")
	case kind.T != value.String:
		return o, mongoerr.Newf(mongoerr.TypeMismatch, "\"op\" had the wrong type. Expected string, found %s", kind.T.Name())
	case ns.T != value.String || len(ns.Bytes()) == 0:
		return o, mongoerr.New(mongoerr.IllegalOperation, "cannot apply an operation without a namespace")
	case len(kind.Bytes()) == 0:
		return o, mongoerr.New(mongoerr.IllegalOperation, "an operation's \"op\" is empty")
	case obj.IsMissing():
		return o, command.MissingField("applyOps.o")
	case obj.T != value.Document:
		return o, command.WrongType("applyOps.o", obj.T, command.TObject)
	}
	o = appliedOp{op: kind.Bytes()[0], ns: ns.Str(), uuid: value.Lookup(v.Doc(), "ui"), o: obj.Doc(), o2: value.Lookup(v.Doc(), "o2").Doc()}
	switch {
	case len(kind.Bytes()) != 1 || o.op != 'i' && o.op != 'u' && o.op != 'd' && o.op != 'c' && o.op != 'n':
		return o, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'applyOps.op' is not a valid value.", kind.Str())
	case o.op == 'i' || o.op == 'd':
		o.o2 = o.o
	case o.op == 'u' && o.o2 == nil:
		return o, command.MissingField("applyOps.o2")
	}
	if o.op != 'c' && o.op != 'n' && value.Lookup(o.o2, "_id").IsMissing() {
		return o, mongoerr.New(mongoerr.NoSuchKey, "Failed to apply an operation without an _id")
	}
	return o, nil
}

// applyTogether applies operations on documents in one unit of work.
func (n *Node) applyTogether(w *writeOp, ops []appliedOp) error {
	if len(ops) == 0 {
		return nil
	}
	names := make([]string, len(ops))
	for i := range ops {
		names[i] = ops[i].ns
	}
	unlock, err := w.lock(lock.IX, names...)
	if err != nil {
		return err
	}
	defer w.afterCommit(unlock)
	return w.retry(func() error {
		u := w.unit(nil)
		defer u.Rollback()
		s := u.Snapshot()
		for i := range ops {
			if err := ops[i].apply(s, u); err != nil {
				return err
			}
		}
		return w.commit(u, replication.Visible)
	})
}

// applyOne applies an operation by itself.
func (n *Node) applyOne(w *writeOp, o *appliedOp) error {
	if o.op != 'c' {
		return n.applyTogether(w, []appliedOp{*o})
	}
	if w.left != nil { // a command does not see what this one has left
		return w.left.refusal()
	}
	fields := append(elementsOf(o.o), value.F("$db", value.NewString(catalog.DBOf(o.ns))))
	if w.wc.Timeout > 0 && value.Lookup(o.o, "writeConcern").IsMissing() {
		fields = append(fields, value.F("writeConcern", value.NewDocument(w.op.Req.WriteConcern)))
	}
	reply := n.Service.Run(w.op, w.op.Client, &wire.Message{Body: value.Doc(fields...)}, nil)
	if !value.Lookup(reply, "ok").Truthy() {
		code, _ := value.Lookup(reply, "code").AsInt64()
		return mongoerr.New(mongoerr.Code(code), value.Lookup(reply, "errmsg").Str())
	}
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		w.op.SetWriteConcernError(e)
		if e.Code == mongoerr.WriteConcernTimeout {
			w.left = newLeftCommit(storage.ErrWaitTimeout) // nothing more is done
		}
	}
	return nil
}

// apply does an operation on a document. Operations are idempotent: an insert replaces what is there, a delete finds
// nothing to do.
func (o *appliedOp) apply(s *storage.Snapshot, u *storage.UnitOfWork) error {
	c := s.Catalog().Lookup(o.ns)
	if id, ok := catalog.UUIDFrom(o.uuid); ok {
		c = s.Catalog().LookupUUID(id)
	}
	if c == nil {
		if o.op == 'd' {
			return nil
		}
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Failed to apply operation: collection %s does not exist", o.ns)
	}
	rid, old, found, err := s.FindByID(c, value.Lookup(o.o2, "_id"))
	if err != nil {
		return err
	}
	rid, old = rid.Clone(), append([]byte(nil), old...)
	switch {
	case o.op == 'd' && found:
		return u.Delete(c, rid, old, storage.NoInfo)
	case o.op == 'd':
		return nil
	case o.op == 'i' && !found:
		_, err := u.Insert(c, o.o, storage.NoInfo)
		return err
	case !found:
		return mongoerr.Newf(mongoerr.UnknownError, "Failed to apply update due to a missing document: %s", value.ShowDoc(o.o2))
	}
	next := o.o
	if diff := value.Lookup(o.o, "diff"); diff.T == value.Document && !value.Lookup(o.o, "$v").IsMissing() {
		if next, err = update.ApplyDiff(old, diff.Doc()); err != nil {
			return err
		}
	}
	return u.Update(c, rid, old, next, storage.NoInfo)
}
