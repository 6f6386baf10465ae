package migration

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire"
)

// A section that was entered after its DDL had ended goes away although nobody uses the name, and one that is held stays: a coordinator's former
// primary that was paused left sections of a dropped collection on two shards for good.
func TestSectionsThatNobodyHoldsEnd(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	held := catalog.UUID{1}
	config := cluster.LocalPeer(func(_ context.Context, req *wire.Message, dst []byte) ([]byte, error) {
		id, _ := catalog.UUIDFrom(value.Lookup(req.Body, "_holdsCriticalSection"))
		return append(dst, msg.Doc(&msg.HoldsCriticalSectionReply{Held: id == held}, value.F("ok", value.NewDouble(1)))...), nil
	})
	m.state.Registry = cluster.NewRegistry(config, nil, nil)
	end := func(ctx context.Context, d *sectionDoc) error { return m.sections().leave(ctx, d) }
	m.state.onLeftOver.Store(&end)
	ctx := t.Context()
	for name, id := range map[string]catalog.UUID{"d.held": held, "d.unheld": {2}} {
		d := &sectionDoc{name: name, why: "drop", owner: cluster.ConfigShardID, id: id, reads: true}
		if err := m.sections().enter(ctx, []*sectionDoc{d}, nil, nil); err != nil {
			t.Fatal(err)
		}
		m.state.enterDDL(d)
	}
	names := func() (out []string) {
		if err := sectionDocs(m.Docs).Each(func(d *sectionDoc) error { out = append(out, d.name); return nil }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	seen := m.endUnheld(ctx, nil)
	if got := names(); len(got) != 2 {
		t.Fatalf("sections of %v after the first look, which only remembers them", got)
	}
	m.endUnheld(ctx, seen)
	if got := names(); len(got) != 1 || got[0] != "d.held" {
		t.Errorf("sections of %v are left, want that of d.held", got)
	}
}
