package storage

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// cutShort has a set whose first primary has stepped down before its build of db.c was loaded.
type cutShort struct {
	*testLog
	t     *testing.T
	build catalog.UUID
	first *IndexBuild // of the first primary
}

func newCutShort(t *testing.T, names ...string) *cutShort {
	l := newTestLog(t, 3, Options{})
	t.Cleanup(l.close)
	l.keepCommitting()
	l.elect(l.members[0], 0)
	x := &cutShort{testLog: l, t: t, build: NewUUID()}
	e := l.members[0].e
	c := create(t, e, "db.c", nil)
	for i := range 100 {
		insert(t, e, c, D("_id", i, "a", i, "b", i))
	}
	var specs [][]byte
	for _, name := range names {
		specs = append(specs, spec(name, D(name, 1)))
	}
	x.first = e.NewIndexBuild("db.c", specs, x.build).WithQuorum(value.NewString("votingMembers"), x.wait)
	if err := x.first.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *cutShort) wait(context.Context, *IndexBuild) error { return nil }

// take takes the only unfinished build of a member, which has all that the first primary has stored about it.
func (x *cutShort) take(m *testMember) *IndexBuild {
	x.t.Helper()
	found, err := m.e.TakeUnfinishedBuilds()
	if err != nil || len(found) != 1 || found[0].Build != x.build {
		x.t.Fatalf("member %d finds %v, %v", m.name, found, err)
	}
	c := m.e.Catalog().Lookup("db.c")
	if idx := c.Index("a"); idx == nil || idx.Ready || idx.Build.UUID != x.build {
		x.t.Errorf("the index on member %d: %+v", m.name, idx)
	}
	if entry, err := m.e.BuildEntry(x.build); err != nil || entry == nil {
		x.t.Errorf("the entry on member %d: %v, %v", m.name, entry, err)
	}
	return found[0].Again(m.e, x.wait)
}

// A primary that dies, or steps down, between taking over a build and beginning it again loses nothing of it: nobody finds the build gone, or the names of its
// indexes free.
func TestBuildsAreTakenOverAgainAndAgain(t *testing.T) {
	x := newCutShort(t, "a", "b")
	one, two := x.members[1], x.members[2]
	x.elect(one, 0)
	x.take(one)
	_, err := one.e.StartIndexBuild(context.Background(), "db.c", [][]byte{spec("b", D("b", -1))}, NewUUID())
	code(t, err, mongoerr.IndexAlreadyExists)
	x.elect(two, 0)
	b := x.take(two)
	ended, end := context.WithCancel(context.Background())
	end()
	if err := b.Start(ended); err == nil {
		t.Fatal("a build begins although its service has ended")
	}
	select {
	case <-two.e.LeftBuilds():
	default:
		t.Error("a build that did not begin is left to nobody")
	}
	x.elect(one, 0)
	if err := x.take(one).Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	x.elect(two, 0) // it has begun, and is cut short once more
	b = x.take(two)
	if err := b.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	x.settle()
	x.same()
	for _, m := range x.members {
		for _, name := range []string{"a", "b"} {
			if idx := m.e.Catalog().Lookup("db.c").Index(name); idx == nil || !idx.Ready || indexKeys(t, m.e, "db.c", name) != 100 {
				t.Errorf("%s on member %d: %+v", name, m.name, idx)
			}
		}
		if entry, err := m.e.BuildEntry(x.build); err != nil || entry != nil {
			t.Errorf("an entry is left on member %d: %v, %v", m.name, entry, err)
		}
	}
}

// A build that was cut short ends, and leaves nothing, if one of its indexes, or its collection, is dropped before it begins again.
func TestBuildsThatAreCutShortAndDropped(t *testing.T) {
	for what, drop := range map[string]func(u *UnitOfWork, c *catalog.Collection) error{
		"an index": func(u *UnitOfWork, c *catalog.Collection) error {
			_, err := u.DropIndexes(c, []string{"b"})
			return err
		},
		"the collection": func(u *UnitOfWork, c *catalog.Collection) error { return u.DropCollection(c) },
	} {
		t.Run(what, func(t *testing.T) {
			x := newCutShort(t, "a", "b")
			one := x.members[1]
			x.elect(one, 0)
			b := x.take(one)
			u := one.e.NewUnitOfWork(nil)
			if err := drop(u, one.e.Catalog().Lookup("db.c")); err != nil {
				t.Fatal(err)
			}
			commit(t, one.e, u)
			code(t, b.Start(context.Background()), mongoerr.IndexBuildAborted)
			if c := one.e.Catalog().Lookup("db.c"); c != nil && c.Building() != nil {
				t.Errorf("an index is left: %+v", c.Building())
			}
			if len(one.e.Builds()) > 0 {
				t.Error("the build is taken for running")
			}
			if entry, err := one.e.BuildEntry(x.build); err != nil || entry != nil {
				t.Errorf("an entry is left: %v, %v", entry, err)
			}
		})
	}
}
