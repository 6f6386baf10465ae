package replication

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A forced reconfiguration breaks raft's rules: one member declares itself the only voter. The members that it
// excludes, and those that it keeps but that have not heard of it, may continue with the previous configuration,
// elect a leader, and commit entries at indexes where the forced history has others. The term decides which of the
// two histories is valid.
//
// Each forced reconfiguration begins an epoch: a range of terms that is never used otherwise, above all terms known to
// the member that forces it (nextEpoch). A term therefore identifies the epoch of an entry, a configuration, a message
// or a member, and the rules are:
//
//   - A message counts only among members of one epoch. A member that learns of a later epoch enters it, durably, with its term
//     (Raft.enter), and ignores its former epoch from then on: both leaders and candidates of it.
//   - A member that has entered an epoch with a configuration from before it is superseded. It neither votes nor stands,
//     and is given no vote: the voters of an epoch all have a configuration of it, the first of which has one voter alone.
//     From then on raft's own rules hold.
//   - A superseded member accepts entries only once the epoch's leader has sent it the history of its log and everything
//     committed here is part of that. Otherwise the member has diverged: it discards its data, and takes a snapshot
//     (Raft.installOver).
//   - A member that is not in the configuration is informed of that, and is removed.

// forcedState is a superseded member's relation to the epoch that it has entered.
type forcedState struct {
	agreed   atomic.Uint64 // the epoch whose history contains everything committed here
	diverged atomic.Bool   // the history does not contain it: a snapshot is needed
}

// A term is an epoch and a number within it. An epoch is the number of forced reconfigurations, and the raft id
// of the member that forced it last: if two members do so without knowing of each other, their epochs differ. The
// set's first epoch is 0, whose terms begin with 1.
const (
	termBits = 24
	idBits   = 8
)

// epochOf returns the epoch that a term belongs to.
func epochOf(term uint64) uint64 { return term >> termBits }

// nextEpoch returns the term with which a member begins a new epoch.
func nextEpoch(term, id uint64) uint64 {
	return (epochOf(term)>>idBits+1)<<(idBits+termBits) | (id-1)<<termBits
}

// epoch returns the epoch that this member is in.
func (r *Raft) epoch() uint64 { return epochOf(r.lead.Load().term) }

// superseded reports whether this member has learnt of a forced reconfiguration and still has a configuration from
// before it.
func (r *Raft) superseded() bool { return epochOf(r.rlog.conf().term) < r.epoch() }

// unproven reports whether this member may hold entries that are not in the set's history.
func (r *Raft) unproven() bool {
	epoch := r.epoch()
	return epochOf(r.rlog.conf().term) < epoch && r.roles.forced.agreed.Load() != epoch
}

// force makes this member the only voter, bypassing raft's rules, and then makes the other members of c its
// learners.
func (r *Raft) force(ctx context.Context, c *SetConfig) error {
	c.Term = NoTerm
	self := r.find(c)
	if !self.Electable() {
		return mongoerr.Newf(mongoerr.NodeNotFound, "This node, %s, with _id MemberId(%d) is not electable under the new configuration version %d for replica set %s",
			self.Host, self.ID, c.Version, c.Name)
	}
	if self.ID != int(r.id.Load())-1 {
		return mongoerr.New(mongoerr.NewReplicaSetConfigurationIncompatible, "New and old configurations differ in the _id of this member")
	}
	r.log.Error().Int64("version", c.Version).Strs("members", r.hosts()).
		Msg("FORCED RECONFIGURATION: this member makes itself the majority of its set. Writes that only the lost members have are gone, and members that are not in the new configuration must not be started again with their data")
	r.freezeUntil(time.Time{})
	r.roles.changing.Lock()
	defer r.roles.changing.Unlock()
	if err := r.inApplier(func() error { return r.rewrite(c) }); err != nil {
		return err
	}
	for !r.announcedPrimary() {
		if err := r.wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return r.spread(ctx)
}

// rewrite replaces raft's members by this one alone, in a new epoch. Only the applier calls it.
func (r *Raft) rewrite(c *SetConfig) error {
	var next confRecord
	err := r.restart(func() error {
		hard, _, _ := r.rlog.InitialState()
		term := nextEpoch(hard.GetTerm(), r.id.Load())
		next = confRecord{point{r.rlog.conf().index, term}, &raftpb.ConfState{Voters: []uint64{r.id.Load()}}, c.Doc()}
		r.roles.forced.diverged.Store(false)
		r.roles.expelled.Store(false)
		return r.rlog.saveConf(next, &raftpb.HardState{Term: new(term), Vote: new(uint64(0)), Commit: new(max(hard.GetCommit(), r.applied.Load()))})
	})
	if err != nil {
		return err
	}
	if err := r.adopt(&next); err != nil {
		return err
	}
	return r.do(func() { _ = r.loop.rn.Campaign() })
}

// spread appends the forced configuration to the log, for the other members.
func (r *Raft) spread(ctx context.Context) error {
	rec, id := r.rlog.conf(), r.id.Load()
	return r.changeConf(ctx, &confContext{doc: rec.doc, forcer: id}, func(now *raftpb.ConfState) []*raftpb.ConfChangeSingle {
		return forcedChanges(now, r.Config(), id)
	})
}

// rewritten reports whether a configuration was put into effect by rewrite and is not in the log yet: an epoch's
// first term has no entries, since its first election starts the next term.
func (c *confRecord) rewritten() bool {
	return epochOf(c.term) > 0 && c.term == epochOf(c.term)<<termBits
}

// forcedChanges makes forcer the only voter and the other members of c learners.
func forcedChanges(now *raftpb.ConfState, c *SetConfig, forcer uint64) (steps []*raftpb.ConfChangeSingle) {
	voters, learners := now.GetVoters(), now.GetLearners()
	for i := range c.Members {
		id := uint64(c.Members[i].ID) + 1
		switch {
		case id == forcer && !slices.Contains(voters, id):
			steps = append(steps, change(raftpb.ConfChangeAddNode, id))
		case id != forcer && !slices.Contains(learners, id):
			steps = append(steps, change(raftpb.ConfChangeAddLearnerNode, id))
		}
	}
	for _, id := range slices.Concat(voters, learners) {
		if c.Member(int(id)-1) == nil {
			steps = append(steps, change(raftpb.ConfChangeRemoveNode, id))
		}
	}
	return steps
}

// enter follows another member into an epoch that is later than this member's own; call it in the loop.
func (r *Raft) enter(epoch uint64) {
	rn := r.loop.rn
	if rn == nil || epoch <= epochOf(rn.BasicStatus().GetTerm()) {
		return
	}
	r.log.Warn().Int64("version", r.Config().Version).Msg("another member knows of a forced reconfiguration that is later than this member's configuration")
	// Of the messages that raft accepts from any member and that leave it without a leader, this one has no other
	// effect than the new term.
	id := r.id.Load()
	_ = rn.Step(&raftpb.Message{Type: raftpb.MsgTransferLeader.Enum(), From: new(id), To: new(id), Term: new(epoch << termBits)})
}

// admits reports whether raft may receive a message of another member; call it in the loop.
func (r *Raft) admits(m *raftpb.Message) bool {
	epoch := epochOf(r.loop.rn.BasicStatus().GetTerm())
	if t := m.GetTerm(); t != 0 && epochOf(t) != epoch {
		return false
	}
	if epochOf(r.rlog.conf().term) == epoch {
		return true
	}
	return r.roles.forced.agreed.Load() == epoch && (m.GetType() == raftpb.MsgApp || m.GetType() == raftpb.MsgHeartbeat)
}

// stepAll passes to raft the messages of one call of another member.
func (r *Raft) stepAll(ms []*raftpb.Message) {
	for _, m := range ms {
		if r.loop.rn != nil && r.admits(m) {
			r.step(m)
		}
	}
}

// history describes a log by where its terms begin, up to the committed index. Nothing is known before its first
// point.
type history struct {
	commit uint64
	starts []point
}

// at returns the term of an entry and where that term begins; false if that is not known.
func (h *history) at(index uint64) (term, from uint64, ok bool) {
	n, found := slices.BinarySearchFunc(h.starts, index, func(p point, i uint64) int { return compare(p.index, i) })
	if !found {
		n--
	}
	if n < 0 || index > h.commit {
		return 0, 0, false
	}
	return h.starts[n].term, h.starts[n].index, true
}

func compare(a, b uint64) int {
	if a < b {
		return -1
	} else if a > b {
		return 1
	}
	return 0
}

// common returns the last committed entry that two logs share. The second result is false if one of them does not go back that far.
func (h *history) common(o *history) (uint64, bool) {
	for i := min(h.commit, o.commit); ; {
		a, from, ok := h.at(i)
		b, from2, ok2 := o.at(i)
		if !ok || !ok2 {
			return i, false
		}
		if a == b {
			return i, true
		}
		i = max(from, from2) - 1
	}
}

func (h *history) marshal() []byte {
	var p packer
	p.uint(h.commit)
	p.uint(uint64(len(h.starts)))
	for _, s := range h.starts {
		p.uint(s.index)
		p.uint(s.term)
	}
	return p.b
}

func (h *history) unmarshal(b []byte) bool {
	u := unpacker{b: b}
	h.commit = u.uint()
	for n := u.uint(); n > 0 && !u.bad; n-- {
		h.starts = append(h.starts, point{u.uint(), u.uint()})
	}
	return !u.bad && len(h.starts) > 0 && slices.IsSortedFunc(h.starts, func(a, b point) int { return compare(a.index, b.index) })
}

// shown returns the history of this member's log for a superseded member, nil if this member does not lead its
// epoch.
func (r *Raft) shown(id uint64, flags reportFlags) []byte {
	l := r.lead.Load()
	if c := r.Config(); flags&reportSuperseded == 0 || l.lead == 0 || l.lead != r.id.Load() || r.superseded() || c == nil || c.Member(int(id)-1) == nil {
		return nil
	}
	h := r.rlog.history()
	if term, _, ok := h.at(h.commit); !ok || term != l.term {
		return nil // it may still have to commit entries of earlier terms
	}
	return h.marshal()
}

// compareWith processes the history of the log of the epoch's leader; call it in the loop.
func (r *Raft) compareWith(epoch uint64, body []byte) {
	var theirs history
	if r.loop.rn == nil || !r.unproven() || epoch != r.epoch() || r.roles.forced.diverged.Load() || !theirs.unmarshal(body) {
		return
	}
	own := r.rlog.history()
	own.commit = r.loop.rn.BasicStatus().GetCommit()
	term, _, ok := own.at(own.commit)
	if !ok || own.commit > r.rlog.lastIndex() {
		return // it is being written; the leader will send its history again
	}
	at, known := own.common(&theirs)
	// What was committed in the epoch is part of its history, even if the leader's commit index lags.
	if known && at == own.commit || epochOf(term) == epoch {
		r.log.Info().Uint64("index", at).Msg("everything that this member has committed is in the history of the forced reconfiguration")
		r.roles.forced.agreed.Store(epoch)
		r.roleChanged()
		return
	}
	r.roles.forced.diverged.Store(true)
	e := r.log.Warn().Uint64("last", own.commit)
	if known {
		e.Uint64("common", at).Uint64("entries", own.commit-at).
			Msg("this member has committed entries that a forced reconfiguration has discarded: they are lost. It discards its data and copies everything from the primary")
	} else {
		e.Msg("the log of the forced reconfiguration's primary does not go back to what this member has committed. It discards its data and copies everything from the primary")
	}
	r.callAll()
}

// installOver replaces the data of a member that has diverged by a snapshot. Only the applier calls it.
func (r *Raft) installOver(in *incoming, msg *raftpb.Message) error {
	if !r.roles.forced.diverged.Load() || r.applier.restarting {
		in.confirmAgain()
		return nil
	}
	r.roles.receiving.Store(true)
	r.roleChanged()
	err := r.restart(func() error {
		if err := r.rlog.noteInstall(in.rec, in.to); err != nil {
			return err
		}
		if err := r.m.InstallSnapshot(r.ctx, in.dir, in.manifest); err != nil {
			return err
		}
		r.applied.Store(in.rec.index)
		hard, _, _ := r.rlog.InitialState()
		hard = proto.Clone(hard).(*raftpb.HardState)
		hard.Commit = new(in.rec.index)
		if msg.GetTerm() > hard.GetTerm() {
			hard.Term, hard.Vote = new(msg.GetTerm()), new(uint64(0))
		}
		r.snaps.forget(r)
		r.roles.forced.diverged.Store(false)
		return r.rlog.reset(in.rec, hard, in.to)
	})
	if err != nil {
		return err
	}
	if err := r.adopt(&in.rec); err != nil {
		return err
	}
	in.finish(r)
	r.in.push(input{m: msg}) // raft responds that it already has this, which is what the leader waits for
	return nil
}
