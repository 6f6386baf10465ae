package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// movePrimary makes the primary shard of a database move it to another shard.
func (r *Router) movePrimary(op *command.Op, dst []byte) ([]byte, error) {
	db, to := op.Req.Cmd.Str(), op.Req.Str("to")
	if to == "" {
		to = op.Req.Str("moveTo")
	}
	switch err := command.CheckDBName(db); {
	case err != nil:
		return dst, err
	case cluster.FixedDatabase(db) || db == "local":
		return dst, mongoerr.Newf(mongoerr.InvalidOptions, "Can't move primary for %s database", db)
	case to == "":
		return dst, mongoerr.New(mongoerr.InvalidOptions, "you have to specify where you want to move it")
	}
	recipient, err := r.Registry.Listed(op, to) // a shard's answer that another one is missing is retried for seconds
	if err != nil {
		return dst, err
	}
	from := len(dst)
	err = r.routed(op, db+".$cmd", false, func(info *cluster.CollectionInfo) error {
		if info.DB.Version.IsFixed() { // r.collection has found none: the shard that it names knows no more, and would succeed at once if it is the recipient
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "database %s not found", db)
		}
		var err error
		dst, err = r.coordinated(op, info, &msg.ShardMovePrimary{DB: db, To: recipient.ID}, dst[:from])
		return err
	})
	r.Catalog.PurgeDatabase(db)
	return dst, err
}
