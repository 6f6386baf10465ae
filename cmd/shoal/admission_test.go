package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// connectionsStatus has the figures of serverStatus about connections that are established.
type connectionsStatus struct {
	Connections struct {
		Current, TotalCreated, Rejected, QueuedForEstablishment int
		EstablishmentRateLimit                                  struct{ Rejected, Exempted, InterruptedDueToClientDisconnect int }
	}
	Queues struct {
		IngressSessionEstablishment struct{ AddedToQueue, RemovedFromQueue, InterruptedInQueue, RejectedAdmissions, ExemptedAdmissions int }
	}
}

// decided returns the number of connections that were admitted, refused or queued.
func (st connectionsStatus) decided() int {
	return st.Connections.TotalCreated + st.Connections.EstablishmentRateLimit.Rejected + st.Queues.IngressSessionEstablishment.AddedToQueue
}

func connectionsOf(t *testing.T, s *testSet) (st connectionsStatus) {
	t.Helper()
	if err := s.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Decode(&st); err != nil {
		t.Fatal(err)
	}
	return st
}

// The parameters that limit the rate of new connections were accepted but had no effect.
func TestConnectionRateIsLimited(t *testing.T) {
	s := startTestSet(t, 1, "")
	s.admin(t.Context(), bson.D{{Key: "ping", Value: 1}})
	set := func(on bool, exempt ...string) {
		t.Helper()
		s.admin(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "ingressConnectionEstablishmentRatePerSec", Value: 0.01},
			{Key: "ingressConnectionEstablishmentBurstCapacitySecs", Value: 500.0}, {Key: "ingressConnectionEstablishmentMaxQueueDepth", Value: 2},
			{Key: "ingressConnectionEstablishmentRateLimiterBypass", Value: bson.M{"ranges": exempt}},
			{Key: "ingressConnectionEstablishmentRateLimiterEnabled", Value: on}})
	}
	// refused opens connections and counts those that are refused, all of which the server closes.
	refused := func() int {
		t.Helper()
		before := connectionsOf(t, s)
		var closed atomic.Int64
		for range 20 {
			c, err := net.Dial("tcp", s.hosts[0])
			if err != nil {
				closed.Add(1)
				continue
			}
			defer c.Close()
			go func() {
				_, _ = c.Read(make([]byte, 1))
				closed.Add(1)
			}()
		}
		var decided, rejected int
		await.True(t, "the server has decided on all", func() bool {
			now := connectionsOf(t, s)
			decided = now.decided() - before.decided()
			rejected = now.Connections.EstablishmentRateLimit.Rejected - before.Connections.EstablishmentRateLimit.Rejected
			return decided >= 20
		})
		return await.State(t, fmt.Sprint(rejected, " are closed"), func() (int, bool) {
			n := int(closed.Load())
			return n, n >= rejected-(decided-20) // beside the driver's own, if it has connected meanwhile
		})
	}
	if got := refused(); got != 0 {
		t.Errorf("%d are refused without a limit", got)
	}
	set(true)
	if got := refused(); got < 13 || got > 18 {
		t.Errorf("%d of 20 are refused where 5 may come and 2 wait", got)
	}
	set(true, "127.0.0.0/8")
	if got := refused(); got != 0 {
		t.Errorf("%d exempt ones are refused", got)
	}
	set(false)
}

// From outside: a queue full of connections that end becomes free again, a waiting client may send no more than a handshake,
// the counters show the outcome of every connection, and switching the limit off admits those that wait.
func TestConnectionQueueFromOutside(t *testing.T) {
	s := startTestSet(t, 1, "")
	set := func(fields ...bson.E) error {
		return s.client.Database("admin").RunCommand(t.Context(), append(bson.D{{Key: "setParameter", Value: 1}}, fields...)).Err()
	}
	const prefix = "ingressConnectionEstablishment"
	for _, bad := range []bson.E{
		{Key: prefix + "RatePerSec", Value: 0}, {Key: prefix + "RatePerSec", Value: -1.5}, {Key: prefix + "RatePerSec", Value: math.NaN()},
		{Key: prefix + "BurstCapacitySecs", Value: 0}, {Key: prefix + "MaxQueueDepth", Value: -1},
		{Key: prefix + "RateLimiterBypass", Value: bson.M{"ranges": bson.A{"nonsense"}}},
		{Key: prefix + "RateLimiterBypass", Value: bson.M{"ranges": bson.A{7}}},
		{Key: prefix + "RateLimiterBypass", Value: bson.M{"ranges": "10.0.0.0/8"}},
		{Key: prefix + "RateLimiterBypass", Value: bson.M{"addresses": bson.A{}}},
		{Key: prefix + "RateLimiterBypass", Value: bson.A{}},
	} {
		if err := set(bad); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	status := func() connectionsStatus { return connectionsOf(t, s) }
	before := status()
	if err := errors.Join(set(bson.E{Key: prefix + "RatePerSec", Value: 0.001}, bson.E{Key: prefix + "BurstCapacitySecs", Value: 1}, bson.E{Key: prefix + "MaxQueueDepth", Value: 3}),
		set(bson.E{Key: prefix + "RateLimiterEnabled", Value: true})); err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.hosts[0])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err := c.Read(make([]byte, 1))
		var late net.Error
		return !errors.As(err, &late) || !late.Timeout()
	}
	queued := func(n int) {
		t.Helper()
		await.True(t, fmt.Sprint(n, " in the queue"), func() bool { return status().Connections.QueuedForEstablishment == n })
	}
	dial() // takes the only token
	for round := range 5 {
		waits := []net.Conn{dial(), dial(), dial()}
		queued(3)
		if !closed(dial()) {
			t.Errorf("round %d: a fourth waits", round)
		}
		if _, err := waits[0].Write(make([]byte, 1<<20)); err == nil && !closed(waits[0]) {
			t.Errorf("round %d: a waiting client may send without end", round)
		}
		queued(2)
		_ = waits[1].Close()
		_ = waits[2].Close()
		queued(0)
	}
	asks := dialRaw(t, s.hosts[0])
	if _, err := asks.Write(opMsg(0, body(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}))); err != nil {
		t.Fatal(err)
	}
	queued(1)
	if err := set(bson.E{Key: prefix + "RateLimiterEnabled", Value: false}); err != nil {
		t.Fatal(err)
	}
	if got := asks.outcome(); got != "ok" {
		t.Errorf("a client that waited while the limit was lifted gets %s", got)
	}
	st := status()
	limit, queue := st.Connections.EstablishmentRateLimit, st.Queues.IngressSessionEstablishment
	if limit.Rejected != 5 || limit.InterruptedDueToClientDisconnect != 15 || queue.AddedToQueue != 16 || queue.RemovedFromQueue != 16 || queue.InterruptedInQueue != 15 ||
		queue.RejectedAdmissions != 5 || st.Connections.Rejected != before.Connections.Rejected || st.Connections.TotalCreated-before.Connections.TotalCreated > 4 {
		t.Errorf("%+v, before %+v", st, before.Connections)
	}
	if _, err := net.Dial("tcp", s.hosts[0]); err != nil || set(bson.E{Key: prefix + "RateLimiterBypass", Value: bson.M{"ranges": bson.A{"::ffff:127.0.0.0/104"}}},
		bson.E{Key: prefix + "RateLimiterEnabled", Value: true}) != nil || dialRaw(t, s.hosts[0]).ask(bson.E{Key: "ping", Value: 1}) != "ok" {
		t.Error("an exempt client has to wait")
	}
}
