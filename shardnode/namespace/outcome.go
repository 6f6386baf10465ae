package namespace

import (
	"context"

	"github.com/shoaldb/shoal/storage"
)

// Outcome adds a command's reply to the unit of work by which the command takes effect: a command that is sent again, because its reply was
// lost, would find nothing left to do. reply has the reply's fields.
type Outcome func(u *storage.UnitOfWork, reply []byte) error

type outcomeKey struct{}

// KeepOutcome has an operation keep its outcome.
func KeepOutcome(op interface{ Carry(key, val any) }, keep Outcome) { op.Carry(outcomeKey{}, keep) }

// AddOutcome adds a command's outcome to its unit, if it is to be kept.
func AddOutcome(ctx context.Context, u *storage.UnitOfWork, reply []byte) error {
	if keep, ok := ctx.Value(outcomeKey{}).(Outcome); ok {
		return keep(u, reply)
	}
	return nil
}
