package saslauthd

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
)

// daemon sends reply on each connection; came returns what was received on the last one.
func daemon(t *testing.T, size int, reply []byte) (path string, came func() string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "mux")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			raw := make([]byte, size)
			_, _ = io.ReadFull(c, raw)
			_, _ = c.Write(reply)
			_ = c.Close()
			asked <- string(raw)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return path, func() string { return <-asked }
}

const asked = "\x00\x03ann\x00\x06geheim\x00\x07mongodb\x00\x00"

// Only an answer that is OK, or begins with OK as a word, means that the password is right.
func TestAnswers(t *testing.T) {
	ok, refused, other := error(nil), ErrRefused, errors.New("another error")
	for answer, want := range map[string]error{
		"\x00\x02OK":                             ok,
		"\x00\x0aOK success":                     ok,
		"\x00\x06OK\x00why":                      ok,
		"\x00\x02OKAY":                           ok, // its length says where the answer ends
		"\x00\x04OKAY":                           refused,
		"\x00\x02ok":                             refused,
		"\x00\x03 OK":                            refused,
		"\x00\x02NO":                             refused,
		"\x00\x0fNO wrong, not OK":               refused,
		"\x00\x06NO\x00 OK":                      refused,
		"\x00\x00":                               refused,
		"\x00\x03OK":                             other, // cut short
		"\x00":                                   other,
		"":                                       other,
		"\x04\x01OK" + strings.Repeat(" ", 1023): other, // longer than an answer may be
		"\x04\x00OK" + strings.Repeat(" ", 1022): ok,
	} {
		path, came := daemon(t, len(asked), []byte(answer))
		err := Check(t.Context(), path, "mongodb", "ann", "geheim")
		switch {
		case want == ok && err != nil, want == refused && err != ErrRefused, want == other && (err == nil || errors.Is(err, ErrRefused)):
			t.Errorf("%.20q: %v, want %v", answer, err, want)
		}
		if got := came(); got != asked {
			t.Errorf("the daemon was asked %q", got)
		}
	}
}

// A text that is too long for the protocol is not sent in part.
func TestTextsThatAreTooLong(t *testing.T) {
	path, came := daemon(t, 1, []byte("\x00\x02OK"))
	err := Check(t.Context(), path, "mongodb", "ann", strings.Repeat("x", 1<<16))
	if err == nil || errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if got := came(); got != "\x00" {
		t.Errorf("the daemon was asked %q", got)
	}
}

func TestDaemonIsNotThere(t *testing.T) {
	err := Check(t.Context(), filepath.Join(t.TempDir(), "none"), "mongodb", "ann", "geheim")
	if err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "cannot be reached") {
		t.Error(err)
	}
}

// A check ends with the command that asked for it, whatever the daemon does.
func TestDaemonThatDoesNotAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mux")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Check(ctx, path, "mongodb", "ann", "geheim") }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(asked))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cancel()
	err = await.State(t, "the check ends", func() (error, bool) {
		select {
		case err := <-done:
			return err, true
		default:
			return nil, false
		}
	})
	if err == nil || errors.Is(err, ErrRefused) || time.Since(began) > timeout/2 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
