package resharding

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// fakeSessions has the given entries, which are read one at a time, and keeps those it adopts.
type fakeSessions struct {
	has     []storage.OplogEntry
	adopted []value.Value
	opened  int
}

func (f *fakeSessions) HistoryOf(of func(*storage.OplogEntry) ([]byte, bool), at storage.Timestamp) func(int) ([][]byte, storage.Timestamp, bool, error) {
	f.opened++
	sent := 0
	return func(int) (part [][]byte, upTo storage.Timestamp, more bool, err error) {
		if sent == len(f.has) {
			return nil, at, false, nil
		}
		e := f.has[sent]
		sent++
		if key, ok := of(&e); ok {
			part = append(part, value.Doc(value.F("ns", value.NewString(e.NS)), value.F("ui", e.UUID.Value()), value.F("key", value.NewDocument(key)), value.F("opened", value.NewInt32(int32(f.opened)))))
		}
		return part, at, sent < len(f.has), nil
	}
}

func (f *fakeSessions) HistoryAfter(of func(*storage.OplogEntry) ([]byte, bool), at storage.Timestamp) func(int) ([][]byte, storage.Timestamp, bool, error) {
	return f.HistoryOf(of, at)
}

func (f *fakeSessions) Adopt(_ context.Context, entries []value.Value) error {
	for _, e := range entries {
		f.adopted = append(f.adopted, e.Clone())
	}
	return nil
}

// keys returns the keys of the adopted entries.
func (f *fakeSessions) keys() (keys []int32) {
	for _, e := range f.adopted {
		keys = append(keys, value.Lookup(value.LookupDoc(e.Doc(), "key"), "_id").Int32())
	}
	return keys
}

// donorOf returns the manager of a shard that has just become a donor's primary.
func donorOf(t *testing.T, e *storage.Engine, sessions *fakeSessions, id catalog.UUID) *Manager {
	m := New(Config{Engine: e, Docs: &statedoc.Docs{Engine: e, Set: replication.NewSingle(e)}, Sessions: sessions, Counts: &command.Opcounters{}, State: &migration.ShardState{ID: "donor"}, Now: time.Now})
	d := &donor{m: m, doc: &donorDoc{about: about{id: id, ns: "d.c", uuid: catalog.UUID{3}}}}
	d.mu.sessions = make(map[string]*sentHistory)
	m.mu.donors = map[catalog.UUID]*donor{id: d}
	return m
}

// movedHistory is a resharding with one donor and one recipient, between which messages may get lost.
type movedHistory struct {
	*testing.T
	e      *storage.Engine
	id     catalog.UUID
	has    *fakeSessions
	donor  *Manager
	got    fakeSessions
	f      *follower
	asked  int
	before func(ask *msg.ReshardFetchSessions) // runs before a message is delivered
	lost   func() bool                         // whether the reply is lost, and the message is sent again
}

func newMovedHistory(t *testing.T, entries ...storage.OplogEntry) *movedHistory {
	e, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	h := &movedHistory{T: t, e: e, id: catalog.UUID{7}, has: &fakeSessions{has: entries}}
	h.donor = donorOf(t, e, h.has, h.id)
	to := New(Config{Engine: e, Docs: h.donor.Docs, Sessions: &h.got, Counts: &command.Opcounters{}, State: &migration.ShardState{ID: "recipient"}, Now: time.Now})
	r := newRecipient(to, &recipientDoc{about: about{id: h.id, ns: "d.c"}, donors: []string{"donor"}, state: applying})
	h.f = &follower{r: r, donor: "donor", p: &progress{at: storage.Timestamp(0).Value()}, ask: func(_ context.Context, m, reply msg.Message) error {
		ask := m.(*msg.ReshardFetchSessions)
		for {
			if h.asked++; h.asked > 50 {
				t.Fatal("the recipient asks without end")
			}
			if h.before != nil {
				h.before(ask)
			}
			body, err := h.deliver(ask)
			if err != nil {
				return err
			}
			if h.lost == nil || !h.lost() {
				return msg.Parse(body, reply)
			}
		}
	}}
	return h
}

func (h *movedHistory) deliver(ask *msg.ReshardFetchSessions) ([]byte, error) {
	body, mark := value.Begin(nil)
	body, err := h.donor.runFetchSessions(nil, ask, body)
	return value.End(value.Append(body, "ok", value.NewDouble(1)), mark), err
}

func (h *movedHistory) fetch() {
	h.Helper()
	if err := h.f.fetchSessions(h.Context(), true); err != nil {
		h.Fatal(err)
	}
}

func entry(ns string, uuid byte, id int32) storage.OplogEntry {
	return storage.OplogEntry{Op: 'u', NS: ns, UUID: catalog.UUID{uuid}, O: value.Doc(), O2: value.Doc(value.F("_id", value.NewInt32(id)))}
}

// A donor that gets another primary while a recipient has a part of its sessions' history has lost that reading: the recipient begins
// a new one instead of asking for the rest forever.
func TestSessionsOfADonorThatRestarts(t *testing.T) {
	h := newMovedHistory(t, entry("d.c", 3, 0), entry("d.c", 3, 1), entry("d.c", 3, 2))
	h.before = func(*msg.ReshardFetchSessions) {
		if h.asked == 2 {
			h.donor = donorOf(t, h.e, h.has, h.id)
		}
	}
	h.fetch()
	for n := range int32(3) {
		if !slices.Contains(h.got.keys(), n) {
			t.Errorf("entry %d is missing: %v", n, h.got.keys())
		}
	}
}

// The history that moves is the collection's, whichever name or UUID it had, with the UUID that the collection is about to have. What has been adopted is not
// sent again, and a reading in which nothing is of the collection ends.
func TestSessionsOfOtherCollectionsStay(t *testing.T) {
	h := newMovedHistory(t, entry("e.other", 4, 0), entry("e.other", 4, 1), entry("d.c", 3, 2), entry("d.former", 3, 3), entry("d.c", 9, 4), entry("d.former", 9, 5), entry("e.other", 4, 9))
	h.fetch()
	if got := h.got.keys(); !slices.Equal(got, []int32{2, 3, 4, 5}) {
		t.Errorf("the recipient has %v", got)
	}
	for _, e := range h.got.adopted {
		if id, _ := catalog.UUIDFrom(value.Lookup(e.Doc(), "ui")); id != h.id {
			t.Errorf("an entry is of %v", id)
		}
	}
	h.has.has = append(h.has.has, entry("d.c", 3, 6))
	h.fetch()
	if got := h.got.keys(); !slices.Equal(got, []int32{2, 3, 4, 5, 6}) {
		t.Errorf("the recipient then has %v", got)
	}
	h.has.has = append(h.has.has, entry("e.other", 4, 7))
	h.fetch()
	if n := h.has.opened; n != 1 {
		t.Errorf("the history was read %d times", n)
	}
}

// A part whose reply is lost is sent again. A message that arrives late, of a reading that was given up, does not pass over parts of the next one.
func TestSessionsBesideLostMessages(t *testing.T) {
	h := newMovedHistory(t, entry("d.c", 3, 0), entry("d.c", 3, 1), entry("d.c", 3, 2), entry("d.c", 3, 3))
	h.lost = func() bool { return h.asked%2 == 1 }
	h.fetch()
	if got := h.got.keys(); !slices.Equal(got, []int32{0, 1, 2, 3}) {
		t.Errorf("the recipient has %v", got)
	}
	h = newMovedHistory(t, entry("d.c", 3, 0), entry("d.c", 3, 1), entry("d.c", 3, 2), entry("d.c", 3, 3))
	h.before = func(ask *msg.ReshardFetchSessions) {
		if h.asked == 3 {
			if _, err := h.deliver(&msg.ReshardFetchSessions{Resharding: ask.Resharding, Recipient: ask.Recipient}); err != nil {
				t.Error(err)
			}
		}
	}
	h.fetch()
	of := make(map[int32]int) // entries of the last reading
	for _, e := range h.got.adopted {
		if value.Lookup(e.Doc(), "opened").Int32() == int32(h.has.opened) {
			of[value.Lookup(value.LookupDoc(e.Doc(), "key"), "_id").Int32()]++
		}
	}
	if len(of) != 4 {
		t.Errorf("of the last reading the recipient has %v", of)
	}
}
