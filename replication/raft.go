package replication

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Raft is a set of several members, whose order of writes is agreed by raft.
type Raft struct {
	opts Options
}

var _ Set = (*Raft)(nil)

var errUnbuilt = mongoerr.New(mongoerr.NotImplemented, "replica sets of several members are not built yet")

// OpenRaft starts the member with what its store holds. A member that was never in a set waits for Initiate, or for the
// primary of a set of its name to make it a member.
func OpenRaft(o Options) (*Raft, error) { return nil, errUnbuilt }

// HasRaft tells whether a store belongs to a member of a set kept by raft.
func HasRaft(s LocalStore) (bool, error) { return false, nil }

// Close hands over where it can, and stops.
func (r *Raft) Close() error { return nil }

// Handle answers a call of another member's Transport.
func (r *Raft) Handle(ctx context.Context, payload []byte) ([]byte, error) { return nil, errUnbuilt }

// Initiate makes this member the first of a set with this configuration, which is valid. The others get a snapshot.
func (r *Raft) Initiate(ctx context.Context, c *SetConfig) error { return errUnbuilt }

// Reconfigure changes the configuration; c has the version that the new one has. Without force the member is the
// primary, and the call returns when the change is committed. With force, a member of a set that has lost its majority
// declares itself and the members of c to be the set.
func (r *Raft) Reconfigure(ctx context.Context, c *SetConfig, force bool) error { return errUnbuilt }

// StepDown hands over to a caught-up member and does not stand for election for period. It waits up to catchUp for a
// member to catch up; with force it steps down even without one.
func (r *Raft) StepDown(ctx context.Context, period, catchUp time.Duration, force bool) error {
	return errUnbuilt
}

// StepUp stands for election now.
func (r *Raft) StepUp(ctx context.Context) error { return errUnbuilt }

// Freeze keeps the member from standing for election for d; zero ends that.
func (r *Raft) Freeze(d time.Duration) error { return errUnbuilt }

// SetMaintenance puts a secondary into RECOVERING and back.
func (r *Raft) SetMaintenance(on bool) error { return errUnbuilt }

// ReadIndex returns once everything that was committed anywhere before the call is visible here, and this member was
// the primary during the call.
func (r *Raft) ReadIndex(ctx context.Context) error { return errUnbuilt }

// Status is the state of the member and of the set as it sees it.
func (r *Raft) Status() Status { return Status{Self: NoMember, Leader: NoMember} }

// Config is the configuration in force, nil before there is one.
func (r *Raft) Config() *SetConfig { return nil }

// Commit implements Set.
func (r *Raft) Commit(ctx context.Context, u *storage.UnitOfWork, wc WriteConcern) (storage.Timestamp, error) {
	return 0, errUnbuilt
}

// Await implements Set.
func (r *Raft) Await(ctx context.Context, ts storage.Timestamp, wc WriteConcern) error {
	return errUnbuilt
}

// IsPrimary implements Set.
func (r *Raft) IsPrimary() bool { return false }

// Term implements Set.
func (r *Raft) Term() int64 { return 0 }

// MajorityCommitted implements Set.
func (r *Raft) MajorityCommitted() storage.Timestamp { return 0 }
