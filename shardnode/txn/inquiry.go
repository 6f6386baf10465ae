package txn

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Votes without a coordinator. A coordinator does not wait until its list of participants is durable: it asks for the votes, and its
// own shard's vote follows the list in the same log, so that no decision precedes either. If its shard loses both, and the router is
// gone too, another participant may be left with a vote that will never be decided. A participant whose vote has been undecided for a
// while asks the coordinator's shard. The coordinator's own shard, should it have its vote and no list, aborts: no shard can have
// decided, and no coordinator can begin while the abort runs as one.
//
// The answer "aborted" is final, because both of these are asked, in this order:
//
//  1. The outcome of the transaction. The request aborts the shard's open part of it, so that a coordinator that begins
//     later, because of a router's late message, gets no vote from its own shard. A running coordinator is waited for.
//  2. Its document, by a linearizable read. While it exists, a coordinator continues with it, here or on the next primary;
//     it is removed when all participants have executed the decision, and this one has not.
//
// Invariant: a vote ends by the coordinator's decision, or is aborted if no shard has decided and none can any more. Hazard: a
// router's message may arrive late and begin a coordinator while a participant asks. The first question makes sure that such a
// coordinator cannot get its own shard's vote, so it can only abort.
//
// Rejected: waiting until the list is durable before votes are requested. Each commit over several shards would wait for one more
// sync, and only for the case of a shard that loses its newest writes. Rejected, too: aborting a vote after a time. The other
// participants may have committed.

const (
	// inquireAfter is the time for which a vote is undecided before its coordinator is asked. Asking does no harm, but has a cost.
	inquireAfter = 3 * time.Second
	inquireEvery = time.Second
)

// undecidedVote is a vote of this node.
type undecidedVote struct {
	lsid        []byte
	number      int64
	coordinator string
}

// undecidedVotes returns the votes that are older than inquireAfter and that no coordinator here is about to decide.
func (m *Coordinators) undecidedVotes() (out []undecidedVote) {
	before := m.Now().Add(-inquireAfter)
	m.EachIdle(func(_ cluster.LogicalSessionID, s *Session) {
		t := s.Txn
		if t == nil || t.State != Prepared || t.coordinator == "" || t.coordinator == m.shard.ID && m.coordinatorOf(s.LSID, t.Number) != nil {
			return
		}
		if time.Unix(int64(t.prepared.TS.Seconds()), 0).Before(before) {
			out = append(out, undecidedVote{s.LSID, t.Number, t.coordinator})
		}
	})
	return out
}

// voted reports whether the own part of a transaction is prepared, by this shard's own request.
func (m *Coordinators) voted(c *coordinator) (prepared bool) {
	m.EachIdle(func(_ cluster.LogicalSessionID, s *Session) {
		if t := s.Txn; t != nil && t.State == Prepared && t.coordinator == m.shard.ID && t.Number == c.number && bytes.Equal(s.LSID, c.lsid) {
			prepared = true
		}
	})
	return prepared
}

// inquiry is the state of a vote that its coordinator was asked about.
type inquiry struct{ busy, logged bool }

// inquire looks for votes without a decision, until ctx ends.
func (m *Coordinators) inquire(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	var mu sync.Mutex
	asked := map[string]inquiry{}
	tick := time.NewTicker(inquireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		mu.Lock()
		if m.prepared.open() == 0 {
			clear(asked)
			mu.Unlock()
			continue
		}
		for _, v := range m.undecidedVotes() {
			key := preparedKey(v.lsid, v.number)
			if asked[key].busy {
				continue
			}
			logged := asked[key].logged
			asked[key] = inquiry{busy: true, logged: logged}
			asking.Go(func() {
				err := m.settleVote(ctx, v)
				if err != nil && !logged && ctx.Err() == nil {
					m.node.Warn("A prepared transaction is undecided, and its coordinator does not know the outcome", err)
				}
				mu.Lock()
				defer mu.Unlock()
				asked[key] = inquiry{logged: logged || err != nil}
			})
		}
		mu.Unlock()
	}
}

// settleVote asks the coordinator's shard about a transaction, and aborts it here if no coordinator can decide it.
func (m *Coordinators) settleVote(ctx context.Context, v undecidedVote) error {
	c := &coordinator{m: m, lsid: v.lsid, number: v.number}
	if v.coordinator == m.shard.ID {
		c.abandoned, c.participants = true, []string{m.shard.ID}
		if c = m.startCoordinator(c); c.abandoned {
			select {
			case <-c.done:
			case <-ctx.Done():
			}
		}
		return nil
	}
	_, err := c.ask(ctx, v.coordinator, msg.Doc(&msg.CoordinateCommit{}, c.inTransaction()...))
	switch mongoerr.CodeOf(err) {
	case mongoerr.NoSuchTransaction, mongoerr.TransactionTooOld:
	case mongoerr.ShardNotFound: // it was removed, and has left no document
		return c.abortHere(ctx)
	default:
		return err // nil: it has committed, and its coordinator notifies all participants
	}
	docs, err := c.documentsOn(ctx, v.coordinator)
	if err != nil || len(docs) > 0 {
		return err
	}
	return c.abortHere(ctx)
}

// documentsOn reads the coordinator's document from the majority of a shard.
func (c *coordinator) documentsOn(ctx context.Context, shard string) ([][]byte, error) {
	s, err := c.m.shard.Registry.Shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	return cluster.FindLinearizable(ctx, s.Peer, cluster.Find{NS: CoordinatorsNS, Filter: value.Doc(value.F("_id", coordinatorKey(c.lsid, c.number)))})
}

// abortHere aborts this node's part of the transaction, as a coordinator's request would.
func (c *coordinator) abortHere(ctx context.Context) error {
	_, err := c.ask(ctx, c.m.shard.ID, msg.Doc(&msg.AbortTransaction{}, c.inTransaction()...))
	if mongoerr.CodeOf(err) == mongoerr.NoSuchTransaction {
		return nil
	}
	return err
}
