package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func deleteSpec(wr *Writer) command.Spec {
	return command.Spec{
		Name: "delete", Roles: command.All, Kind: command.Write, Namespace: true, WriteConcern: true, ReadConcern: true,
		Txn: true, Retryable: true, API: true, Run: wr.runDelete,
		Fields: []command.Field{
			command.Req("deletes", command.TArray), command.Opt("ordered", command.TSafeBool), command.Opt("let", command.TObject),
			command.Opt("bypassDocumentValidation", command.TSafeBool), command.Opt("collectionUUID", command.TOther),
			command.Opt("runtimeConstants", command.TObject), command.Opt("encryptionInformation", command.TObject),
			command.Opt("isTimeseriesNamespace", command.TSafeBool), command.Opt(writtenRanges, command.TArray),
		},
	}
}

func (wr *Writer) runDelete(op *command.Op, dst []byte) ([]byte, error) {
	a, stmts, err := parseBatchOf(op, "deletes", parseDeletes)
	op.Stats.NS, op.Stats.Type = a.ns, "remove"
	if err != nil {
		return dst, err
	}
	w, err := wr.beginBatch(op, a.ns)
	if err != nil {
		return dst, err
	}
	defer w.release()
	var deleted int64
	err = w.runBatch(&a, stmts, "Cannot use retryable writes with limit=0", func(_ int, r *result) { deleted += r.deleted })
	if err != nil {
		return dst, err
	}
	wr.Counts.Deletes.Add(int64(len(stmts)))
	op.Stats.NDeleted = deleted
	dst = value.Append(dst, "n", value.NewInt32(int32(deleted)))
	return w.endWrite(dst), nil
}

// parseDeletes reads the statements of a delete command.
func parseDeletes(list command.Docs, let []byte) ([]statement, error) {
	out := make([]statement, 0, list.Count())
	err := list.Each("delete.deletes", func(i int, doc []byte) error {
		st := statement{let: let}
		var q, limit bool
		for it := value.Walk(doc); ; {
			k, v, ok := it.Next()
			if !ok {
				break
			}
			q = q || string(k) == "q"
			limit = limit || string(k) == "limit"
			if err := st.deleteField(string(k), v); err != nil {
				return err
			}
		}
		if !q {
			return command.MissingField("delete.deletes.q")
		}
		if !limit {
			return command.MissingField("delete.deletes.limit")
		}
		out = append(out, st)
		return nil
	})
	return out, err
}

func (st *statement) deleteField(k string, v value.Value) error {
	field := fieldOf{"delete.deletes.", k, v}
	switch k {
	case "q":
		st.filter = v.Doc()
		return field.is(command.TObject, v.T == value.Document)
	case "limit":
		n, ok := v.AsInt64()
		if !ok || n < 0 || n > 1 {
			return mongoerr.Newf(mongoerr.FailedToParse, "The limit field in delete objects must be 0 or 1. Got %s", value.Show(v))
		}
		st.multi = n == 0
	case "hint":
		st.hint = v
		return command.CheckHint(v)
	case "collation":
		st.collation = v
		return field.is(command.TObject, v.T == value.Document)
	case "sampleId", "includeQueryStatsMetrics":
	default:
		return command.UnknownField("delete.deletes." + k)
	}
	return nil
}

// ForgetSessions returns the steps of a drop of config.transactions: forget stages the invalidation of all sessions, and end drops their state once
// that has committed. Both are nil for another collection.
func (wr *Writer) ForgetSessions(op *command.Op, ns string) (forget func(u *storage.UnitOfWork) error, end func()) {
	if ns != txn.TransactionsNS {
		return nil, nil
	}
	i := wr.Txns.Invalidate(op)
	return i.All, func() { i.End(op) }
}
