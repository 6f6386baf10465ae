package replication

import (
	"context"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Single is a set of one member.
type Single struct {
	engine *storage.Engine
}

// NewSingle returns the set whose only member owns e.
func NewSingle(e *storage.Engine) *Single { return &Single{engine: e} }

var _ Set = (*Single)(nil)

// Commit implements Set. A write concern that one member cannot satisfy is reported after the write, as by the real server.
func (s *Single) Commit(ctx context.Context, u *storage.UnitOfWork, wc WriteConcern) (storage.Timestamp, error) {
	ts, err := s.engine.Commit(ctx, u, wc.Durable())
	if err != nil {
		return ts, err
	}
	return ts, satisfiable(wc)
}

// Await implements Set.
func (s *Single) Await(ctx context.Context, ts storage.Timestamp, wc WriteConcern) error {
	if err := satisfiable(wc); err != nil || !wc.Durable() || s.engine.Durable() >= ts {
		return err
	}
	return s.engine.Sync(ctx)
}

// satisfiable returns an error if one member cannot satisfy wc.
func satisfiable(wc WriteConcern) error {
	switch {
	case wc.Tag != "":
		return mongoerr.Newf(mongoerr.UnknownReplWriteConcern,
			"No write concern mode named '%s' found in replica set configuration", wc.Tag)
	case wc.W > 1:
		return mongoerr.New(mongoerr.UnsatisfiableWriteConcern, "Not enough data-bearing nodes")
	}
	return nil
}

// IsPrimary implements Set.
func (s *Single) IsPrimary() bool { return true }

// Term implements Set.
func (s *Single) Term() int64 { return s.engine.Term() }

// MajorityCommitted implements Set.
func (s *Single) MajorityCommitted() storage.Timestamp { return s.engine.Durable() }
