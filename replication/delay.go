package replication

import (
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// A member with secondaryDelaySecs keeps the log like any other, votes and acknowledges on that basis, and applies
// configuration changes at once. Its engine applies an entry only when the entry is old enough: what raft has
// handed out but is not yet applied stays in the log, and is read from there when it is due. r.applied is what
// raft has handed out; the engine's own AppliedIndex bounds log truncation and is what is reported to the other
// members.

// delayCheck bounds how long the applier sleeps before it looks at the clock again, since the clock may be set.
const delayCheck = 5 * time.Second

// delay returns how old an entry must be before it is applied here.
func (r *Raft) delay() time.Duration {
	if m := r.self(); m != nil {
		return time.Duration(m.DelaySecs) * time.Second
	}
	return 0
}

// engineIndex returns the newest entry that the engine has applied.
func (r *Raft) engineIndex() uint64 {
	at, _ := r.m.AppliedIndex()
	return at
}

// putsOff reports whether entries that raft hands out are applied later: on a delayed member, and on one that was
// delayed until now and still has earlier entries to apply.
func (r *Raft) putsOff() bool { return r.delay() > 0 || r.engineIndex() < r.applied.Load() }

// untilDue returns how long an entry still has to wait. Its timestamp gives the second in which it was written;
// that second must be over.
func (r *Raft) untilDue(e *raftpb.Entry) time.Duration {
	d := r.delay()
	if d == 0 || !hasData(e) {
		return 0
	}
	written := time.Unix(int64(r.m.EntryTime(e.GetData()).Seconds())+1, 0)
	return time.Until(written.Add(d))
}

func hasData(e *raftpb.Entry) bool {
	return e.GetType() == raftpb.EntryNormal && len(e.GetData()) > 0
}

// applyDue applies deferred entries that are due. Only the applier calls it.
func (r *Raft) applyDue() error {
	r.applier.due = nil
	for at, last := r.engineIndex(), r.applied.Load(); at < last && r.ctx.Err() == nil; at = r.engineIndex() {
		entries, err := r.rlog.Entries(at+1, last+1, 1<<20)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if wait := r.untilDue(e); wait > 0 {
				r.applier.due = time.After(min(wait, delayCheck))
				return nil
			}
			if !hasData(e) {
				err = r.m.ApplyNothing(e.GetIndex(), e.GetTerm())
			} else {
				err = r.m.ApplyEntry(e.GetData(), e.GetIndex(), e.GetTerm())
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
