package configsvr

import (
	"testing"
	"testing/synctest"
)

// Changes of one collection's chunks wait for each other and for what concerns all collections, and not for those of another collection.
func TestTableLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(nil, nil, nil, nil)
		first, err := m.lockTable(t.Context(), "d.a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := m.lockTable(t.Context(), "d.b") // the bubble ends with an error where this waits
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
		m.chunks.Lock()
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
		m.chunks.Unlock()
		synctest.Wait()
		if got := len(order); got != 4 || order[0] != "first" || order[1] != "again" || order[2] != "all" || order[3] != "b" {
			t.Errorf("%v", order)
		}
	})
}
