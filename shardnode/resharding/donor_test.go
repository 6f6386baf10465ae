package resharding

import (
	"context"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// keptOplog is the store of a donor's shard, with a small oplog.
type keptOplog struct {
	*testing.T
	m *Manager
	n int64 // documents written
}

func newKeptOplog(t *testing.T) *keptOplog {
	e, err := storage.Open(storage.Options{Memory: true, OplogSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	k := &keptOplog{T: t, m: New(Config{Engine: e, Docs: &statedoc.Docs{Engine: e, Set: replication.NewSingle(e)}, State: &migration.ShardState{ID: "donor"},
		Counts: &command.Opcounters{}, Now: time.Now})}
	err = k.m.Docs.Write(context.Background(), func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// donor returns the donor of a primary that has just stepped up.
func (k *keptOplog) donor(from storage.Timestamp) *donor {
	return newDonor(k.m, &donorDoc{about: about{ns: "d.c"}, minFetch: from, recipients: []string{"a", "b"}})
}

// write writes a megabyte, and truncates the oplog. It returns the time after that.
func (k *keptOplog) write() storage.Timestamp {
	k.Helper()
	pad := value.NewString(string(make([]byte, 100_000)))
	for range 10 {
		k.n++
		err := k.m.Docs.Write(context.Background(), func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			_, err := u.Insert(s.Catalog().Lookup("d.c"), value.Doc(value.F("_id", value.NewInt64(k.n)), value.F("pad", pad)), storage.NoInfo)
			return err
		})
		if err != nil {
			k.Fatal(err)
		}
	}
	if err := k.m.Engine.TruncateOplog(); err != nil {
		k.Fatal(err)
	}
	return k.m.Engine.Visible()
}

func (k *keptOplog) keep(d *donor, recipient string, after storage.Timestamp, want mongoerr.Code) {
	k.Helper()
	if err := d.keep(recipient, after, after, false); mongoerr.CodeOf(err) != want {
		k.Errorf("recipient %s at %v: %v", recipient, after, err)
	}
}

// A donor's next primary keeps what the slower of two recipients needs, whichever asks first, although what both have received is gone. It used to keep the oplog
// from the position of the first one that asked.
func TestNextDonorKeepsTheOplogOfTheSlowest(t *testing.T) {
	k := newKeptOplog(t)
	began := k.m.Engine.Visible()
	d := k.donor(began)
	k.keep(d, "a", began, mongoerr.OK)
	k.keep(d, "b", began, mongoerr.OK)
	k.write()
	slow := k.write()
	k.keep(d, "b", slow, mongoerr.OK)
	k.keep(d, "a", slow, mongoerr.OK)
	k.write()
	if cut, err := k.m.Engine.OplogCut(); err != nil || cut <= began || cut > slow {
		t.Fatalf("cut up to %v, from %v to %v: %v", cut, began, slow, err)
	}
	fast := k.m.Engine.Visible()
	d.release()
	d = k.donor(began)
	defer d.release()
	k.write()
	k.keep(d, "a", fast, mongoerr.OK)
	k.write()
	k.keep(d, "b", slow, mongoerr.OK)
	k.keep(d, "b", fast, mongoerr.OK)
	k.keep(d, "a", k.write(), mongoerr.OK)
	k.write()
	k.keep(d, "b", fast, mongoerr.OK) // each keeps what it needs
}

// A recipient that asks for what is gone gets an error: one that the donor's next primary hears from too late, and one whose own next primary begins at an earlier
// position than its predecessor had reached. Both used to be sent what was left.
func TestRecipientAsksForWhatIsGone(t *testing.T) {
	k := newKeptOplog(t)
	began := k.m.Engine.Visible()
	d := k.donor(began)
	k.keep(d, "a", began, mongoerr.OK)
	k.keep(d, "b", began, mongoerr.OK)
	k.write()
	back := k.m.Engine.Visible()
	k.keep(d, "a", back, mongoerr.OK)
	for range 3 {
		at := k.write()
		k.keep(d, "a", at, mongoerr.OK)
		k.keep(d, "b", at, mongoerr.OK)
		k.write()
	}
	k.keep(d, "a", back, mongoerr.CappedPositionLost)
	k.keep(d, "b", began, mongoerr.CappedPositionLost)
	d.release()
	d = k.donor(began)
	defer d.release()
	at := k.write()
	k.keep(d, "a", at, mongoerr.OK)
	k.keep(d, "b", back, mongoerr.CappedPositionLost)
}

// Recipients store what comes with one reply in one unit of work, which clients' writes wait for: the replies of a donor are small while there are any, and only then.
func TestRepliesAreSmallBesideClients(t *testing.T) {
	k := newKeptOplog(t)
	now := time.Now()
	k.m.Now = func() time.Time { return now }
	k.m.Counts.Inserts.Add(1) // before the resharding
	d := k.donor(0)
	for i, step := range []struct {
		clients func()
		want    int
	}{
		{func() {}, maxCloned}, {func() { k.m.Counts.Updates.Add(1) }, busyCloned}, {func() { now = now.Add(command.BusyFor / 2) }, busyCloned},
		{func() { now = now.Add(command.BusyFor) }, maxCloned},
	} {
		step.clients()
		if got := d.replySize(); got != step.want {
			t.Errorf("step %d: replies of %d bytes, want %d", i, got, step.want)
		}
	}
}

// What a recipient's next primary would ask for is gone, but not what this one asks for: a donor's primary has just stepped up, or the recipient's has, and does not know yet that a majority has
// what its predecessor had stored. Such a recipient used to get an error, which ended the resharding.
func TestRecipientWhoseStoredPositionIsGone(t *testing.T) {
	k := newKeptOplog(t)
	began := k.m.Engine.Visible()
	d := k.donor(began)
	stored := func(recipient string, after, stored storage.Timestamp, want mongoerr.Code) {
		t.Helper()
		if err := d.keep(recipient, after, stored, true); mongoerr.CodeOf(err) != want {
			t.Errorf("recipient %s at %v, stored %v: %v", recipient, after, stored, err)
		}
	}
	back := k.write()
	for range 3 {
		at := k.write()
		stored("a", at, at, mongoerr.OK)
		stored("b", at, at, mongoerr.OK)
		k.write()
	}
	if cut, err := k.m.Engine.OplogCut(); err != nil || cut <= back {
		t.Fatalf("cut up to %v, not %v: %v", cut, back, err)
	}
	at := k.m.Engine.Visible()
	stored("a", at, back, mongoerr.OK) // the recipient's next primary
	stored("a", back, back, mongoerr.CappedPositionLost)
	k.write()
	stored("a", at, at, mongoerr.OK) // was kept
	d.release()
	d = k.donor(began)
	defer d.release()
	stored("b", at, back, mongoerr.OK)
	k.write()
	stored("b", at, at, mongoerr.OK)
}
