package migration

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A section that was entered after its DDL had ended goes away although nobody uses the name, and one that is held stays: a coordinator's former
// primary that was paused left sections of a dropped collection on two shards for good.
func TestSectionsThatNobodyHoldsEnd(t *testing.T) {
	ctx, held := t.Context(), catalog.UUID{1}
	m, _ := askingManager(t, func(id catalog.UUID) bool { return id == held })
	m.enterTestSection(t, &sectionDoc{name: "d.held", id: held})
	m.enterTestSection(t, &sectionDoc{name: "d.unheld", id: catalog.UUID{2}})
	seen := m.endUnheld(ctx, nil)
	if got := m.namesOfSections(t); len(got) != 2 {
		t.Fatalf("sections of %v after the first look, which only remembers them", got)
	}
	m.endUnheld(ctx, seen)
	if got := m.namesOfSections(t); len(got) != 1 || got[0] != "d.held" {
		t.Errorf("sections of %v are left, want that of d.held", got)
	}
}

// A node that becomes primary does not wait for a second look: it has sections whose end was lost, and others.
func TestSectionsOfANewPrimaryAreLookedAtAtOnce(t *testing.T) {
	held := catalog.UUID{1}
	m, _ := askingManager(t, func(id catalog.UUID) bool { return id == held })
	m.enterTestSection(t, &sectionDoc{name: "d.held", id: held})
	m.enterTestSection(t, &sectionDoc{name: "d.lost", id: catalog.UUID{2}})
	m.endLeftSections(t.Context())
	if got := m.namesOfSections(t); len(got) != 1 || got[0] != "d.held" {
		t.Errorf("sections of %v are left, want that of d.held", got)
	}
}

// askingManager makes a manager whose sections' owner answers whether a run holds them; asked counts its answers.
func askingManager(t *testing.T, holds func(id catalog.UUID) bool) (m *Manager, asked *int) {
	t.Helper()
	m, asked = newTestManager(t, &fakeNode{}, &fakeSessions{}), new(int)
	config := cluster.LocalPeer(func(_ context.Context, req *wire.Message, dst []byte) ([]byte, error) {
		*asked++
		id, _ := catalog.UUIDFrom(value.Lookup(req.Body, "_holdsCriticalSection"))
		return append(dst, msg.Doc(&msg.HoldsCriticalSectionReply{Held: holds(id)}, value.F("ok", value.NewDouble(1)))...), nil
	})
	m.state.Registry, m.state.params = cluster.NewRegistry(config, nil, nil), m.Params
	end := func(ctx context.Context, d *sectionDoc) error { return m.sections().leave(ctx, d) }
	m.state.onLeftOver.Store(&end)
	return m, asked
}

// enterTestSection enters a section of the config server.
func (m *Manager) enterTestSection(t *testing.T, d *sectionDoc) {
	t.Helper()
	d.why, d.owner, d.reads = "drop", cluster.ConfigShardID, true
	if err := m.sections().enter(t.Context(), []*sectionDoc{d}, nil, nil); err != nil {
		t.Fatal(err)
	}
	m.state.enterDDL(d)
}

func (m *Manager) namesOfSections(t *testing.T) (out []string) {
	t.Helper()
	if err := sectionDocs(m.Docs).Each(func(d *sectionDoc) error { out = append(out, d.name); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// An operation on a sharded collection that meets a left-over section of the database ends it. It asked to end one of the collection's name, and waited for the sweep.
func TestLeftOverSectionOfADatabaseIsEndedByItsCollections(t *testing.T) {
	m, _ := askingManager(t, func(catalog.UUID) bool { return false })
	m.enterTestSection(t, &sectionDoc{name: "d", id: catalog.UUID{1}, all: true})
	met, ok := m.state.checkShard(nil, "d.c", cluster.Unsharded, true).(*criticalError)
	if !ok {
		t.Fatal("the section is not met")
	}
	m.state.endLeftOver(t.Context(), met.name, met.section)
	if got := m.namesOfSections(t); len(got) != 0 {
		t.Errorf("sections of %v are left", got)
	}
}

// Whether a run holds a section is asked once, and again when this member's sections have been loaded anew: it may have missed that the section ended, and was entered again by a late message.
func TestOwnersConfirmSections(t *testing.T) {
	held := true
	m, asked := askingManager(t, func(catalog.UUID) bool { return held })
	id := catalog.UUID{1}
	m.enterTestSection(t, &sectionDoc{name: "d.c", id: id})
	for range 3 {
		if err := m.state.HoldsSection(t.Context(), "d.c", id); err != nil || *asked != 1 {
			t.Errorf("asked %d times: %v", *asked, err)
		}
	}
	held = false
	m.state.unconfirm()
	if err := m.state.HoldsSection(t.Context(), "d.c", id); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress || *asked != 2 {
		t.Errorf("asked %d times when the run has ended: %v", *asked, err)
	}
}

// An answer that comes when the sections have been loaded anew is about those of before.
func TestOwnersConfirmNoSectionsThatAreLoadedMeanwhile(t *testing.T) {
	var m *Manager
	m, asked := askingManager(t, func(catalog.UUID) bool {
		m.state.unconfirm()
		return true
	})
	id := catalog.UUID{1}
	m.enterTestSection(t, &sectionDoc{name: "d.c", id: id})
	for i := range 2 {
		if err := m.state.HoldsSection(t.Context(), "d.c", id); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress || *asked != i+1 {
			t.Errorf("asked %d times: %v", *asked, err)
		}
	}
}
