package command

import (
	"strings"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckClientWrite refuses a client's writes to what nodes maintain themselves and rely on when they start:
// view definitions, and in config the records of prepared transactions and of sessions. Deletions from
// config.transactions and config.image_collection are at the client's own risk, as on the real server. A shard cannot tell a router's own
// writes from those it relays, so both check.
func CheckClientWrite(op *Op, ns string) error {
	if op.Client.Internal || op.Client.InProcess {
		return nil
	}
	db, coll, _ := strings.Cut(ns, ".")
	drops := op.Req.Spec.Name == "drop"
	removes := drops || op.Req.Spec.Name == "delete"
	switch {
	case coll == "system.views" && !drops,
		db == "config" && strings.HasPrefix(coll, "system.") && coll != "system.sessions",
		ns == "config.transactions" && !removes,
		ns == "config.image_collection" && drops:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "cannot write to %s", ns)
	}
	return nil
}
