package storage

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

var errStopped = mongoerr.New(mongoerr.IndexBuildAborted, "stopped")

func inDB(ns string) bool { return ns == "db.c" }

// A build that is stopped fails with the error that it was stopped for, whether it has begun, loads, or waits for its quorum. Nothing is left of it.
func TestStoppedBuilds(t *testing.T) {
	x := newCutShort(t, "a", "b")
	e := x.members[0].e
	some, err := e.StopBuilds(t.Context(), func(string) bool { return false }, errStopped)
	if some || err != nil {
		t.Errorf("no collection is selected: %v, %v", some, err)
	}
	for range 2 {
		if some, err := e.StopBuilds(t.Context(), inDB, errStopped); !some || err != nil {
			t.Errorf("a build that has begun: %v, %v", some, err)
		}
	}
	_, err = x.first.Run(context.Background())
	code(t, err, mongoerr.IndexBuildAborted)
	waits := make(chan struct{})
	b := e.NewIndexBuild("db.c", x.first.specs, NewUUID()).WithQuorum(x.first.quorum, func(ctx context.Context, _ *IndexBuild) error {
		close(waits)
		<-ctx.Done()
		return ctx.Err()
	})
	if err := b.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.Run(context.Background())
		ended <- err
	}()
	<-waits
	if some, err := e.StopBuilds(t.Context(), inDB, errStopped); !some || err != nil {
		t.Errorf("a build that waits: %v, %v", some, err)
	}
	code(t, <-ended, mongoerr.IndexBuildAborted)
	for _, id := range []*IndexBuild{x.first, b} {
		if index, entry, running := left(t, e, id); index || entry || running {
			t.Errorf("left: the index %v, the entry %v, the build %v", index, entry, running)
		}
	}
	if some, err := e.StopBuilds(t.Context(), inDB, errStopped); some || err != nil {
		t.Errorf("when there are none: %v, %v", some, err)
	}
}

// A build that has found a duplicate key fails with that error, although it is stopped before it has ended. It used to fail with the error that it was stopped for.
func TestStoppedBuildThatHasFailed(t *testing.T) {
	x := newCutShort(t, "a", "b")
	x.first.Stop(errStopped)
	code(t, x.first.end(mongoerr.New(mongoerr.DuplicateKey, "E11000 duplicate key error")), mongoerr.DuplicateKey)
	if index, entry, running := left(t, x.members[0].e, x.first); index || entry || running {
		t.Errorf("left: the index %v, the entry %v, the build %v", index, entry, running)
	}
}

// A build that an earlier primary has left is aborted before, or after, the next one has taken it to begin it again.
func TestStoppedBuildsOfAnEarlierPrimary(t *testing.T) {
	for _, taken := range []bool{false, true} {
		x := newCutShort(t, "a", "b")
		one := x.members[1]
		x.elect(one, 0)
		var b *IndexBuild
		if taken {
			b = x.take(one)
		}
		if some, err := one.e.StopBuilds(t.Context(), inDB, errStopped); !some || err != nil {
			t.Errorf("taken %v: %v, %v", taken, some, err)
		}
		if entry, err := one.e.BuildEntry(x.build); err != nil || entry != nil || one.e.Catalog().Lookup("db.c").Building() != nil {
			t.Errorf("taken %v: left: %v, %v, %v", taken, entry, err, one.e.Catalog().Lookup("db.c").Building())
		}
		if taken {
			code(t, b.Start(context.Background()), mongoerr.IndexBuildAborted)
		} else if found, err := one.e.TakeUnfinishedBuilds(); err != nil || len(found) > 0 {
			t.Errorf("taken afterwards: %v, %v", found, err)
		}
		if len(one.e.Builds()) > 0 {
			t.Error("the build is taken for running")
		}
	}
}
