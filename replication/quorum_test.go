package replication

import "testing"

// The members that count for a commit quorum (manual: createIndexes, setIndexCommitQuorum): all with data that vote, a majority of the voters, a number of those with data,
// or those that satisfy a mode. Arbiters and members that build no indexes never do.
func TestCommitQuorumIsMet(t *testing.T) {
	voters := func(n int) *SetConfig {
		c := NewConfig("rs", []string{"a:1", "b:1", "c:1", "d:1", "e:1"}[:n]...)
		for i := range c.Members {
			c.Members[i].Tags = []Tag{{"dc", string(rune('a' + i))}}
		}
		c.Settings.Modes = []WriteMode{{"two", []TagNeed{{"dc", 2}}}, {"all", []TagNeed{{"dc", n}}}}
		return c
	}
	three := voters(3)
	// A primary, a hidden member, a delayed one, one without a vote, and a voter without priority.
	mixed := voters(5)
	for i := 1; i < 5; i++ {
		mixed.Members[i].Priority = 0
	}
	mixed.Members[1].Hidden, mixed.Members[2].DelaySecs, mixed.Members[3].Votes = true, 3600, 0
	arbiter := voters(3)
	arbiter.Members[2].ArbiterOnly, arbiter.Members[2].Tags = true, nil
	bare := voters(3)
	bare.Members[2].BuildIndexes, bare.Members[2].Priority = false, 0
	everybody := []int{0, 1, 2, 3, 4}
	for _, x := range []struct {
		what  string
		c     *SetConfig
		q     CommitQuorum
		ready []int
		met   bool
	}{
		{"all voters", three, CommitQuorum{Mode: VotingMembers}, []int{0, 1, 2}, true},
		{"all but one", three, CommitQuorum{Mode: VotingMembers}, []int{0, 1}, false},
		{"a majority", three, CommitQuorum{Mode: WriteMajority}, []int{0, 2}, true},
		{"no majority", three, CommitQuorum{Mode: WriteMajority}, []int{0}, false},
		{"nobody has to vote", three, CommitQuorum{}, nil, true},
		{"more than there are", three, CommitQuorum{Members: 4}, everybody, false},
		{"two places", three, CommitQuorum{Mode: "two"}, []int{1, 2}, true},
		{"one place", three, CommitQuorum{Mode: "two"}, []int{1}, false},
		{"no such mode", three, CommitQuorum{Mode: "odd"}, everybody, false},

		{"the voters, and not the member without a vote", mixed, CommitQuorum{Mode: VotingMembers}, []int{0, 1, 2, 4}, true},
		{"without the hidden one", mixed, CommitQuorum{Mode: VotingMembers}, []int{0, 2, 3, 4}, false},
		{"without the delayed one", mixed, CommitQuorum{Mode: VotingMembers}, []int{0, 1, 3, 4}, false},
		{"without the one that has no priority", mixed, CommitQuorum{Mode: VotingMembers}, []int{0, 1, 2, 3}, false},
		{"a majority of four voters", mixed, CommitQuorum{Mode: WriteMajority}, []int{0, 1, 2}, true},
		{"two of them, and one without a vote", mixed, CommitQuorum{Mode: WriteMajority}, []int{0, 1, 3}, false},
		{"a number counts the one without a vote", mixed, CommitQuorum{Members: 3}, []int{0, 1, 3}, true},
		{"all five", mixed, CommitQuorum{Members: 5}, everybody, true},
		{"a mode counts it, too", mixed, CommitQuorum{Mode: "two"}, []int{0, 3}, true},
		{"a mode for all", mixed, CommitQuorum{Mode: "all"}, []int{0, 1, 2, 4}, false},

		{"an arbiter is not waited for", arbiter, CommitQuorum{Mode: VotingMembers}, []int{0, 1}, true},
		{"an arbiter does not count", arbiter, CommitQuorum{Mode: WriteMajority}, []int{0, 2}, false},
		{"the majority beside an arbiter", arbiter, CommitQuorum{Mode: WriteMajority}, []int{0, 1}, true},
		{"an arbiter has no data", arbiter, CommitQuorum{Members: 3}, everybody, false},

		{"a voter without indexes is never ready", bare, CommitQuorum{Mode: VotingMembers}, everybody, false},
		{"the others are a majority", bare, CommitQuorum{Mode: WriteMajority}, []int{0, 1}, true},
		{"it is not counted", bare, CommitQuorum{Members: 3}, everybody, false},
		{"nor for a mode", bare, CommitQuorum{Mode: "all"}, everybody, false},
	} {
		ready := map[int]bool{}
		for _, i := range x.ready {
			ready[x.c.Members[i%len(x.c.Members)].ID] = true
		}
		if met := x.c.QuorumMet(x.q, func(id int) bool { return ready[id] }); met != x.met {
			t.Errorf("%s: met %v", x.what, met)
		}
	}
}
