package router

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// hideStateChanges turns errors about a shard's member stepping down or shutting down into HostUnreachable. A
// driver would attribute them to the router, and consider the router lost until its next hello, which may be ten
// seconds away. The real router does the same (parameter rewriteStateChangeErrors); errors requested by a fail
// point are left alone.
func (r *Router) hideStateChanges(next func(op *command.Op, err error) error) func(op *command.Op, err error) error {
	return func(op *command.Op, err error) error {
		if next != nil {
			err = next(op, err) // adds labels according to the original code
		}
		if op.FailPoint() || r.Service.Stopping() || op.Req.Spec != nil && op.Req.Spec.Name == "hello" { // hello is about the router itself
			return err
		}
		op.SetWriteConcernError(hidden(op.WriteConcernError()))
		if e, ok := err.(*mongoerr.Error); ok {
			return hidden(e)
		}
		return err
	}
}

// isStateChange reports whether an error is caused by a change of its sender's state.
func isStateChange(c mongoerr.Code) bool {
	return c.In(mongoerr.CategoryNotPrimary | mongoerr.CategoryShutdown)
}

func hidden(e *mongoerr.Error) *mongoerr.Error {
	if e == nil || !isStateChange(e.Code) {
		return e
	}
	h := *e
	h.Code = mongoerr.HostUnreachable
	return &h
}

// plainReply reports whether a successful reply of a node in this process may be passed on unchanged.
func plainReply(op *command.Op, reply []byte) bool {
	return op.Query == nil && (op.Req.Spec == nil || op.Req.Spec.Kind == command.Read || value.Lookup(reply, "writeConcernError").IsMissing())
}
