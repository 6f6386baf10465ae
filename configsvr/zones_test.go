package configsvr

import (
	"testing"
	"testing/synctest"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Whether a shard is the last one of a zone with ranges is decided while no range is assigned, and by what is stored: not by the registry, which may be older.
func TestLastShardOfAZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &catalogStore{}
		m := managerOf(s, frozen)
		entry := func(id string, zones ...value.Value) []byte {
			return value.Doc(fld("_id", str(id)), fld("host", str(id+"/"+id+":1")), fld("tags", arr(zones...)))
		}
		s.docs["shards"] = [][]byte{entry("a", str("z")), entry("b", str("z"))}
		if _, err := m.registry.All(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.docs["shards"] = [][]byte{entry("a", str("z")), entry("b")}
		assigning, err := m.lockTables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := m.checkZone(t.Context(), "d.c", []value.Value{value.NewInt32(1)}, []value.Value{value.NewInt32(2)}, "z"); err != nil {
			t.Error(err)
		}
		var removed error
		ended := false
		go func() {
			removed = m.removeShardFromZone(t.Context(), "a", "z")
			ended = true
		}()
		synctest.Wait()
		if ended {
			t.Errorf("while a range is assigned: %v", removed)
		}
		s.docs["tags"] = [][]byte{value.Doc(fld("_id", str("t")), fld("ns", str("d.c")), fld("tag", str("z")), fld("min", doc(fld("k", value.NewInt32(1)))), fld("max", doc(fld("k", value.NewInt32(2)))))}
		assigning()
		synctest.Wait()
		if mongoerr.CodeOf(removed) != mongoerr.ZoneStillInUse {
			t.Errorf("after it: %v", removed)
		}
		s.docs["shards"], s.docs["tags"] = [][]byte{entry("a")}, nil
		if err := m.checkZone(t.Context(), "d.c", []value.Value{value.NewInt32(1)}, []value.Value{value.NewInt32(2)}, "z"); mongoerr.CodeOf(err) != mongoerr.ZoneNotFound {
			t.Errorf("a range of a zone that no shard is in any more: %v", err)
		}
	})
}
