package router_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// syncs blocks the commits that wait for the disk, from hold on.
type syncs struct {
	mu      sync.Mutex
	waiting int
	all     map[string]int // since hold, by node
	open    chan struct{}  // nil before
}

// slowDisk is a set whose durable commits wait for syncs.
type slowDisk struct {
	replication.Set
	*syncs
	node string
}

func (s slowDisk) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	if wc.Durable() {
		s.wait(ctx, s.node)
	}
	return s.Set.Commit(ctx, u, wc)
}

// docsSet makes the commits of a node's own documents, which a test may intercept while the node works.
type docsSet struct {
	replication.Set
	by atomic.Pointer[commitHook]
}

// commitHook is called for a commit, which it makes with commit, or not.
type commitHook func(u *storage.UnitOfWork, commit func() (storage.Timestamp, error)) (storage.Timestamp, error)

func (d *docsSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	commit := func() (storage.Timestamp, error) { return d.Set.Commit(ctx, u, wc) }
	if by := d.by.Load(); by != nil {
		return (*by)(u, commit)
	}
	return commit()
}

// interceptDocs has a hook called for the commits of the documents of a shard's own, until the returned function is called.
func (c *testCluster) interceptDocs(shard string, by commitHook) (end func()) {
	d := c.server[shard].Node.Docs.Set.(*docsSet)
	d.by.Store(&by)
	return func() { d.by.Store(nil) }
}

func (s *syncs) wait(ctx context.Context, node string) {
	s.mu.Lock()
	open := s.open
	if open != nil {
		s.waiting++
		s.all[node]++
	}
	s.mu.Unlock()
	if open == nil {
		return
	}
	select {
	case <-open:
	case <-ctx.Done():
	}
}

// hold makes commits wait from here on.
func (s *syncs) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.all, s.waiting = make(chan struct{}), map[string]int{}, 0
}

// free lets all commits proceed from here on, and returns how many have waited, by node.
func (s *syncs) free() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.open)
	s.open, s.waiting = nil, 0
	return s.all
}

func (s *syncs) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// complete lets the waiting commits proceed.
func (s *syncs) complete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.open)
	s.open, s.waiting = make(chan struct{}), 0
}

// A commit over two shards waits for three syncs, one after the other: the votes, the decision, the commits. It used
// to wait for five, including the list of participants and the removal of the coordinator's document.
func TestTwoShardCommitsWaitForThreeSyncs(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	begin := func(number int) {
		c.txn([]txnStep{
			{number, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, 0, "n", "1"},
			{number, false, "d", bumpOne, 0, "n", "1"},
		})
	}
	commit := func(number int) bson.M {
		return c.as(command.NewClient(2, "test", "test", nil), "admin", fmt.Sprintf(`{"commitTransaction": 1, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false, "writeConcern": {"w": "majority"}}`, txnLSID, number))
	}
	begin(1)
	if r := commit(1); r["ok"] != 1.0 { // creates the collections
		t.Fatal(r)
	}
	c.until("the first commit's coordinator has ended", func() bool {
		return len(c.all("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": true}}, {"$match": {"twoPhaseCommitCoordinator": {"$exists": true}}}], "cursor": {}}`)) == 0
	})
	begin(2)
	disk := c.disk
	disk.hold()
	defer disk.free()
	answer := make(chan bson.M, 1)
	go func() { answer <- commit(2) }()
	for i, want := range []int{2, 1, 2} {
		c.until(fmt.Sprintf("%d writes wait for sync %d", want, i+1), func() bool { return disk.count() == want })
		select {
		case r := <-answer:
			t.Fatalf("answered after %d syncs: %v", i, r)
		default:
		}
		disk.complete()
	}
	if r := <-answer; r["ok"] != 1.0 {
		t.Error(r)
	}
	if n := disk.count(); n != 0 {
		t.Errorf("%d more syncs", n)
	}
}
