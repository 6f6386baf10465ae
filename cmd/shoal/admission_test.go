package main

import (
	"errors"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The parameters of the rate at which connections are established were accepted and heeded by nothing.
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
	// refused opens connections and counts those that the server closes.
	refused := func() (n int) {
		var open []net.Conn
		for range 20 {
			c, err := net.Dial("tcp", s.hosts[0])
			if err != nil {
				n++
				continue
			}
			open = append(open, c)
		}
		for _, c := range open {
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			var late net.Error
			if _, err := c.Read(make([]byte, 1)); !errors.As(err, &late) || !late.Timeout() {
				n++
			}
			_ = c.Close()
		}
		return n
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
