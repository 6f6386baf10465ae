package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// An application whose driver retries writes only notices a pause when its primary steps down or is killed,
// whether it is connected to the set or to a router. TestFailoverTimes measures the pause.
func TestFailoversAreNotSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eleven servers")
	}
	t.Parallel()
	majority := options.Collection().SetWriteConcern(writeconcern.Majority())
	t.Run("set", func(t *testing.T) {
		t.Parallel()
		rs := launchSet(t, setOptions{members: 3})
		coll := connect(t, rs.uri()).Database("failover").Collection("c", majority)
		for _, kind := range []string{"step down", "kill"} {
			t.Logf("%s: a pause of %v", kind, failover(t, rs, coll.InsertOne, kind))
		}
	})
	t.Run("router", func(t *testing.T) {
		t.Parallel()
		c := launchCluster(t, clusterOptions{shards: []int{3, 3}, net: newNetwork(t)})
		c.admin(bson.D{{Key: "enableSharding", Value: "failover"}, {Key: "primaryShard", Value: shardName(1)}})
		coll := c.client.Database("failover").Collection("c", majority)
		for _, kind := range []string{"step down", "kill"} {
			t.Logf("%s: a pause of %v", kind, failover(t, c.shards[1], coll.InsertOne, kind))
		}
	})
}

// A killed primary is replaced within the election timeout plus two seconds: from the kill until another member reports
// itself writable and has acknowledged a majority write. A planned step-down takes a quarter of that at most, as a rule: it waits for no time-out, unless
// the election that it asks for fails, as it may if a member does not get to run. Then it takes as long as a kill. Each further election may take as long again. The
// scheduling delay of this machine is measured and added to the limits. SHOAL_FAILOVERS asks for more rounds.
func TestFailoverBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three servers")
	}
	kills, handOvers := 3, 7
	if n, err := strconv.Atoi(os.Getenv("SHOAL_FAILOVERS")); err == nil {
		kills, handOvers = n, n
	}
	rs := launchSet(t, setOptions{members: 3})
	rs.writes(t, rs.elected(), time.Minute)
	var planned, killed []failoverTime
	for range handOvers {
		old := rs.elected()
		f := rs.replaced(t, old, func() error {
			return rs.members[old].admin(t.Context(), bson.D{{Key: "replSetStepDown", Value: 60}, {Key: "secondaryCatchUpPeriodSecs", Value: 5}})
		})
		if err := rs.members[old].admin(t.Context(), bson.D{{Key: "replSetFreeze", Value: 0}}); err != nil {
			t.Error(err)
		}
		planned = append(planned, f)
		rs.waitReady()
	}
	for range kills {
		old := rs.elected()
		f := rs.replaced(t, old, func() error { rs.kill(old); return nil })
		killed = append(killed, f)
		rs.start(old)
		rs.waitReady()
	}
	handOver, replacement := failoverMedian(t, "step-down", planned), failoverMedian(t, "kill", killed)
	if 4*(handOver.took-handOver.late) > replacement.took {
		t.Errorf("the median step-down took %v, the median replacement of a killed primary %v", handOver, replacement)
	}
}

// failoverTime is the time for which a set was without a primary, the number of elections, and this machine's scheduling delay meanwhile.
type failoverTime struct {
	took, late time.Duration
	elections  int64
}

func (f failoverTime) String() string {
	return fmt.Sprintf("%v (%d elections, the machine was late by %v)", f.took.Round(time.Millisecond), f.elections, f.late.Round(time.Millisecond))
}

// failoverMedian checks each of several times and the number of elections, logs their distribution and returns the median.
func failoverMedian(t *testing.T, what string, all []failoverTime) failoverTime {
	t.Helper()
	elections := 0
	for _, f := range all {
		elections += int(f.elections)
		if f.took > time.Duration(f.elections)*(electionTimeout+2*time.Second)+f.late {
			t.Errorf("%s: another primary after %v", what, f)
		}
	}
	if elections > 2*len(all) {
		t.Errorf("%s: %d elections for %d primaries", what, elections, len(all))
	}
	slices.SortFunc(all, func(a, b failoverTime) int { return cmp.Compare(a.took, b.took) })
	median := all[len(all)/2]
	t.Logf("%s, %d times, election timeout %v: least %v, median %v, most %v", what, len(all), electionTimeout, all[0], median, all[len(all)-1])
	return median
}

// replaced ends the primary by f and waits for another member to accept writes.
func (rs *replicaSet) replaced(t *testing.T, old int, f func() error) failoverTime {
	t.Helper()
	_, term := rs.state(old)
	late := measureLag()
	began := time.Now()
	over := make(chan error, 1)
	go func() { over <- f() }()
	i := 0
	for rs.members[(old+1+i)%3].hello()["isWritablePrimary"] != true {
		if i = 1 - i; i == 0 {
			time.Sleep(2 * time.Millisecond) // at an even pace: what is measured here is the time
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatal("no other member has taken over in five minutes")
		}
	}
	rs.writes(t, (old+1+i)%3, time.Minute)
	took := time.Since(began)
	if err := <-over; err != nil {
		t.Errorf("ending the primary's time: %v", err)
	}
	lag := late()
	_, now := rs.state((old + 1 + i) % 3)
	return failoverTime{took, lag, now - term}
}

// writes has a member acknowledge a majority write.
func (rs *replicaSet) writes(t *testing.T, i int, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	majority := options.Collection().SetWriteConcern(writeconcern.Majority())
	if _, err := rs.members[i].direct.Database("failover").Collection("c", majority).InsertOne(ctx, bson.D{}); err != nil {
		t.Errorf("a write on the new primary: %v", err)
	}
}

// measureLag begins to measure the scheduling delay of this machine; the function that it returns returns the sum.
func measureLag() (late func() time.Duration) {
	const step, usual = 5 * time.Millisecond, 2 * time.Millisecond
	done, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		var all time.Duration
		for {
			began := time.Now()
			select {
			case <-done:
				sum <- all
				return
			case <-time.After(step):
			}
			if d := time.Since(began) - step; d > usual {
				all += d
			}
		}
	}()
	return func() time.Duration { close(done); return <-sum }
}
