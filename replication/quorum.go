package replication

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CommitQuorum says how many members must be ready to commit an index build before its primary commits it. (Manual: createIndexes, setIndexCommitQuorum.)
type CommitQuorum struct {
	Members int    // data-bearing members, the primary included; 0 disables voting
	Mode    string // VotingMembers, WriteMajority or the name of a mode of the configuration; empty for a number
}

// The modes of a commit quorum that every set has.
const (
	VotingMembers = "votingMembers" // the default: all voting members that bear data
	WriteMajority = "majority"      // the majority of them
)

// ParseCommitQuorum reads the argument of a command, or the field of a stored build. A missing value is the default.
func ParseCommitQuorum(v value.Value) (CommitQuorum, error) {
	switch {
	case v.IsMissing():
		return CommitQuorum{Mode: VotingMembers}, nil
	case v.T == value.String:
		return CommitQuorum{Mode: v.Str()}, nil
	}
	n, _ := v.AsInt64()
	if n < 0 || n > MaxMembers {
		return CommitQuorum{}, mongoerr.Newf(mongoerr.FailedToParse, "commitQuorum has to be a non-negative number and not greater than %d", MaxMembers)
	}
	return CommitQuorum{Members: int(n)}, nil
}

// Disabled reports whether a build commits without any votes.
func (q CommitQuorum) Disabled() bool { return q.Mode == "" && q.Members == 0 }

// Value returns the quorum as commands take it.
func (q CommitQuorum) Value() value.Value {
	if q.Mode != "" {
		return value.NewString(q.Mode)
	}
	return value.NewInt32(int32(q.Members))
}

// CheckCommitQuorum reports whether the set, with all its members up, can satisfy q.
func (c *SetConfig) CheckCommitQuorum(q CommitQuorum) error {
	if q.Mode != "" && q.Mode != VotingMembers && q.Mode != WriteMajority && c.mode(q.Mode) == nil {
		return mongoerr.Newf(mongoerr.UnknownReplWriteConcern, "No write concern mode named '%s' found in replica set configuration", q.Mode)
	}
	if !c.QuorumMet(q, func(int) bool { return true }) {
		return mongoerr.New(mongoerr.UnsatisfiableCommitQuorum, "Commit quorum cannot be satisfied with the current replica set configuration")
	}
	return nil
}

// QuorumMet reports whether the members for which ready returns true satisfy q. Arbiters and members that build no indexes are never ready: with one of the
// latter among the voters, "votingMembers" cannot be satisfied.
func (c *SetConfig) QuorumMet(q CommitQuorum, ready func(id int) bool) bool {
	n, voters, all := 0, 0, 0
	for i := range c.Members {
		m := &c.Members[i]
		if m.ArbiterOnly {
			continue
		}
		if m.Voter() {
			all++
		}
		if !m.BuildIndexes || !ready(m.ID) {
			continue
		}
		if n++; m.Voter() {
			voters++
		}
	}
	switch q.Mode {
	case "":
		return n >= q.Members
	case VotingMembers:
		return voters == all
	case WriteMajority:
		return voters >= min(c.Majority(), all)
	}
	mode := c.mode(q.Mode)
	return mode != nil && c.modeMet(mode, func(id int) bool { m := c.Member(id); return m != nil && m.BuildIndexes && ready(id) })
}
