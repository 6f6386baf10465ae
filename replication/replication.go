package replication

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/storage"
)

// WriteConcern specifies what a write waits for.
type WriteConcern struct {
	W       int    // members; -1 stands for "majority" and is the default
	Tag     string // a custom write concern's name, empty for none
	J       bool   // wait for the journal (majority always does)
	Timeout time.Duration
	// MayDetach says that the caller can handle a *storage.Detached: its commit ends after Timeout, or with its
	// context, even if the set has not decided.
	MayDetach bool
}

// Majority is the default write concern.
var Majority = WriteConcern{W: -1, J: true}

// Durable reports whether wc waits for the journal.
func (wc WriteConcern) Durable() bool { return wc.J || wc.W < 0 }

// BeyondMajority reports whether wc waits for more than a write needs to become visible, or for particular
// members: perhaps for long, while one is down.
func (wc WriteConcern) BeyondMajority() bool { return wc.Tag != "" || wc.W > 1 }

// Set is the replica set that this node is a member of, as writers see it.
type Set interface {
	// Commit orders the unit among all others, writes it and waits for wc. An error with a zero timestamp means
	// that the unit was rolled back, unless it is a *storage.Detached; one with a timestamp concerns the wait only
	// (a writeConcernError).
	Commit(ctx context.Context, u *storage.UnitOfWork, wc WriteConcern) (storage.Timestamp, error)
	// Await waits until everything committed up to ts satisfies wc (getLastError of an earlier write, a no-op
	// write).
	Await(ctx context.Context, ts storage.Timestamp, wc WriteConcern) error
	// IsPrimary reports whether this member accepts writes.
	IsPrimary() bool
	// Term returns the current election term.
	Term() int64
	// MajorityCommitted returns the newest timestamp that a majority holds durably.
	MajorityCommitted() storage.Timestamp
}
