package replication

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/storage"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// housekeeping is the state of periodic work. It belongs to the goroutine that runs it.
type housekeeping struct {
	newest    uint64    // visible timestamp, when it last changed
	changed   time.Time // when that was
	better    time.Time // since when a member of higher priority could take over
	betterTop float64
}

// runHousekeeping does the periodic work: promotions, takeovers, the no-op writer, flow control, truncation.
func (r *Raft) runHousekeeping() {
	h := &housekeeping{changed: time.Now()}
	for r.wait(r.ctx, r.houseInterval()) == nil {
		r.reportApplied()
		r.snaps.tidy(r)
		r.truncate()
		l := r.lead.Load()
		leads := l.state == raft.StateLeader
		r.flow.sample(r.opts.Params(), leads, r.majorityLag(), time.Now())
		if !leads {
			h.better = time.Time{}
			continue
		}
		r.finishChange()
		r.takeover(h, l)
		r.idle(h)
	}
}

func (r *Raft) houseInterval() time.Duration {
	return min(max(r.electionTimeout()/20, 5*time.Millisecond), 250*time.Millisecond)
}

// takeover transfers leadership to a caught-up member of higher priority once it could have taken over for a
// while; a leader that must not be primary transfers leadership as soon as it can.
func (r *Raft) takeover(h *housekeeping, l *lead) {
	self := r.self()
	if self == nil {
		return
	}
	if r.primary.Load() != l.term && !r.mayBecomePrimary() {
		_, _ = r.handOver(r.ctx, l.term, 0, time.Time{})
		return
	}
	if r.primary.Load() != l.term {
		r.applies.push(applyItem{f: func() error { return r.ascendLate(l.term) }})
		return
	}
	top := 0.0
	c := r.Config()
	for i := range c.Members {
		m := &c.Members[i]
		if m.Electable() && m.Priority > self.Priority && m.Priority > top && r.fresh(uint64(m.ID)+1) {
			top = m.Priority
		}
	}
	now := time.Now()
	if top == 0 || top != h.betterTop || h.better.IsZero() {
		h.better, h.betterTop = now, top
		return
	}
	if now.Sub(h.better) < r.electionTimeout()/2 {
		return
	}
	h.better = time.Time{}
	r.election.mu.Lock()
	r.election.TakeoverCalled++
	r.election.mu.Unlock()
	r.log.Info().Float64("priority", top).Msg("handing over to a member of higher priority")
	if done, err := r.handOver(r.ctx, l.term, top, time.Time{}); done && err == nil {
		r.election.mu.Lock()
		r.election.TakeoverWon++
		r.election.mu.Unlock()
	}
}

// fresh reports whether a member is electable and hardly behind.
func (r *Raft) fresh(id uint64) bool {
	if !r.willing(id) {
		return false
	}
	r.peers.mu.Lock()
	ts := r.peers.seen[id].report.ts
	r.peers.mu.Unlock()
	behind := time.Duration(r.m.Visible().Seconds()-ts.Seconds()) * time.Second
	return ts >= r.m.Visible() || behind <= r.opts.Params().PriorityLag
}

// ascendLate makes a member primary that has led for a while without being electable.
func (r *Raft) ascendLate(term uint64) error {
	at, err := r.rlog.Term(r.applied.Load())
	if err != nil || at != term || r.putsOff() {
		return nil // its own first entry is not applied yet
	}
	return r.ascend(term)
}

// idle writes a no-op if nothing was written for NoopInterval, so that the cluster's time advances on all members.
func (r *Raft) idle(h *housekeeping) {
	now := time.Now()
	if v := uint64(r.m.Visible()); v != h.newest {
		h.newest, h.changed = v, now
		return
	}
	every := r.opts.Params().NoopInterval
	if every <= 0 || now.Sub(h.changed) < every || !r.writable.Load() {
		return
	}
	h.changed = now
	ctx, cancel := context.WithTimeout(r.ctx, every)
	defer cancel()
	if err := r.m.WriteNoop(ctx, "periodic noop"); err != nil && r.ctx.Err() == nil {
		r.log.Debug().Err(err).Msg("writing a periodic no-op")
	}
}

// majorityLag returns how far the majority's reads are behind the primary's.
func (r *Raft) majorityLag() time.Duration {
	c := r.Config()
	if c == nil {
		return 0
	}
	mine := r.m.Visible()
	self := int(r.id.Load()) - 1
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	ts := MajorityOf(c, func(id int) uint64 {
		if s := r.peers.seen[uint64(id)+1]; id != self && s != nil {
			return min(uint64(s.report.ts)+uint64(storage.TimestampOf(c.delayOf(id), 0)), uint64(mine))
		} else if id != self {
			return 0
		}
		return uint64(mine)
	})
	if ts == 0 || ts >= uint64(mine) {
		return 0
	}
	return time.Duration(mine.Seconds()-storageTS(ts).Seconds()) * time.Second
}

// lowLog is the size to which the log is truncated while disk space is low. Members that are further behind take a snapshot.
const lowLog = 16 << 20

// truncate cuts the log to its size. Entries that followers still need are kept for a while longer.
func (r *Raft) truncate() {
	size, limit := r.rlog.size(), r.opts.LogSize
	if r.m.DiskLow() {
		limit = min(limit, lowLog)
	}
	if size <= limit {
		return
	}
	to := min(r.rlog.overSize(limit*3/4), r.engineIndex())
	_ = r.do(func() {
		rn := r.loop.rn
		if rn == nil || rn.BasicStatus().RaftState != raft.StateLeader {
			return
		}
		rn.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
			if !p.RecentActive || p.State != tracker.StateReplicate {
				return
			}
			r.snaps.caughtUp(id, p.Match)
			if size < 2*limit {
				to = min(to, p.Match)
			}
		})
	})
	to = r.snaps.pinned(to)
	if first, _ := r.rlog.FirstIndex(); to < first {
		return
	}
	if err := r.inAppender(func() error { return r.rlog.compact(to) }); err != nil && r.ctx.Err() == nil {
		r.fail(err)
	}
}
