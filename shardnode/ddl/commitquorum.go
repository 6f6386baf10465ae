package ddl

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func commitQuorumSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "setIndexCommitQuorum", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, Run: cs.runSetCommitQuorum,
		Fields: []command.Field{command.Req("indexNames", command.TArray), command.Req("commitQuorum", command.TStringInt)},
	}
}

// runSetCommitQuorum checks its arguments and changes nothing. Index builds need no commit quorum: members have an index with the unit of work that completes it,
// which a majority of them must have.
func (cs *Commands) runSetCommitQuorum(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	if err := cs.checkCommitQuorum(op.Arg("commitQuorum")); err != nil {
		return dst, err
	}
	if _, err := cs.begin(op); err != nil { // the primary has the builds
		return dst, err
	}
	ns := op.Req.NS(coll)
	c := cs.Engine.Catalog().Lookup(ns)
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection '%s' was not found.", ns)
	}
	names := value.Values(op.Req.Doc("indexNames"))
	building := len(names) > 0
	for _, name := range names {
		idx := c.Index(name.Str())
		building = building && idx != nil && !idx.Ready
	}
	if !building {
		return dst, mongoerr.Newf(mongoerr.IndexNotFound, "Cannot find an index build on collection '%s' with the provided index names", ns)
	}
	return dst, nil
}

// checkCommitQuorum checks whether the set could satisfy a commit quorum: a number of voting members, all of them or their majority, or a mode of the
// set's configuration.
func (cs *Commands) checkCommitQuorum(v value.Value) error {
	if v.IsMissing() {
		return nil
	}
	conf := cs.node.SetConfig()
	if cs.node.Lone() || conf == nil {
		return mongoerr.New(mongoerr.BadValue, "Standalones can't specify commitQuorum")
	}
	if v.T != value.String {
		switch n, _ := v.AsInt64(); {
		case n < 0 || n > replication.MaxVotingMembers:
			return mongoerr.Newf(mongoerr.FailedToParse, "commitQuorum has to be a non-negative number and not greater than %d", replication.MaxVotingMembers)
		case int(n) > conf.WritableVoters():
			return mongoerr.New(mongoerr.UnsatisfiableCommitQuorum, "Commit quorum cannot be satisfied with the current replica set configuration")
		}
		return nil
	}
	if mode := v.Str(); mode != "votingMembers" && mode != "majority" {
		return conf.CheckWriteConcern(replication.WriteConcern{Tag: mode})
	}
	return nil
}
