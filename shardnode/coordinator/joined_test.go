package coordinator

import (
	"encoding/binary"
	"testing"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The primary that ends a run stores its outcome for requests that have joined it under an earlier one. When there are as many as the document may have, no more join, nor do
// any once the outcome is being stored.
func TestRequestsThatJoinedUnderAnEarlierPrimary(t *testing.T) {
	engine, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	s := &script{t: t, engine: engine, held: make(chan string, 1), results: map[string][]string{"prepare": {"stuck", "stuck"}}}
	theScript = s
	id := func(n int) (id catalog.UUID) {
		id[15] = 1
		binary.BigEndian.PutUint32(id[:], uint32(n))
		return id
	}
	only := func() *run {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		for _, r := range s.m.mu.runs {
			return r
		}
		return nil
	}
	storedFor := func(n int) {
		t.Helper()
		await.True(t, "the document has those that have joined", func() bool {
			d, ok, err := documents(s.m.Docs).Get(only().doc.ID())
			return err == nil && ok && len(d.joined) == n
		})
	}
	s.stepUp()
	s.run("db.c", "prepare commit!")
	for n := range joinedAtMost / 2 {
		only().join(id(n))
	}
	only().join(s.request)
	only().join(catalog.UUID{})
	storedFor(joinedAtMost / 2)
	s.stepDown()
	s.stepUp()
	r := only()
	for n := joinedAtMost - 1; n >= 0; n-- {
		if !r.join(id(n)) {
			t.Fatalf("request %d has not joined", n)
		}
	}
	storedFor(joinedAtMost)
	if r.join(id(joinedAtMost)) {
		t.Error("too many have joined")
	}
	s.stepDown()
	s.stepUp()
	<-r.done
	if r.join(id(joinedAtMost)) {
		t.Error("a request has joined a run that has ended")
	}
	for n := range joinedAtMost {
		if _, ok, err := s.m.outcome(id(n)); !ok || err != nil {
			t.Fatalf("request %d has no outcome: %v", n, err)
		}
	}
	s.stepDown()
}

// Once the outcome is being stored no request joins: it would not be among those for which it is stored.
func TestNoneJoinsWhenTheOutcomeIsStored(t *testing.T) {
	m := New(Config{})
	r := &run{m: m, doc: &document{op: &scripted{ns: "db.c"}, ns: "db.c", request: catalog.UUID{1}}}
	early, late := catalog.UUID{2}, catalog.UUID{3}
	if !r.join(early) || len(r.settleRequests()) != 2 || r.join(late) || !r.join(early) || !r.join(r.doc.request) {
		t.Error("only those that have joined before have the outcome")
	}
}
