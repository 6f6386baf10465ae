package ddl

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// dropCollectionParticipantSpec returns the row of the command with which a coordinator drops a sharded collection on each shard.
func dropCollectionParticipantSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.DropCollectionParticipant, dst []byte) ([]byte, error) {
		w, err := participantWrites(cs, op, req.FromMigrate)
		if err == nil {
			w.fenced, w.forGood = cs.fence(op, req.Section), req.ForGood
			_, err = w.dropNamespace(req.NS)
		}
		return dst, err
	})
	s.Roles, s.Kind = command.Shard|command.Config, command.DDL
	return s
}

// dropDatabaseParticipantSpec returns the row of the command with which a coordinator drops a database on each shard.
func dropDatabaseParticipantSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.DropDatabaseParticipant, dst []byte) ([]byte, error) {
		w, err := participantWrites(cs, op, req.FromMigrate)
		if err == nil {
			w.fenced = cs.fence(op, req.Section)
			err = w.dropDatabase(req.DB, !req.FromMigrate)
		}
		return dst, err
	})
	s.Roles, s.Kind = command.Shard|command.Config, command.DDL
	return s
}

// checkCommandSpec returns the row of the command with which a coordinator asks each shard whether it would execute a client's command,
// before any shard does.
//
// Hazard: what a node that was deposed admits, its successor may refuse once other shards have executed it: a collMod or dropIndexes would
// then never end. What it finds done already, its successor may have to do.
func checkCommandSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.CheckCommand, dst []byte) ([]byte, error) {
		if err := cs.node.Linearize(op); err != nil {
			return dst, err
		}
		in, err := op.Nested(req.Command)
		if err != nil {
			return dst, err
		}
		defer in.Close()
		would, err := cs.check(in, req)
		if err != nil {
			return dst, err
		}
		return msg.AppendFields(dst, &would), nil
	})
	s.Roles, s.Kind, s.AdminOnly, s.Namespace, s.PrimaryOnly = command.Shard, command.DDL, false, true, true
	return s
}

// check executes a command up to its commit. It takes no lock: writers continue, and the collection's other DDL waits for the
// coordinator.
func (cs *Commands) check(op *command.Op, req *msg.CheckCommand) (would msg.CheckCommandReply, err error) {
	ns := req.DB + "." + req.Coll
	w, err := cs.begin(op)
	if err != nil {
		return would, err
	}
	if op.Req.Spec.Name == "createIndexes" && cs.Engine.Catalog().Lookup(ns) == nil {
		return would, mongoerr.Newf(mongoerr.CannotImplicitlyCreateCollection, "request doesn't allow collection %s to be created implicitly", ns).
			WithDetails(value.Doc(value.F("ns", value.NewString(ns))))
	}
	if err := w.checkUUID(ns); err != nil {
		return would, err
	}
	w.checks, w.unfinished, w.builds = true, req.Unfinished, req.Builds
	switch name := op.Req.Spec.Name; name {
	case "collMod":
		m, err := parseCollMod(op, ns)
		if err == nil {
			err = cs.Engine.CheckRoom() // there is none for its commit either, and other shards would have a definition that this one could not store
		}
		if err != nil {
			return would, err
		}
		err = w.Retry(func() error { return w.modify(m) })
		would.Enforce = m.enforces
		if len(m.changes) > 0 {
			would.Changes = value.Doc(m.changes...)
		}
		return would, err
	case "dropIndexes":
		was, _, err := w.dropIndexes(ns)
		return msg.CheckCommandReply{Missing: w.absent, Indexes: int64(was)}, err
	case "createIndexes":
		would.Missing, err = w.missingIndexes(ns)
		return would, err
	case "convertToCapped":
		return would, w.mayConvert(ns)
	default:
		return would, mongoerr.Newf(mongoerr.BadValue, "a %s cannot be checked", name)
	}
}

// missingIndexes checks the indexes that a createIndexes names, and lists those that the collection does not have.
func (w *operation) missingIndexes(ns string) (names []string, err error) {
	ci := &newIndexes{ns: ns}
	if ci.raw, err = indexSpecs(w.Op); err != nil {
		return nil, err
	}
	s := w.ddl.Engine.Snapshot()
	defer s.Release()
	c, ts, err := namespace.FindFor(w.Op, s, ns)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, namespace.NotFound(ns)
	}
	ci.ts = ts
	specs, err := ci.missing(c)
	for _, spec := range specs {
		names = append(names, value.Lookup(spec, "name").Str())
	}
	return names, err
}

// othersWithKey returns the indexes with a key, in its stored form, that builds elsewhere will create here, and that the collection does not have. Builds that it refuses create none.
func (w *operation) othersWithKey(c *catalog.Collection, ts *namespace.SeriesOptions, key []byte) (specs []*indexkey.Spec, err error) {
	for _, cmd := range w.builds {
		in, err := w.Op.Nested(cmd)
		if err != nil {
			return nil, err
		}
		ci := &newIndexes{ns: c.NS, ts: ts}
		ci.raw, err = indexSpecs(in)
		in.Close()
		if err != nil {
			return nil, err
		}
		missing, err := ci.missing(c)
		if err != nil {
			continue
		}
		for _, raw := range missing {
			spec, err := indexkey.ParseSpec(raw)
			if err != nil {
				return nil, err
			}
			if indexkey.SameKey(spec.KeyPattern, key) {
				specs = append(specs, spec)
			}
		}
	}
	return specs, nil
}

// fence returns a check that fails for a message whose run does not hold the name's critical section on this shard; nil if the message does
// not belong to a run.
func (cs *Commands) fence(ctx context.Context, section *[16]byte) func(ns string) error {
	if section == nil {
		return nil
	}
	id := catalog.UUID(*section)
	return func(ns string) error { return cs.node.HoldsSection(ctx, ns, id) }
}

// participantWrites begins the writes of a shard's part in a coordinated operation.
func participantWrites(cs *Commands, op *command.Op, fromMigrate bool) (*operation, error) {
	if err := cs.writes.MayWrite(op); err != nil {
		return nil, err
	}
	w := &operation{Command: cs.writes.With(op, replication.Durable), ddl: cs}
	w.FromMigrate = fromMigrate
	return w, nil
}
