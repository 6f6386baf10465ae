package migration

import "testing"

// A resharding's donor has DDL refused until it ends, although another message that would have made the shard a donor has failed meanwhile.
func TestReshardingRefusesDDLUntilTheLastEnd(t *testing.T) {
	var s ShardState
	refused := func() bool {
		_, ok := s.reshardings.Load("d.c")
		return ok
	}
	for i, x := range []struct{ on, want bool }{{true, true}, {true, true}, {false, true}, {false, false}, {true, true}, {false, false}} {
		if s.Resharding("d.c", x.on); refused() != x.want {
			t.Errorf("step %d: refused: %v", i, refused())
		}
	}
}
