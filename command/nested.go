package command

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Nested parses a command inside this one (explain's) and returns an operation for it, which ends with its parent.
// It runs in the parent's database, with the parent's versions. End it with Close.
func (op *Op) Nested(body []byte) (*Op, error) {
	it := value.Walk(body)
	name, _, ok := it.Next()
	if !ok {
		return nil, mongoerr.New(mongoerr.CommandNotFound, "no such command: ''")
	}
	spec := op.Service.Table.Lookup(string(name))
	if spec == nil {
		return nil, mongoerr.Newf(mongoerr.CommandNotFound, "no such command: '%s'", name)
	}
	in := &Op{Service: op.Service, Client: op.Client, ID: op.ID, Start: time.Now(), behalf: behalf{parent: op, parentOp: op}}
	in.Req = Request{Spec: spec, DB: op.Req.DB, Body: body, Msg: &wire.Message{Body: body},
		SenderArgs: SenderArgs{ShardVersion: op.Req.ShardVersion, DatabaseVer: op.Req.DatabaseVer}, ReadConcern: op.Req.ReadConcern}
	if err := in.Req.parse(true); err != nil {
		return nil, err
	}
	if in.Req.DB != op.Req.DB {
		return nil, mongoerr.Newf(mongoerr.InvalidNamespace, "Mismatched $db in explain command. Expected %s but got %s", op.Req.DB, in.Req.DB)
	}
	if in.Req.MaxTimeMS > 0 {
		in.SetDeadline(in.Start.Add(time.Duration(in.Req.MaxTimeMS) * time.Millisecond))
	}
	return in, checkConcerns(&in.Req, in.Req.parseConcerns())
}

// Carry passes a value to the code that executes a nested operation.
func (op *Op) Carry(key, val any) { op.parent = context.WithValue(op.parent, key, val) }

// With returns the operation as the context of a command that it runs for itself, with a value for the code that executes that.
func (op *Op) With(key, val any) context.Context { return withValue{op, key, val} }

type withValue struct {
	*Op
	key, val any
}

// Value implements context.Context.
func (c withValue) Value(key any) any {
	if key == c.key {
		return c.val
	}
	return c.Op.Value(key)
}

// Close releases what a nested operation holds.
func (op *Op) Close() { op.release() }
