//go:build unix

package wire

import (
	"crypto/tls"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A ping over TLS takes at most one and a half times the processor time of a plain one: that of both ends, which are in this process.
func TestTLSPingCost(t *testing.T) {
	s := startTLSEcho(t, &echo{inline: true}, Options{})
	plain, secure := dialTest(t, s), net.Conn(tls.Client(dialTest(t, s), clientTLS("")))
	spent := map[net.Conn][]time.Duration{}
	for round := range 21 {
		for _, c := range []net.Conn{plain, secure} {
			_ = c.SetDeadline(time.Time{})
			before := processorTime(t)
			for range 200 {
				send(t, c, &Message{Body: doc("ping", 1)})
				receive(t, c)
			}
			if round > 0 { // the first has the handshake
				spent[c] = append(spent[c], processorTime(t)-before)
			}
		}
	}
	median := func(c net.Conn) time.Duration { // other tests disturb some rounds
		slices.Sort(spent[c])
		return spent[c][len(spent[c])/2]
	}
	ratio := float64(median(secure)) / float64(median(plain))
	t.Logf("plain %v, TLS %v: %.2f times", median(plain), median(secure), ratio)
	if ratio > 1.5 {
		t.Errorf("a ping over TLS takes %.2f times the processor time of a plain one", ratio)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
