package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// sizeRoom is the number of megabytes by which a member's peak may be higher with a larger transaction: the heap's growth between two collections, and
// the C allocator's between two trims.
const sizeRoom = 128

// The cost of a transaction of many megabytes beside a member that is away: how long it takes to commit, the effect on other writers of
// the set, and the memory of the members until that one has caught up, which may not grow with the size of the transaction.
// SHOAL_TXN_MB="120 360" asks for the figures.
func TestLargeTransactionCost(t *testing.T) {
	sizes := os.Getenv("SHOAL_TXN_MB")
	if sizes == "" {
		t.Skip("a measurement: SHOAL_TXN_MB=120")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	rs := launchSet(t, setOptions{members: 3})
	client := connect(t, rs.uri())
	db := client.Database("bench", options.Database().SetWriteConcern(writeconcern.Majority()))
	insert := func() error {
		_, err := db.Collection("other").InsertOne(ctx, bson.D{{Key: "at", Value: time.Now()}})
		return err
	}
	for range 10 {
		if err := insert(); err != nil {
			t.Fatal(err)
		}
	}
	var first []int
	for _, size := range strings.Fields(sizes) {
		mb := 0
		if _, err := fmt.Sscan(size, &mb); err != nil {
			t.Fatal(err)
		}
		before := rs.peakMemory()
		away := (rs.elected() + 1) % 3
		rs.kill(away)
		others := timedWriters(t, 4, insert)
		staged, took, err := largeTransaction(ctx, rs, "txn"+size, mb)
		t.Logf("%d MB: statements %v, commit %v: %v; others meanwhile: %s", mb, staged.Round(time.Millisecond),
			took.Round(time.Millisecond), err, others())
		t.Logf("%d MB: peak memory of the members %v MB, before %v", mb, rs.peakMemory(), before)
		rs.start(away)
		rs.waitReady()
		rs.sameEverywhere("bench")
		peaks := rs.peakMemory()
		t.Logf("%d MB: once all have it %v MB", mb, peaks)
		if first == nil {
			first = peaks
		}
		if slices.Max(peaks) > slices.Max(first)+sizeRoom {
			t.Errorf("%d MB: the fullest member has had %d MB, with the first size %d", mb, slices.Max(peaks), slices.Max(first))
		}
	}
}

// largeTransaction inserts mb megabytes of noise in one transaction, and returns how long statements and commit took.
func largeTransaction(ctx context.Context, rs *replicaSet, name string, mb int) (statements, commit time.Duration, err error) {
	client := connect(rs.t, rs.uri())
	coll := client.Database("bench").Collection(name)
	session, err := client.StartSession()
	if err != nil {
		return 0, 0, err
	}
	defer session.EndSession(ctx)
	if err := session.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Majority())); err != nil {
		return 0, 0, err
	}
	rnd := rand.New(rand.NewSource(int64(mb)))
	start := time.Now()
	in := func() context.Context { return mongo.NewSessionContext(ctx, session) }
	for n := 0; n < mb; {
		var docs []any
		for ; len(docs) < 8 && n < mb; n++ {
			pad := make([]byte, 1<<20)
			rnd.Read(pad)
			docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "pad", Value: pad}})
		}
		if _, err := coll.InsertMany(in(), docs); err != nil {
			return time.Since(start), 0, err
		}
	}
	statements = time.Since(start)
	start = time.Now()
	err = session.CommitTransaction(ctx)
	return statements, time.Since(start), err
}

// peakMemory is the most memory that each member has had since it was started, in megabytes; 0 for one that does not run.
func (rs *replicaSet) peakMemory() (mb []int) {
	for _, m := range rs.members {
		if m.cmd == nil {
			mb = append(mb, 0)
			continue
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
		kb := 0
		if i := slices.IndexFunc(strings.Split(string(status), "\n"), func(l string) bool { return strings.HasPrefix(l, "VmHWM:") }); i >= 0 {
			_, _ = fmt.Sscan(strings.TrimPrefix(strings.Split(string(status), "\n")[i], "VmHWM:"), &kb)
		}
		mb = append(mb, kb>>10)
	}
	return mb
}

// A transaction used to be one entry of the raft log, which never reached the other members because of the single time-out
// for its pieces, the replies that carried it, and the memory for its copies. Now it is sent in chunks: the set keeps its
// primary, others write meanwhile, a member that was away receives it, and all members have it as a whole.
func TestLargeTransactionOnASet(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	rs := launchSet(t, setOptions{members: 3})
	primary := rs.elected()
	_, term := rs.state(primary)
	others := connect(t, rs.uri()).Database("bench", options.Database().SetWriteConcern(writeconcern.Majority())).Collection("other")
	insert := func() error {
		_, err := others.InsertOne(ctx, bson.D{{Key: "at", Value: time.Now()}})
		return err
	}
	if err := insert(); err != nil {
		t.Fatal(err)
	}
	away := (primary + 1) % 3
	rs.kill(away)
	times := timedWriters(t, 2, insert)
	if _, _, err := largeTransaction(ctx, rs, "txn", 64); err != nil {
		t.Error(err)
	}
	t.Logf("others meanwhile: %s", times())
	rs.start(away)
	rs.waitReady()
	if _, now := rs.state(rs.elected()); now != term {
		t.Errorf("the set had an election: term %d, before %d", now, term)
	}
	rs.sameEverywhere("bench")
	if n, err := connect(t, rs.uri()).Database("bench").Collection("txn").CountDocuments(ctx, bson.D{}); n != 64 || err != nil {
		t.Errorf("%d documents of 64: %v", n, err)
	}
}
