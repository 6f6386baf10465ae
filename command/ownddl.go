package command

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkDDL decides for all commands which collections of the servers' own a client may remove, replace or alter. What nodes send is not checked, except that nobody drops what a
// server needs to start.
//
// Through a router a client alters nothing in config but what it may drop there, and no system collection of admin; on the server that has a collection it may
// (SERVER-87280, SERVER-88675): whoever repairs a cluster by hand does so on the config server. What a server could not go on without is kept
// everywhere.
//
// createIndexes is not refused here, nor is a create of a plain collection: tools that restore a dump repeat them for collections that exist, and a router refuses to
// create what the cluster creates itself (keepOwn in package router). Documents are another matter (CheckClientWrite).
func checkDDL(op *Op) error {
	r := &op.Req
	if op.Client.Internal || op.Client.InProcess {
		if r.Spec.Name == "drop" && r.Cmd.T == value.String && vital(r.NS(r.Cmd.Str())) {
			return errVital(r.NS(r.Cmd.Str()))
		}
		return nil
	}
	switch name := r.Spec.Name; name {
	case "create", "drop", "collMod", "dropIndexes", "convertToCapped":
		coll, err := r.Coll()
		if err != nil {
			return nil // the command reports it
		}
		return refuseOwn(op, name, r.NS(coll))
	case "renameCollection":
		for _, ns := range []string{r.Cmd.Str(), r.Str("to")} {
			if err := refuseOwn(op, name, ns); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseOwn returns an error if a command must not be executed on a collection.
func refuseOwn(op *Op, cmd, ns string) error {
	db, coll, _ := strings.Cut(ns, ".")
	routed := op.Service.Role == Router
	system := strings.HasPrefix(coll, "system.")
	if routed && cmd != "create" && strings.HasPrefix(coll, "system.resharding.") { // on the shard that has it, whoever repairs one by hand may
		return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot run %s on %s: the collection belongs to a resharding, which abortReshardCollection ends", cmd, ns)
	}
	ofAccess := db == "admin" && system && !movableSystem(db, coll)
	if routed && db == "local" && cmd != "create" { // a router refuses to create there, too
		return mongoerr.New(mongoerr.IllegalOperation, "Can't use 'local' database through mongos")
	}
	switch cmd {
	case "create":
		switch view := value.Lookup(op.Req.Body, "viewOn").Truthy(); {
		case routed && db == "config" && (view || ofCatalog(ns) && createsOther(op.Req.Body)):
			return errCatalog(ns)
		case view && db == "config" && (system || ns == "config.transactions"):
			return CheckClientWrite(op, ns)
		}
		return nil
	case "drop":
		switch {
		case routed && ofCatalog(ns):
			return errCatalog(ns)
		case vital(ns) || routed && ofAccess:
			return errVital(ns)
		}
		return CheckClientWrite(op, ns)
	case "renameCollection":
		if routed && db == "config" && !system || ns == "config.image_collection" { // CheckRename refuses system collections and config.transactions
			return errCatalog(ns)
		}
		return nil
	case "convertToCapped":
		if ns == "local.oplog.rs" || db == "local" && system || ofAccess || ns == "config.image_collection" || ns == "config.system.sessions" {
			return mongoerr.Newf(mongoerr.IllegalOperation, "can't convert collection '%s' to a capped one", ns)
		}
	}
	switch {
	case db == "config" && (system && coll != "system.sessions" || ns == "config.transactions"):
		return CheckClientWrite(op, ns)
	case routed && db == "config":
		return errCatalog(ns)
	case routed && ofAccess:
		return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot run %s on %s through a router", cmd, ns)
	}
	return nil
}

// vital reports whether a collection is one that no server can do without.
func vital(ns string) bool {
	return ns == "local.oplog.rs" || ns == "admin.system.version" || ns == "admin.system.users"
}

func errVital(ns string) error {
	return mongoerr.Newf(mongoerr.IllegalOperation, "can't drop collection '%s'", ns)
}

// createsOther reports whether a create asks for a collection of a kind, or with rules, that would not serve the catalog.
func createsOther(cmd []byte) bool {
	return slices.ContainsFunc([]string{"capped", "clusteredIndex", "timeseries", "validator"}, func(option string) bool {
		return value.Lookup(cmd, option).Truthy()
	})
}

// ofCatalog reports whether a collection is part of the sharding catalog, without which the cluster cannot go on.
func ofCatalog(ns string) bool {
	switch ns {
	case "config.chunks", "config.collections", "config.databases", "config.placementHistory", "config.reshardingOperations", "config.sharding_configsvr_coordinators", "config.shards", "config.tags", "config.version":
		return true
	}
	return false
}

func errCatalog(ns string) error {
	return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot drop, rename, replace or alter %s through a router, or where clients must not write: the config database is the servers' own", ns)
}
