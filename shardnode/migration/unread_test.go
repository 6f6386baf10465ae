package migration

import (
	"slices"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/storage/catalog"
)

// A migration from this shard whose document a new primary cannot read, as a server of another version has written it, may have been committed: the collection is closed, and whoever asks is
// told that the migration has not ended, until the document goes. It used to be skipped, and clients wrote to a range that had left. What clients write into the collection closes nothing.
func TestUnreadMigrationsCloseTheirCollections(t *testing.T) {
	node := &fakeNode{}
	m := newTestManager(t, node, &fakeSessions{})
	put := func(id byte, rest string) catalog.UUID {
		t.Helper()
		u := catalog.UUID{6: 0x40, 8: 0x80, 15: id}
		fields := []value.Field{value.F("_id", u.Value())}
		for k, v := range value.Elements(valuetest.Doc(t, rest)) {
			fields = append(fields, value.F(k, v))
		}
		if err := m.Docs.Put(t.Context(), coordinatorsNS, value.Doc(fields...)); err != nil {
			t.Fatal(err)
		}
		return u
	}
	later := put(1, `{"nss": "d.later", "donorShardId": "a", "recipientShardId": "b", "ranges": [{"min": {"_id": 1}, "max": {"_id": 2}}]}`)
	put(2, `{"nss": "d.decided", "donorShardId": "a", "decision": "committed"}`)
	put(3, `{"nss": "d.client", "range": 5}`)
	put(4, `{"nss": "d.other", "donorShardId": "z"}`)
	put(5, `{"nss": 5, "donorShardId": "a"}`)
	closed := func(want ...string) {
		t.Helper()
		var got []string
		for _, ns := range []string{"d.later", "d.decided", "d.client", "d.other"} {
			if m.state.migrating(ns) != nil {
				got = append(got, ns)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("closed: %q, want %q", got, want)
		}
	}
	m.state.Registry = cluster.NewRegistry(listOf(), nil, nil)
	service := m.service()
	if !service.Vital {
		t.Error("clients may write if it is not known which ranges may have left")
	}
	if err := service.StepUp(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	closed("d.later")
	if len(node.warned) != 1 {
		t.Errorf("warned: %q", node.warned)
	}
	held := func(want bool) {
		t.Helper()
		if there, err := Undecided(m.Docs, later); err != nil || there != want {
			t.Errorf("undecided: %v %v", there, err)
		}
		if err := m.releaseConcluded(); err != nil {
			t.Fatal(err)
		}
		if m.holdsUnread("") != want || m.holdsUnread("d.later") != want || m.holdsUnread("d.client") {
			t.Error("what is looked for again:", m.holdsUnread(""), m.holdsUnread("d.later"), m.holdsUnread("d.client"))
		}
	}
	held(true)
	closed("d.later")
	if err := m.Docs.Remove(t.Context(), coordinatorsNS, later.Value()); err != nil {
		t.Fatal(err)
	}
	held(false)
	closed()
}
