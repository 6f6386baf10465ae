package namespace

import (
	"context"

	"github.com/shoaldb/shoal/storage"
)

// Outcome adds a command's reply to the unit of work by which the command takes effect: if the reply is lost and the command is sent again,
// its effect is already in place, so the reply could not be derived again. reply has the reply's fields.
type Outcome func(u *storage.UnitOfWork, reply []byte) error

type outcomeKey struct{}

// KeepOutcome makes an operation store its outcome by keep.
func KeepOutcome(op interface{ Carry(key, val any) }, keep Outcome) { op.Carry(outcomeKey{}, keep) }

// AddOutcome adds a command's outcome to its unit, if KeepOutcome was called for it.
func AddOutcome(ctx context.Context, u *storage.UnitOfWork, reply []byte) error {
	if keep, ok := ctx.Value(outcomeKey{}).(Outcome); ok {
		return keep(u, reply)
	}
	return nil
}
