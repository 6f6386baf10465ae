package txn

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// BenchmarkFlushSessions writes the records of sessions that have each executed one retryable insert since the flush before, and compares that with
// the inserts, of documents of 200 bytes, one commit each, in the storage engine alone. Flushes come every five seconds: sessions that write more often
// pay less for each write, and ones that write rarely pay this once for each.
//
//	insert-us     processor time of an insert
//	flush-us      of a session's share of a flush
//	insert-B      what an insert adds to the store's journal
//	flush-B       what a session's share of a flush does
func BenchmarkFlushSessions(b *testing.B) {
	for _, sessions := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			m, n := newTestManagerOn(b, storage.Options{Dir: b.TempDir()})
			u := n.eng.NewUnitOfWork(nil)
			c, err := u.CreateCollection(storage.CollectionSpec{NS: partNS})
			if err == nil {
				_, err = n.set.Commit(b.Context(), u, replication.Visible)
			}
			if err != nil {
				b.Fatal(err)
			}
			type cost struct {
				cpu   time.Duration
				bytes int64
			}
			var inserts, flushes cost
			add := func(to *cost, f func() error) {
				cpu, bytes := usedCPU(), n.eng.Stats().LogBytes
				if err := f(); err != nil {
					b.Fatal(err)
				}
				to.cpu += usedCPU() - cpu
				to.bytes += n.eng.Stats().LogBytes - bytes
			}
			rounds := 0
			for b.Loop() {
				rounds++
				add(&inserts, func() error {
					for i := range sessions {
						if err := m.insertAs(b, c.NS, i, int64(rounds)); err != nil {
							return err
						}
					}
					return nil
				})
				add(&flushes, func() error { return m.FlushRetries(b.Context()) })
			}
			per := float64(rounds) * float64(sessions)
			b.ReportMetric(inserts.cpu.Seconds()*1e6/per, "insert-us")
			b.ReportMetric(flushes.cpu.Seconds()*1e6/per, "flush-us")
			b.ReportMetric(float64(inserts.bytes)/per, "insert-B")
			b.ReportMetric(float64(flushes.bytes)/per, "flush-B")
		})
	}
}

// insertAs has a session execute a retryable insert.
func (m *Manager) insertAs(b *testing.B, ns string, session int, number int64) error {
	op := m.Service.Background(b.Context(), command.OwnClient())
	op.Req.Spec = &command.Spec{Name: "insert"}
	var id cluster.LogicalSessionID
	binary.BigEndian.PutUint32(id.ID[:], uint32(session))
	op.Req.LSID, op.Req.TxnNumber, op.Req.HasTxnNumber = id.Doc(), number, true
	s, release, err := m.CheckoutRetry(op)
	if err != nil {
		return err
	}
	defer release()
	u := m.Engine.NewUnitOfWork(nil)
	defer u.Rollback()
	u.SetSession(s.LSID, number, s.LastEntry())
	doc := value.Doc(value.F("_id", value.NewInt64(number<<32|int64(session))), value.F("s", value.NewBinary(0, make([]byte, 170))))
	if _, err := u.Insert(u.Catalog().Lookup(ns), doc, storage.OpInfo{}); err != nil {
		return err
	}
	s.NoteOnCommit(u, m.Engine.Term(), Run{From: 0, To: 0, Op: 'i'})
	_, err = m.Set.Commit(b.Context(), u, replication.Visible)
	return err
}

// usedCPU is the processor time that the process has used.
func usedCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
