package main

import (
	"context"
	"math/rand"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
)

// listChunks is the number of chunks that the lists of TestListNemesis are in at first, as many slots in each.
const listChunks = 3

// listWriters is the number of clients that append to lists: half of them to lists of all chunks, half to those of one. The latter continue while
// another shard has no primary.
const listWriters = 32

// listLoad has only those clients of a clusterLoad that need no memory for each operation, so that it can run for an hour.
type listLoad struct {
	*clusterLoad
	clients sync.WaitGroup
	working context.Context
	stop    context.CancelFunc
}

// repeat has a client of its own do something again and again. It continues soon after an error: conflicts are the point.
func (l *listLoad) repeat(seed int64, f func(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error) {
	client := connect(l.t, l.c.uri())
	rnd := rand.New(rand.NewSource(seed))
	l.clients.Go(func() {
		for l.working.Err() == nil {
			ctx, cancel := context.WithTimeout(context.Background(), shardedLimit)
			if f(ctx, client, rnd) != nil {
				select {
				case <-time.After(time.Duration(rnd.Intn(5)) * time.Millisecond):
				case <-l.working.Done():
				}
			}
			cancel()
		}
	})
}

func (l *listLoad) start(seed int64) {
	watching := connect(l.t, l.c.uri())
	l.clients.Go(func() { l.watcher.follow(l.working, watching, rand.New(rand.NewSource(seed+1))) })
	await.True(l.t, "a change stream of the lists", l.watcher.open)
	for i := range listWriters {
		slots := slotRange{0, openLists}
		if i%2 == 1 {
			slots = slotRange{i / 2 % listChunks * (openLists / listChunks), openLists / listChunks}
		}
		l.repeat(seed+100+int64(i), func(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
			return l.lists.runOn(ctx, client, rnd, slots)
		})
	}
	l.repeat(seed+2, l.transfer)
	l.repeat(seed+3, l.transfer)
	l.repeat(seed+4, l.total)
	mover := connect(l.t, l.c.uri())
	l.clients.Go(func() { l.c.moveSome(l.working, mover, rand.New(rand.NewSource(seed+5)), l.clusterLoad) })
}

// progress logs each minute how far the run is.
func (l *listLoad) progress() {
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		select {
		case <-minute.C:
			begun, checked := l.lists.begun()
			l.t.Logf("%v: %d transactions on lists have begun (%.0f/s), %d are checked; %d transfers, %d totals, %d chunks moved", time.Since(l.h.start).Round(time.Second),
				begun, float64(begun)/time.Since(l.h.start).Seconds(), checked, l.transfers.Load(), l.totals.Load(), l.moved.Load())
		case <-l.working.Done():
			return
		}
	}
}

// checkStream waits for the change stream to produce the lists, as long as it makes progress.
func (l *listLoad) checkStream(final map[string][]int) {
	ctx, stop := context.WithCancel(context.Background())
	var follower sync.WaitGroup
	follower.Go(func() { l.watcher.follow(ctx, l.c.client, rand.New(rand.NewSource(1))) })
	defer follower.Wait()
	defer stop()
	type position struct {
		events int
		err    error
	}
	await.Progress(l.t, "the change stream has the lists", func() (position, bool) {
		l.watcher.mu.Lock()
		p := position{int(l.watcher.mu.events), l.watcher.mu.err}
		l.watcher.mu.Unlock()
		if p.err != nil {
			l.t.Fatalf("after %d events the change stream does not have the lists: %v", p.events, p.err)
		}
		return p, l.watcher.has(final)
	})
	stop()
	follower.Wait()
	l.t.Logf("%d events of the lists, the stream was resumed %d times", l.watcher.mu.events, l.watcher.resumed)
}

// Transactions on lists and bank transfers while members of all sets and routers are killed, paused, cut off and deposed, and chunks
// move: what they saw can have happened under snapshot isolation, money is constant, and a change stream of the run that is left and
// resumed reproduces the lists. SHOAL_APPENDS=1000000 sets the number of transactions, SHOAL_APPENDS_LIMIT=50m the time limit:
// then what has been done is checked.
func TestListNemesis(t *testing.T) {
	want := appendsWanted(0)
	if want == 0 {
		t.Skip("a long run: SHOAL_APPENDS=1000000, SHOAL_APPENDS_LIMIT=50m")
	}
	limit, err := time.ParseDuration(os.Getenv("SHOAL_APPENDS_LIMIT"))
	if err != nil {
		limit = 24 * time.Hour
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	cl := &clusterLoad{t: t, c: launchCluster(t, clusterOptions{configs: 3, routers: 2, shards: []int{3, 3, 3}, net: newNetwork(t), shardArgs: smallPieces[:2]}), h: newHistory()}
	l := &listLoad{clusterLoad: cl}
	l.working, l.stop = context.WithCancel(context.Background())
	l.prepareAccounts()
	l.c.shard("nemesis.lists", 0, openLists/listChunks*listSlot, 2*(openLists/listChunks)*listSlot)
	l.prepareLists()
	l.c.awaitDDL = func() {}
	unwatch := l.c.watchWhole()
	l.start(seed)
	l.clients.Go(l.progress)
	rnd := rand.New(rand.NewSource(seed))
	for i := 0; ; i++ {
		begun, _ := l.lists.begun()
		if i >= 3 && (begun >= want || time.Since(l.h.start) > limit) {
			break
		}
		l.tormentOnce(i, rnd)
	}
	l.c.waitReady()
	l.stop()
	l.clients.Wait()
	unwatch()
	begun, _ := l.lists.begun()
	t.Logf("%d transactions on lists in %v, %d were asked for; every set had a primary for %v", begun, time.Since(l.h.start).Round(time.Second), want, time.Duration(l.c.whole.Load()).Round(time.Second))
	t.Logf("%d transfers, %d totals, %d chunks moved", l.transfers.Load(), l.totals.Load(), l.moved.Load())
	l.errors.log(t)
	l.c.settle()
	l.checkStream(l.lists.check(t, l.c.client))
	l.checkTotals()
	l.c.checkCatalog("nemesis", "accounts", "lists")
	for _, rs := range l.c.sets() {
		rs.sameEverywhere("nemesis", "config", "admin")
	}
	for _, v := range l.h.wrong {
		t.Error(v)
	}
	if l.transfers.Load() == 0 || l.totals.Load() == 0 || l.moved.Load() == 0 || l.watcher.resumed == 0 {
		t.Error("not everything was tried")
	}
}
