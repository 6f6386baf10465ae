package configsvr

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Changes of one collection's chunks wait for each other and for changes that concern all collections, but not for those of another collection.
func TestTableLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(nil, nil, nil, nil)
		first, err := m.lockTable(t.Context(), "d.a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := m.lockTable(t.Context(), "d.b") // the bubble fails if this waits
		if err != nil {
			t.Fatal(err)
		}
		other()
		var order []string
		go func() {
			unlock, err := m.lockTable(t.Context(), "d.a")
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, "again")
			unlock()
		}()
		synctest.Wait()
		order = append(order, "first")
		first()
		synctest.Wait()
		all, err := m.lockTables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			unlock, err := m.lockTable(t.Context(), "d.b")
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, "b")
			unlock()
		}()
		order = append(order, "all")
		all()
		synctest.Wait()
		if got := len(order); got != 4 || order[0] != "first" || order[1] != "again" || order[2] != "all" || order[3] != "b" {
			t.Errorf("%v", order)
		}
	})
}

// Forbidding a collection's migrations waits for a commit of its own chunks, but not for one of another collection's.
func TestMigrationsAreForbiddenDuringOtherCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		m := New(cluster.LocalPeer(func(context.Context, *wire.Message, []byte) ([]byte, error) {
			written++
			return value.Doc(value.F("n", value.NewInt32(1)), value.F("ok", value.NewInt32(1))), nil
		}), nil, nil, nil)
		other, err := m.lockTable(t.Context(), "d.b")
		if err != nil {
			t.Fatal(err)
		}
		defer other()
		own, err := m.lockTable(t.Context(), "d.a")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if err := m.permitMigrations(t.Context(), "d.a", [16]byte{1}, false); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if written != 0 {
			t.Error("they are forbidden during a commit of the same collection")
		}
		own()
		synctest.Wait() // the bubble fails if it waits for the other commit
		if written != 1 {
			t.Errorf("%d writes", written)
		}
	})
}
