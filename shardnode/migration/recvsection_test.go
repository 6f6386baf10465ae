package migration

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// newReceived returns a recipient to which everything has arrived.
func newReceived(t *testing.T, m *Manager, id byte) *recipient {
	t.Helper()
	r := &recipient{m: m, id: [16]byte{id}, ns: "d.c", from: "b", uuid: catalog.UUID{9}, rng: testRange(t, 0, 10), stop: func() {}}
	r.mu.state, r.mu.changed, r.mu.docs = recvSteady, make(chan struct{}), 7
	m.mu.ctx, m.mu.in = t.Context(), r
	return r
}

// storedSections returns how many critical sections and recovery documents of recipients are stored.
func storedSections(t *testing.T, m *Manager) (sections, received int) {
	t.Helper()
	if err := sectionDocs(m.Docs).Each(func(*sectionDoc) error { sections++; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := recipientDocs(m.Docs).Each(func(*recipientDoc) error { received++; return nil }); err != nil {
		t.Fatal(err)
	}
	return sections, received
}

// The critical section of a recipient ends by the release or the decision of its own migration, however often they are sent, and by no
// other's.
func TestRecipientSectionEndsByItsOwnMigration(t *testing.T) {
	release := []value.Field{value.F("_recvChunkReleaseCritSec", value.NewString("d.c"))}
	decided := func(committed bool) []value.Field {
		return []value.Field{value.F("_shardsvrMigrationDecision", value.NewString("d.c")), value.F("committed", value.NewBool(committed))}
	}
	for name, ending := range map[string][]value.Field{"released": release, "committed": decided(true), "aborted": decided(false)} {
		t.Run(name, func(t *testing.T) {
			m := newTestManager(t, &fakeNode{}, &fakeSessions{})
			r := newReceived(t, m, 1)
			if err := r.enterReceived(); err != nil {
				t.Fatal(err)
			}
			send := func(id byte, want int) {
				t.Helper()
				whose := [16]byte{id}
				run(t, m, append(ending, value.F("migrationId", value.NewBinary(4, whose[:])))...)
				if sections, received := storedSections(t, m); sections != want || received != want {
					t.Errorf("after the message of migration %d: %d sections, %d recovery documents, want %d", id, sections, received, want)
				}
			}
			send(2, 1)
			send(1, 0)
			send(1, 0)
		})
	}
}

// A new primary of the recipient has the migration, as one that waits for its outcome, and refuses others.
func TestNewPrimaryContinuesReceiving(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	r := newReceived(t, m, 1)
	if err := r.enterReceived(); err != nil {
		t.Fatal(err)
	}
	m.mu.in = nil
	if err := m.restoreReceived(); err != nil {
		t.Fatal(err)
	}
	again, err := m.incoming(r.id)
	if err != nil {
		t.Fatal(err)
	}
	if state, _, _ := again.status(); state != recvEntered || again.mu.docs != 7 || value.ShowDoc(again.rng.max) != value.ShowDoc(r.rng.max) || again.uuid != r.uuid {
		t.Errorf("it continues as %s with %d documents up to %s", state, again.mu.docs, value.ShowDoc(again.rng.max))
	}
}

// Once the outcome of a migration has been reported its recipient enters no critical section: nobody would end it.
func TestNoSectionAfterTheOutcome(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	r := newReceived(t, m, 1)
	run(t, m, value.F("_shardsvrMigrationDecision", value.NewString("d.c")), value.F("migrationId", value.NewBinary(4, r.id[:])), value.F("committed", value.NewBool(false)))
	if err := r.enterReceived(); err == nil {
		t.Error("it has entered")
	}
	if sections, received := storedSections(t, m); sections+received != 0 {
		t.Errorf("%d sections, %d recovery documents", sections, received)
	}
}

// A section of a DDL that began since the recipient looked is not replaced.
func TestRecipientReplacesNoSection(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	r := newReceived(t, m, 1)
	ddl := &sectionDoc{name: "d.c", why: "drop", owner: "b", id: catalog.UUID{3}}
	if err := sectionDocs(m.Docs).Put(t.Context(), ddl); err != nil {
		t.Fatal(err)
	}
	s := m.Docs.Snapshot()
	defer s.Release()
	u := m.Engine.NewUnitOfWork(s)
	defer u.Rollback()
	if err := m.sections().put(s, u, (&recipientDoc{id: r.id, ns: r.ns, from: r.from}).section()); err == nil {
		t.Error("it has replaced the section of the drop")
	}
}
