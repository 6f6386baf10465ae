package shardnode

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/replication"
)

// Which members count for a commit quorum: "votingMembers" asks for all that vote, hidden or delayed or not, "majority" for a majority of these, a number for as many
// members that bear data, and a mode of the configuration for the tags of any of them. A member counts once it has applied the build, however long its delay.
func TestMembersOfACommitQuorum(t *testing.T) {
	const hidden, delayed, voteless = 1, 2, 3
	m := openTestMembers(t, steady, 4, func(c *replication.SetConfig) {
		for i := range c.Members {
			c.Members[i].Tags = []replication.Tag{{Name: "dc", Value: fmt.Sprint(i)}, {Name: "kind", Value: []string{"a", "a", "a", "b"}[i]}}
		}
		for _, i := range []int{hidden, delayed, voteless} {
			c.Members[i].Priority = 0
		}
		c.Members[hidden].Hidden = true
		c.Members[delayed].Hidden, c.Members[delayed].DelaySecs = true, 36000
		c.Members[voteless].Votes = 0
		c.Settings.Modes = []replication.WriteMode{{Name: "three", Needs: []replication.TagNeed{{Tag: "dc", Count: 3}}}, {Name: "four", Needs: []replication.TagNeed{{Tag: "dc", Count: 4}}},
			{Name: "kinds", Needs: []replication.TagNeed{{Tag: "kind", Count: 2}}}}
	})
	n := m.nodes[0]
	await.True(t, "a primary with three voters", func() bool { return n.srv.Repl.Writable() && n.votes() == 3 })
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	create := func(quorum string) string {
		return `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": ` + quorum + `}`
	}
	without := func(lost int, goOn string, quorums ...string) { // as many as are up do not satisfy them; goOn is satisfied
		t.Helper()
		if lost >= 0 {
			m.reach(memberHost(lost), false)
			defer m.reach(memberHost(lost), true)
		}
		for _, quorum := range quorums {
			reply := n.builtBeside("c", "a", `, "commitQuorum": `+quorum)
			up := []string{memberHost(0)}
			for _, i := range []int{hidden, voteless} {
				if i != lost {
					up = append(up, memberHost(i))
				}
			}
			await.State(t, "the votes of those that are up, for "+quorum, func() (string, bool) {
				for _, b := range n.srv.Engine.Builds() {
					if e, err := n.srv.Engine.BuildEntry(b.UUID()); err == nil && e != nil {
						return fmt.Sprint(e.Ready), slices.Equal(slices.Sorted(slices.Values(e.Ready)), up)
					}
				}
				return "no build", false
			})
			if n.ready("c", "a") {
				t.Errorf("%s is satisfied by %v", quorum, up)
			}
			n.ok("d", `{"setIndexCommitQuorum": "c", "indexNames": ["a"], "commitQuorum": `+goOn+`}`)
			if r := <-reply; r["ok"] != 1.0 {
				t.Errorf("%s instead of %s: %v", goOn, quorum, r)
			}
			n.ok("d", `{"dropIndexes": "c", "index": "a"}`)
		}
		for _, quorum := range []string{goOn, "1", "0"} {
			n.ok("d", create(quorum))
			n.ok("d", `{"dropIndexes": "c", "index": "a"}`)
		}
	}
	for _, quorum := range []string{`"majority"`, `3`, `"three"`, `"kinds"`} { // all are up, and one of them is far behind
		n.ok("d", create(quorum))
		n.ok("d", `{"dropIndexes": "c", "index": "a"}`)
	}
	without(-1, `"majority"`, `"votingMembers"`, `4`, `"four"`)
	without(hidden, `"kinds"`, `"votingMembers"`, `"majority"`, `3`, `"three"`)
	without(voteless, `"majority"`, `"votingMembers"`, `"kinds"`, `3`, `"three"`)
}
