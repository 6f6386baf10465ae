package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The first write of a transaction waits for a lock behind the create of its collection, which another connection sends at the same time:
// nothing has been read, so the transaction continues on a newer snapshot. Once it has read, it cannot.
func TestTransactionBeginsBesideACreate(t *testing.T) {
	for _, s := range []struct {
		name   string
		before string // the transaction's first statement
		want   mongoerr.Code
	}{
		{"nothing read", "", 0},
		{"read before", `{"find": "other"}`, mongoerr.WriteConflict},
	} {
		t.Run(s.name, func(t *testing.T) {
			n := newTestNode(t)
			n.ok("admin", `{"setParameter": 1, "maxTransactionLockRequestTimeoutMillis": 60000}`) // 5 may pass before this test releases the lock
			n.ok("d", `{"create": "other"}`)
			if s.before != "" {
				n.ok("d", inTxn(s.before, 1, true))
			}
			locks := n.srv.Node.locks
			unlock, err := locks.Collection(t.Context(), "d.c", lock.X)
			if err != nil {
				t.Fatal(err)
			}
			created, inserted := make(chan mongoerr.Code, 1), make(chan mongoerr.Code, 1)
			queued := func(number int) {
				await.True(t, "the operation waits for the lock", func() bool {
					readers, writers := locks.Queued()
					return readers+writers == number
				})
			}
			go func() { created <- mongoerr.Code(n.code("d", `{"create": "c"}`)) }()
			queued(1)
			go func() {
				inserted <- mongoerr.Code(n.code("d", inTxn(`{"insert": "c", "documents": [{"_id": 1}]}`, 1, s.before == "")))
			}()
			queued(2)
			unlock()
			if code := <-created; code != 0 {
				t.Fatalf("create: %v", code)
			}
			if code := <-inserted; code != s.want {
				t.Fatalf("insert: %v, want %v", code, s.want)
			}
			if s.want == 0 {
				n.ok("admin", inTxn(`{"commitTransaction": 1}`, 1, false))
				if got := n.first("d", `{"find": "c"}`); len(got) != 1 {
					t.Errorf("found %v", got)
				}
			}
		})
	}
}
