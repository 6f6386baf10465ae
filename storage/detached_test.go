package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// detachedInsert commits a document that the log does not decide on, and returns the detached commit.
func detachedInsert(t *testing.T, ctx context.Context, e *Engine, c *catalog.Collection, id int, limit time.Duration) *Detached {
	t.Helper()
	u := e.NewUnitOfWork(nil)
	defer u.Rollback()
	if _, err := u.Insert(c, D("_id", id), NoInfo); err != nil {
		t.Fatal(err)
	}
	u.MayDetach(limit)
	ts, err := e.Commit(ctx, u, false)
	var l *Detached
	if !errors.As(err, &l) || ts != 0 {
		t.Fatalf("document %d: committed at %v, %v", id, ts, err)
	}
	return l
}

// decision is the outcome of a detached commit.
type decision struct {
	ts  Timestamp
	err error
}

func decisionOf(l *Detached) <-chan decision {
	ch := make(chan decision, 1)
	l.Then(func(ts Timestamp, err error) { ch <- decision{ts, err} })
	return ch
}

// heldSet returns a primary with a collection, whose log no longer commits anything by itself.
func heldSet(t *testing.T) (*testLog, *Engine, *catalog.Collection) {
	l := newTestLog(t, 2, Options{})
	l.elect(l.members[0], 0)
	e := l.members[0].e
	stop := l.run()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 0))
	stop()
	return l, e, c
}

// run commits everything that is proposed until stop is called.
func (l *testLog) run() (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Microsecond):
				l.commitSome(1)
			}
		}
	}()
	return func() {
		close(over)
		<-done
		l.settle()
	}
}

// A detached commit keeps its claims until the log decides, and is then there once.
func TestDetachedCommitCompletes(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	left := detachedInsert(t, context.Background(), e, c, 1, 30*time.Millisecond)
	if !errors.Is(left, ErrWaitTimeout) || e.DetachedCommits() != 1 {
		t.Errorf("%v, %d units left", left, e.DetachedCommits())
	}
	done := decisionOf(left)
	again := e.NewUnitOfWork(nil)
	if _, err := again.Insert(c, D("_id", 1), NoInfo); !ErrConflict(err) {
		t.Errorf("the same key while nothing is decided: %v", err)
	}
	again.Rollback()
	want(t, "before the decision", now(t, e, "db.c"), "{ _id: 0 }")
	l.settle()
	if d := <-done; d.err != nil || d.ts == 0 || e.Visible() < d.ts {
		t.Errorf("decided: %v", d)
	}
	if d := <-decisionOf(left); d.err != nil {
		t.Errorf("asked again: %v", d)
	}
	want(t, "after the decision", now(t, e, "db.c"), "{ _id: 0 } { _id: 1 }")
	l.same()
	if e.DetachedCommits() != 0 {
		t.Errorf("%d units left", e.DetachedCommits())
	}
}

// The member steps down before the log decides: the unit is rolled back, and its claims are released.
func TestDetachedCommitIsRolledBack(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	ctx, cancel := context.WithCancelCause(context.Background())
	killed := mongoerr.New(mongoerr.Interrupted, "operation was interrupted")
	time.AfterFunc(5*time.Millisecond, func() { cancel(killed) })
	left := detachedInsert(t, ctx, e, c, 1, 0)
	if !errors.Is(left, killed) {
		t.Errorf("left because of %v", left)
	}
	done := decisionOf(left)
	l.elect(l.members[1], 0)
	if d := <-done; !errors.Is(d.err, errStepDown) || d.ts != 0 {
		t.Errorf("decided: %v", d)
	}
	l.elect(l.members[0], 0)
	stop := l.run()
	insert(t, e, c, D("_id", 1))
	stop()
	l.same()
}

// A member that steps down determines the outcome of its units itself: no commit is detached because of that.
func TestStepDownDetachesNothing(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(5*time.Millisecond, func() {
		cancel(mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted"))
		time.Sleep(2 * firstWait) // by then the commit has looked at its context, which the test is about
		l.settle()
	})
	u := e.NewUnitOfWork(nil)
	if _, err := u.Insert(c, D("_id", 1), NoInfo); err != nil {
		t.Fatal(err)
	}
	u.MayDetach(0)
	if ts, err := e.Commit(ctx, u, false); err != nil || ts == 0 {
		t.Errorf("committed at %v: %v", ts, err)
	}
}

// Far more units are detached than may be in flight: group leaders that wait for room are detached, too, and nothing is
// lost, duplicated or out of order when the log continues.
func TestManyDetachedCommits(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	const units = 4 * maxInFlight
	var wg sync.WaitGroup
	decisions := make([]<-chan decision, units)
	for i := range units {
		wg.Add(1)
		go func() {
			defer wg.Done()
			decisions[i] = decisionOf(detachedInsert(t, context.Background(), e, c, i+1, 20*time.Millisecond))
		}()
	}
	wg.Wait()
	if e.DetachedCommits() != units {
		t.Errorf("%d units left", e.DetachedCommits())
	}
	stop := l.run()
	times := map[Timestamp]bool{}
	for i, ch := range decisions {
		d := <-ch
		if d.err != nil || times[d.ts] {
			t.Errorf("document %d: %v", i+1, d)
		}
		times[d.ts] = true
	}
	if n := e.Catalog().Lookup("db.c").Counters.Records.Load(); n != units+1 {
		t.Errorf("%d documents", n)
	}
	stop()
	l.same()
}

// Units that wait for room when the member steps down end, and the engine can be closed.
func TestManyDetachedCommitsRolledBack(t *testing.T) {
	l, e, c := heldSet(t)
	var all []<-chan decision
	for i := range 3 * maxInFlight {
		all = append(all, decisionOf(detachedInsert(t, context.Background(), e, c, i+1, time.Millisecond)))
	}
	l.close()
	for i, ch := range all {
		if d := <-ch; d.err == nil {
			t.Errorf("document %d: committed at %v", i+1, d.ts)
		}
	}
	if e.DetachedCommits() != 0 {
		t.Errorf("%d units left", e.DetachedCommits())
	}
}

// Inserts into a capped collection are serialized. A detached one does not block the next ones forever.
func TestDetachedCommitOnACappedCollection(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	stop := l.run()
	c := create(t, e, "db.capped", D("capped", true, "size", 4096))
	stop()
	done := decisionOf(detachedInsert(t, context.Background(), e, c, 1, time.Millisecond))
	u := e.NewUnitOfWork(nil)
	if _, err := u.Insert(c, D("_id", 2), NoInfo); !ErrConflict(err) {
		t.Errorf("while nothing is decided: %v", err)
	}
	u.Rollback()
	l.settle()
	if d := <-done; d.err != nil {
		t.Error(fmt.Sprint("decided: ", d.err))
	}
}
