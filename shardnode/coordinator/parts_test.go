package coordinator

import (
	"slices"
	"testing"

	"github.com/shoaldb/shoal/cluster/msg"
)

// Participants know the phases of each operation that lets others use its names before it ends, and no others: a phase that is renamed would have its parts refused for ever.
func TestPartsHavePhases(t *testing.T) {
	ops := map[string]operation{}
	for _, o := range []operation{
		&drop{req: &msg.ShardDropCollection{}}, &dropDatabase{req: &msg.ShardDropDatabase{}}, &rename{req: &msg.ShardRename{}}, &movePrimary{req: &msg.ShardMovePrimary{}},
	} {
		ops[o.name()] = o
		opens := slices.ContainsFunc(o.phases(), func(p phase) bool { return p.opens })
		if _, listed := msg.PartPhases[o.name()]; listed != opens {
			t.Errorf("%s is listed: %v", o.name(), listed)
		}
	}
	for name, phases := range msg.PartPhases {
		for _, p := range phases {
			if o := ops[name]; o == nil || p != undoing && phaseIndex(o, p) < 0 {
				t.Errorf("%s has no phase %s", name, p)
			}
		}
	}
}
