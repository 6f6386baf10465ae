package console

import (
	"log/syslog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Without a daemon events are lost, and the first write reports that; with one they arrive again.
func TestSyslogThatComesAndGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := &syslogWriter{dial: func() (*syslog.Writer, error) { return syslog.Dial("unixgram", path, syslog.LOG_USER, "mongod") }}
	write := func(fails bool) {
		t.Helper()
		if _, err := s.Write([]byte("event\n")); (err != nil) != fails {
			t.Fatalf("%v, fails: %v", err, fails)
		}
	}
	write(true)
	for range 3 {
		write(false)
	}
	for range 2 {
		_ = os.Remove(path)
		daemon, err := net.ListenPacket("unixgram", path)
		if err != nil {
			t.Fatal(err)
		}
		if s.lost != 4 && s.lost != 1 {
			t.Errorf("%d events are lost", s.lost)
		}
		write(false) // whether the writer reconnects now, or tried to less than a second ago: this write does not fail
		s.tried = time.Time{}
		write(false)
		buf := make([]byte, 1000)
		n, _, err := daemon.ReadFrom(buf)
		if err != nil || !strings.Contains(string(buf[:n]), "event") || s.lost != 0 {
			t.Fatalf("%q, %v, %d lost", buf[:n], err, s.lost)
		}
		_ = daemon.Close()
		write(true)
	}
}
