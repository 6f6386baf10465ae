package command

import (
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TxnSpecs are commitTransaction and abortTransaction as a node answers them that has no such transaction: find tells
// what a named one is instead.
func TxnSpecs(find func(op *Op) error) []Spec {
	row := func(name string) Spec {
		return Spec{
			Name: name, Roles: All, AdminOnly: true, API: true, Txn: true, WriteConcern: true,
			Fields: []Field{Opt("recoveryToken", TObject)},
			Run: func(op *Op, dst []byte) ([]byte, error) {
				if op.Req.Autocommit.IsMissing() {
					return dst, mongoerr.Newf(mongoerr.CommandFailed, "%s must be run within a transaction", name)
				}
				return dst, find(op)
			},
		}
	}
	return []Spec{row("commitTransaction"), row("abortTransaction")}
}

// endsTransaction is true for the commands that end one.
func endsTransaction(name string) bool {
	return name == "commitTransaction" || name == "abortTransaction"
}
