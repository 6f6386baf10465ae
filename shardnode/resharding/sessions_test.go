package resharding

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// fakeSessions has the given records, and keeps those it adopts.
type fakeSessions struct {
	has     [][]byte
	adopted []int32
}

func (f *fakeSessions) History(storage.Timestamp) [][]byte { return f.has }

func (f *fakeSessions) HistoryOf(func(*storage.OplogEntry) ([]byte, bool), storage.Timestamp) func(int) ([][]byte, storage.Timestamp, bool, error) {
	return nil
}

func (f *fakeSessions) WithImage(rec []byte) ([]byte, error) { return rec, nil }

func (f *fakeSessions) Adopt(_ context.Context, records []value.Value) error {
	for _, r := range records {
		f.adopted = append(f.adopted, value.Lookup(r.Doc(), "n").Int32())
	}
	return nil
}

// donorOf returns the manager of a shard that has just become a donor's primary.
func donorOf(t *testing.T, e *storage.Engine, sessions *fakeSessions, id catalog.UUID) *Manager {
	m := New(Config{Engine: e, Docs: &statedoc.Docs{Engine: e, Set: replication.NewSingle(e)}, Sessions: sessions, State: &migration.ShardState{ID: "donor"}, Now: time.Now})
	d := &donor{m: m, doc: &donorDoc{about: about{id: id, ns: "d.c"}}}
	d.mu.sessions = make(map[string][][]byte)
	m.mu.donors = map[catalog.UUID]*donor{id: d}
	return m
}

// A donor that gets another primary while a recipient has a part of its sessions' history has that list no more: the recipient begins
// with a new one, in place of asking for the rest for ever.
func TestSessionsOfADonorThatRestarts(t *testing.T) {
	e, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	id := catalog.UUID{7}
	has := &fakeSessions{}
	for n := range int32(3) {
		has.has = append(has.has, value.Doc(value.F("n", value.NewInt32(n)), value.F("pad", value.NewBinary(0, make([]byte, maxReply/2)))))
	}
	donor, got := donorOf(t, e, has, id), &fakeSessions{}
	to := New(Config{Engine: e, Docs: donor.Docs, Sessions: got, State: &migration.ShardState{ID: "recipient"}, Now: time.Now})
	r := newRecipient(to, &recipientDoc{about: about{id: id, ns: "d.c"}, donors: []string{"donor"}, state: applying})
	asked := 0
	f := &follower{r: r, donor: "donor", p: &progress{at: storage.Timestamp(0).Value()}, ask: func(_ context.Context, m, reply msg.Message) error {
		if asked++; asked == 2 {
			donor = donorOf(t, e, has, id)
		}
		if asked > 20 {
			t.Fatal("the recipient asks without end")
		}
		body, mark := value.Begin(nil)
		body, err := donor.runFetchSessions(nil, m.(*msg.ReshardFetchSessions), body)
		if err != nil {
			return err
		}
		return msg.Parse(value.End(value.Append(body, "ok", value.NewDouble(1)), mark), reply)
	}}
	if err := f.fetchSessions(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for n := range int32(3) {
		if !slices.Contains(got.adopted, n) {
			t.Errorf("record %d is missing: %v", n, got.adopted)
		}
	}
}
