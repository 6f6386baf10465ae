package ddl

import (
	"strconv"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func commitQuorumSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "setIndexCommitQuorum", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, Run: cs.runSetCommitQuorum,
		Fields: []command.Field{command.Req("indexNames", command.TArray), command.Req("commitQuorum", command.TStringInt)},
	}
}

// runSetCommitQuorum changes the commit quorum of an index build that is under way. The build looks at it at once.
func (cs *Commands) runSetCommitQuorum(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	q, err := cs.commitQuorum(op)
	if err != nil {
		return dst, err
	}
	w, err := cs.begin(op) // the primary has the builds
	if err != nil {
		return dst, err
	}
	names, err := indexNames(op)
	if err != nil {
		return dst, err
	}
	return dst, w.Retry(func() error {
		s := cs.Engine.Snapshot()
		defer s.Release()
		c, _, err := namespace.FindFor(op, s, ns)
		if err != nil {
			return err
		}
		if c == nil {
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection '%s' was not found.", ns)
		}
		u := w.Unit(s)
		defer w.Drop(u)
		if err := u.SetCommitQuorum(c, names, q.Value(), func(now value.Value) error { return mayChangeQuorum(ns, names, now, q) }); err != nil {
			return err
		}
		return w.Commit(u, w.Concern)
	})
}

func indexNames(op *command.Op) (names []string, err error) {
	for i, v := range value.Values(op.Req.Doc("indexNames")) {
		if v.T != value.String {
			return nil, command.WrongType("setIndexCommitQuorum.indexNames."+strconv.Itoa(i), v.T, command.TString)
		}
		names = append(names, v.Str())
	}
	return names, nil
}

// mayChangeQuorum returns an error unless both quorums let members vote: a build starts with voting or without, and stays so.
func mayChangeQuorum(ns string, names []string, now value.Value, to replication.CommitQuorum) error {
	from, err := replication.ParseCommitQuorum(now)
	if err == nil && (from.Disabled() || to.Disabled()) {
		err = mongoerr.Newf(mongoerr.BadValue,
			"Commit quorum value can be changed only for index builds with commit quorum enabled, nss: '%s' first index name: '%s' currentCommitQuorum: %s providedCommitQuorum: %s",
			ns, names[0], value.Show(from.Value()), value.Show(to.Value()))
	}
	return err
}

// commitQuorum reads the argument of a command and checks whether the set could satisfy it. A standalone server takes none.
func (cs *Commands) commitQuorum(op *command.Op) (q replication.CommitQuorum, err error) {
	v := op.Arg("commitQuorum")
	conf := cs.node.SetConfig()
	if !v.IsMissing() && (cs.node.Lone() || conf == nil) {
		return q, mongoerr.New(mongoerr.BadValue, "Standalones can't specify commitQuorum")
	}
	if q, err = replication.ParseCommitQuorum(v); err == nil && !v.IsMissing() {
		err = conf.CheckCommitQuorum(q)
	}
	return q, err
}
