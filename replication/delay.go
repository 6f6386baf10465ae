package replication

import (
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// A member with secondaryDelaySecs has the log like any other, votes and acknowledges by it, and puts changes of the
// configuration in force at once. Its engine applies an entry only when that is old enough: what raft has handed out and
// is not applied yet stays in the log, and is read from there when its time has come. r.applied is what raft has handed
// out; the engine's own AppliedIndex is what the log may be cut behind, and what is reported to the others.

// delayCheck bounds how long the applier sleeps between looks at the clock, which somebody may set.
const delayCheck = 5 * time.Second

// delay returns how old an entry has to be to be applied here.
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

// putsOff reports whether an entry that raft hands out is applied later: on a delayed member, and on one that was
// until now and has entries before it to apply.
func (r *Raft) putsOff() bool { return r.delay() > 0 || r.engineIndex() < r.applied.Load() }

// untilDue returns how long an entry has to wait yet. Its timestamp says in which second it was written; that has
// to be over.
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

// applyDue applies what was put off and is due. The applier calls it.
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
