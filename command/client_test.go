package command

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A process is silent when none of its connections receives anything for longer than the interval it has announced on any of them.
func TestSilentProcesses(t *testing.T) {
	s := NewService(Shard)
	connect := func(id byte, every time.Duration) *Client {
		c := NewClient(int64(id), "", "", nil)
		c.setProcess([16]byte{id}, every)
		s.clients.Store(c, struct{}{})
		return c
	}
	a1, a2 := connect(1, 0), connect(1, 2*time.Second)
	b := connect(2, 0) // it has announced no interval
	client := NewClient(3, "", "", nil)
	s.clients.Store(client, struct{}{})
	start := time.Now()
	for _, c := range []*Client{a1, a2, b, client} {
		c.received(start)
	}
	silent := func(after time.Duration) bool {
		t.Helper()
		found := s.Silent(start.Add(after), time.Time{}, 3)
		if len(found) > 1 || len(found) == 1 && !found[[16]byte{1}] {
			t.Errorf("after %v: %v", after, found)
		}
		return len(found) == 1
	}
	if silent(6 * time.Second) {
		t.Error("silent after three times its interval")
	}
	if !silent(7 * time.Second) {
		t.Error("not silent after more than that")
	}
	if len(s.Silent(start.Add(7*time.Second), start.Add(5*time.Second), 3)) != 0 {
		t.Error("silent while this process itself was paused")
	}
	a1.received(start.Add(3 * time.Second))
	if silent(8 * time.Second) {
		t.Error("silent on one connection, active on another")
	}
	a2.setProcess([16]byte{1}, 2*time.Second)
	if !silent(time.Minute) {
		t.Error("a new hello on a connection makes it silent forever")
	}
}

// A connection may send client metadata once: a second one is refused as such, whatever is in it.
func TestASecondDescriptionIsRefused(t *testing.T) {
	op := &Op{Client: NewClient(1, "", "", nil)}
	malformed := value.NewDocument(value.Doc(value.F("application", value.NewString("x"))))
	if err := keepMetadata(op, malformed); mongoerr.CodeOf(err) != mongoerr.TypeMismatch {
		t.Errorf("the first: %v", err)
	}
	op.Client.SetMetadata(value.Doc(), "")
	if err := keepMetadata(op, malformed); mongoerr.CodeOf(err) != mongoerr.ClientMetadataCannotBeMutated {
		t.Errorf("the second: %v", err)
	}
}
