package command

import (
	"strings"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TxnSpecs returns commitTransaction and abortTransaction. They run only if the node does not have the
// transaction; find returns the error for it.
func TxnSpecs(find func(op *Op) error) []Spec {
	row := func(name string) Spec {
		return Spec{
			Name: name, Roles: All, AdminOnly: true, API: true, Txn: true, WriteConcern: true,
			Fields: []Field{Opt("recoveryToken", TObject), Opt("commitTimestamp", TOther)},
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

// endsTransaction reports whether a command ends a transaction.
func endsTransaction(name string) bool {
	return name == "commitTransaction" || name == "abortTransaction" || name == "coordinateCommitTransaction"
}

// inTransactions are the commands that may run in multi-document transactions.
var inTransactions = map[string]bool{
	"find": true, "aggregate": true, "distinct": true, "insert": true, "update": true, "delete": true, "findAndModify": true,
	"bulkWrite": true, "getMore": true, "killCursors": true, "create": true, "createIndexes": true,
	"commitTransaction": true, "abortTransaction": true, "prepareTransaction": true, "coordinateCommitTransaction": true,
}

// RunsInTransaction reports whether a command may be part of a multi-document transaction.
func RunsInTransaction(name string) bool { return inTransactions[name] }

// EndsTransaction reports whether the operation commits or aborts its transaction, or prepares to.
func (op *Op) EndsTransaction() bool {
	return endsTransaction(op.Req.Spec.Name) || op.Req.Spec.Name == "prepareTransaction"
}

// CheckTxnOp refuses operations that cannot run in a transaction.
func CheckTxnOp(op *Op) error {
	r := &op.Req
	name := r.Spec.Name
	if name == "killCursors" && r.StartTxn {
		return mongoerr.New(mongoerr.OperationNotSupportedInTransaction, "Cannot run killCursors as the first operation in a multi-document transaction.")
	}
	ends := op.EndsTransaction()
	if r.WriteConcern != nil && !ends {
		return mongoerr.New(mongoerr.InvalidOptions, "writeConcern is not allowed within a multi-statement transaction")
	}
	if r.ReadConcern != nil && !r.StartTxn {
		return mongoerr.New(mongoerr.InvalidOptions, "Only the first command in a transaction may specify a readConcern")
	}
	if ends || name == "bulkWrite" || name == "getMore" || name == "killCursors" {
		return nil
	}
	coll := ""
	if r.Cmd.T == value.String {
		coll = r.Cmd.Str()
	}
	if err := CheckTxnCollection(r.DB, coll); err != nil {
		return err
	}
	if name == "aggregate" {
		return checkTxnPipeline(op.Arg("pipeline"))
	}
	return nil
}

// CheckTxnCollection refuses the collections that transactions may not use; coll is empty for a command on a database.
func CheckTxnCollection(db, coll string) error {
	if err := CheckTxnDatabase(db); err != nil {
		return err
	}
	if db == "admin" && strings.HasPrefix(coll, "system.") {
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run command against the '%s.%s' collection in a transaction.", db, coll)
	}
	return nil
}

// CheckTxnDatabase refuses the databases that transactions may not use.
func CheckTxnDatabase(db string) error {
	if db == "config" || db == "local" {
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run command against the '%s' database in a transaction.", db)
	}
	return nil
}

func checkTxnPipeline(pipeline value.Value) error {
	for _, v := range value.Values(pipeline.Doc()) {
		for k := range value.Elements(v.Doc()) {
			if agg.Has(k, agg.NotInTransaction) {
				return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Stage not supported inside of a multi-document transaction: %s", k)
			}
		}
	}
	return nil
}
