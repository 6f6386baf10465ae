package configsvr

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Tables are changed beside each other, each by one operation at a time, and all of them by one that has no other beside it.
func TestTableLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		k := &takers{t: t}
		table := func(what, ns string) func() {
			return k.take(what, func() (func(), error) { return d.lockTable(t.Context(), ns) })
		}
		x, y, again := table("x", "d.x"), table("y", "d.y"), table("x again", "d.x")
		k.got("x, y")
		x()
		k.got("x, y, x again")
		all := k.take("all", func() (func(), error) { return d.lockTables(t.Context()) })
		late := table("z", "d.z")
		again()
		k.got("x, y, x again")
		y()
		k.got("x, y, x again, all")
		all()
		k.got("x, y, x again, all, z")
		late()
		if n := len(d.chunks.names.held); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// Forbidding a collection's migrations waits for a commit of its own chunks, but not for one of another collection's.
func TestMigrationsAreForbiddenDuringOtherCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		entry := doc(fld("_id", str("d.a")), fld("uuid", value.NewBinary(4, bytes.Repeat([]byte{1}, 16))), fld("lastmodEpoch", value.NewObjectID([12]byte{1})),
			fld("timestamp", value.NewTimestamp(1, 1)), fld("key", doc(fld("x", value.NewInt32(1)))))
		m := New(cluster.LocalPeer(func(_ context.Context, q *wire.Message, _ []byte) ([]byte, error) {
			if of := value.Lookup(q.Body, "find"); !of.IsMissing() {
				found := arr()
				if of.Str() == "collections" {
					found = arr(entry)
				}
				return value.Doc(fld("cursor", doc(fld("firstBatch", found), fld("id", value.NewInt64(0)), fld("ns", str("config.c")))), fld("ok", value.NewInt32(1))), nil
			}
			written++
			return value.Doc(fld("ok", value.NewInt32(1))), nil
		}), nil, cluster.NewVectorClock(nil), nil)
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
			if err := m.permitMigrations(t.Context(), "d.a", [16]byte(bytes.Repeat([]byte{1}, 16)), false); err != nil {
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
