package replication

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// A member's id in raft is its _id in the configuration plus one. The configuration document is carried as the
// context of raft's own configuration changes, so that both take effect on every member at the same entry. New
// voters begin as learners, and are promoted by the primary once they have caught up: until then they count in no
// quorum, so that a set that grows keeps accepting writes.

// confContext is the payload of a configuration change.
type confContext struct {
	doc    []byte // nil: the set's configuration does not change
	forcer uint64 // not 0: this member alone forms the quorum, whatever the quorum was before
}

func (c *confContext) marshal() []byte {
	if c.doc == nil {
		return nil
	}
	return append(binary.BigEndian.AppendUint64(nil, c.forcer), c.doc...)
}

func (c *confContext) unmarshal(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) < 8 {
		return errEnvelope
	}
	c.forcer, c.doc = binary.BigEndian.Uint64(b), slices.Clone(b[8:])
	return nil
}

// firstIndex and firstTerm are where the log of a new set begins: its members receive earlier data as a snapshot.
const (
	firstIndex = 1
	firstTerm  = 1
)

var (
	errInProgress = mongoerr.New(mongoerr.ConfigurationInProgress, "Cannot run replSetReconfig because the node is currently updating its configuration")
	errInitiated  = mongoerr.New(mongoerr.AlreadyInitialized, "already initialized")
)

// Initiate makes this member the first of a set with this configuration, which must be valid. The other members
// receive a snapshot.
func (r *Raft) Initiate(ctx context.Context, c *SetConfig) error {
	self := r.find(c)
	if self == nil {
		return mongoerr.New(mongoerr.NodeNotFound, "No host described in new configuration for replica set "+c.Name+" maps to this node")
	}
	if r.roles.receiving.Load() || r.hasLog() {
		return errInitiated
	}
	r.roles.changing.Lock()
	defer r.roles.changing.Unlock()
	c = c.Clone()
	c.Term = firstTerm + 1
	id := uint64(self.ID) + 1
	rec := confRecord{point{firstIndex, firstTerm}, &raftpb.ConfState{Voters: []uint64{id}}, c.Doc()}
	hard := &raftpb.HardState{Term: new(uint64(firstTerm)), Vote: new(uint64(0)), Commit: new(uint64(firstIndex))}
	late := false
	// The engine's applied index changes only in the applier, and raft's node is created only in the loop.
	err := r.inApplier(func() error {
		if late = r.hasLog(); late {
			return nil
		}
		err := r.rlog.reset(rec, hard, id)
		if err == nil {
			err = r.m.ApplyNothing(firstIndex, firstTerm)
		}
		if err == nil {
			err = r.begin(&rec, id)
		}
		return err
	})
	if err == nil && late {
		err = errInitiated
	}
	if err != nil {
		return err
	}
	if err := r.do(func() { _ = r.loop.rn.Campaign() }); err != nil {
		return err
	}
	for !r.announcedPrimary() {
		if err := r.wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return r.addMissing(ctx)
}

// begin starts raft's node on a newly created log. Only the applier calls it.
func (r *Raft) begin(rec *confRecord, id uint64) error {
	r.applied.Store(rec.index)
	r.id.Store(id)
	r.roles.hasLog.Store(true)
	if err := r.adopt(rec); err != nil {
		return err
	}
	return r.do(r.startNode)
}

// find returns this member's entry in a configuration.
func (r *Raft) find(c *SetConfig) *MemberConfig {
	for i := range c.Members {
		if r.opts.IsSelf(c.Members[i].Host) {
			return &c.Members[i]
		}
	}
	return nil
}

// adopt puts into effect a configuration that is durable here.
func (r *Raft) adopt(rec *confRecord) error {
	cfg, err := ParseConfig(rec.doc)
	if err != nil {
		return err
	}
	old := r.config.Swap(cfg)
	if r.self() != nil {
		r.roles.expelled.Store(false)
	}
	r.setPeers(cfg, rec)
	r.noteGrowth(cfg, rec.state)
	r.in.push(input{f: func() { r.setPace(cfg) }})
	if old == nil || !bytes.Equal(old.Doc(), cfg.Doc()) {
		r.notifyConfig(cfg)
	}
	r.roleChanged()
	r.waits.check(r)
	r.roles.inForce.Store(rec.index)
	return nil
}

func (r *Raft) notifyConfig(cfg *SetConfig) {
	if f := r.opts.OnConfig; f != nil {
		if r.self() == nil || r.roles.expelled.Load() {
			cfg = nil
		}
		r.changes.push(func() { f(cfg) })
	}
}

// expelled handles the news that other members no longer know this member.
func (r *Raft) expelled(e *envelope) {
	cfg, err := ParseConfig(e.config)
	if err != nil || !r.hasLog() || r.find(cfg) != nil {
		return
	}
	epoch, own := epochOf(e.report.term), r.epoch()
	later := epoch > own || epoch == own && (r.superseded() || r.Config() == nil || cfg.Newer(r.Config()))
	if !later || r.roles.expelled.Swap(true) {
		return
	}
	r.log.Warn().Int64("version", cfg.Version).Msg("this member was removed from the replica set")
	r.in.push(input{f: func() { // it may have been elected by members that do not know of its removal yet
		if r.loop.rn != nil {
			r.stepDownIn(r.lead.Load().term)
		}
	}})
	r.notifyConfig(cfg)
	r.roleChanged()
}

// misnamed handles a call to a raft id other than this member's: it was removed, and added again under another
// _id.
func (r *Raft) misnamed(e *envelope) {
	if !r.hasLog() || r.role() != Removed || e.report.role != Primary {
		return
	}
	r.log.Warn().Uint64("from", r.id.Load()).Uint64("to", e.to).Msg("this member has another _id now")
	id := e.to
	r.applies.push(applyItem{f: func() error {
		if r.applier.restarting {
			return nil // the primary will call again
		}
		var rec confRecord
		err := r.restart(func() error {
			rec = r.rlog.conf()
			r.id.Store(id)
			return r.rlog.saveID(id)
		})
		if err != nil {
			return err
		}
		r.roles.expelled.Store(false)
		return r.adopt(&rec)
	}})
}

// restart stops raft's node, changes its persistent state between two writes of the log, and starts it again. Only
// the applier calls it.
//
// The order keeps the old incarnation from writing after the change. The leader abdicates and raft's last messages
// are handed out; the appender finishes them; the engine resigns, so that it proposes nothing for a log that is
// about to be replaced; only then does the persistent state change, between two writes of the log, and raft start
// from it. Work of the old incarnation that is still queued carries its number (applyItem.node), and its responses
// are dropped.
func (r *Raft) restart(change func() error) error {
	r.applier.restarting = true
	defer func() { r.applier.restarting = false }()
	err := r.do(func() {
		if rn := r.loop.rn; rn != nil && rn.BasicStatus().RaftState == raft.StateLeader {
			r.stepDownIn(rn.BasicStatus().GetTerm())
			for rn.HasReady() {
				r.handle(rn.Ready())
			}
			r.publish()
		}
		r.loop.rn = nil
	})
	if err == nil {
		err = r.drainAppender()
	}
	if err == nil {
		err = r.resign()
	}
	if err == nil {
		err = r.inAppender(change)
	}
	if err == nil {
		err = r.do(r.startNode)
	}
	return err
}

// Reconfigure changes the configuration; c carries the new version. Without force the member must be primary, and
// the call returns when the change is committed. With force, a member of a set that has lost its majority declares
// itself and the members of c to be the set.
func (r *Raft) Reconfigure(ctx context.Context, c *SetConfig, force bool) error {
	if !r.hasLog() {
		return errNoConfig
	}
	if r.find(c) == nil {
		return mongoerr.New(mongoerr.NodeNotFound, "No host described in new configuration for replica set "+c.Name+" maps to this node")
	}
	c = c.Clone()
	// Every member has to apply what is in the log, now and after each restart: a configuration that does not
	// parse would stop them all.
	if _, err := ParseConfig(c.Doc()); err != nil {
		return err
	}
	if force {
		return r.force(ctx, c)
	}
	l := r.lead.Load()
	if !r.writable.Load() || l.state != raft.StateLeader {
		return errNotMain
	}
	c.Term = int64(l.term)
	return r.changeConf(ctx, &confContext{doc: c.Doc()}, func(now *raftpb.ConfState) []*raftpb.ConfChangeSingle { return confChanges(now, c) })
}

// changeConf proposes a configuration change, and returns when it is in effect here.
//
// Invariant: one change at a time. Raft does not fail a second change: it turns it into an empty entry, which
// proposeConf detects; a joint configuration, which raft has not left yet, is refused here. The wait is for the
// configuration in force to move on, not for the proposed entry: if the leader is deposed, its successor may or
// may not commit the entry, and the caller gets errDeposed.
//
// Rejected: queueing a second change until the first is in effect. Its steps, and the checks that it has passed, are relative to
// the configuration that the first one replaces: together they could remove a majority that either would have kept.
func (r *Raft) changeConf(ctx context.Context, cc *confContext, changes func(*raftpb.ConfState) []*raftpb.ConfChangeSingle) error {
	var bad error
	before := uint64(0)
	err := r.do(func() {
		rec := r.rlog.conf()
		before = rec.index
		if r.loop.rn == nil || r.loop.rn.BasicStatus().RaftState != raft.StateLeader {
			bad = errNotMain
			return
		}
		if len(rec.state.GetVotersOutgoing()) > 0 {
			bad = errInProgress
			return
		}
		steps := changes(rec.state)
		if len(steps) == 0 {
			// An empty change would mean something else to raft. This one changes nothing: the leader votes already.
			steps = append(steps, change(raftpb.ConfChangeAddNode, r.id.Load()))
		}
		bad = r.proposeConf(&raftpb.ConfChangeV2{Changes: steps, Context: cc.marshal()})
	})
	if err != nil || bad != nil {
		return firstErr(err, bad)
	}
	l := r.lead.Load()
	// The log has the record a moment before Config returns it, and the caller may ask at once.
	for r.roles.inForce.Load() <= before {
		if now := r.lead.Load(); now.term != l.term || now.state != raft.StateLeader {
			return errDeposed
		}
		if err := r.wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func firstErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// proposeConf appends a change. Raft replaces it by an empty entry if another is under way.
func (r *Raft) proposeConf(cc *raftpb.ConfChangeV2) error {
	data, err := proto.Marshal(cc)
	if err != nil {
		return err
	}
	ents := []*raftpb.Entry{{Type: raftpb.EntryConfChangeV2.Enum(), Data: data}}
	err = r.loop.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id.Load()), Entries: ents})
	if err != nil {
		return errNotMain
	}
	r.loop.conf = confAttempt{term: r.loop.rn.BasicStatus().GetTerm()}
	if ents[0].GetType() != raftpb.EntryConfChangeV2 {
		return errInProgress
	}
	return nil
}

func change(t raftpb.ConfChangeType, id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: t.Enum(), NodeId: new(id)}
}

// confChanges returns the steps from raft's current members to those of c: new ones begin as learners.
func confChanges(now *raftpb.ConfState, c *SetConfig) (steps []*raftpb.ConfChangeSingle) {
	voters, learners := now.GetVoters(), now.GetLearners()
	for i := range c.Members {
		m := &c.Members[i]
		id := uint64(m.ID) + 1
		switch {
		case slices.Contains(voters, id) && !m.Voter(), !slices.Contains(voters, id) && !slices.Contains(learners, id):
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

// addMissing makes the other members of the configuration learners.
func (r *Raft) addMissing(ctx context.Context) error {
	c := r.Config()
	if len(c.Members) < 2 {
		return nil
	}
	return r.changeConf(ctx, &confContext{}, func(now *raftpb.ConfState) []*raftpb.ConfChangeSingle { return confChanges(now, c) })
}

// finishChange completes a change that this member began in an earlier process: it created the set, or forced a
// configuration, and the other members are not in the log yet.
func (r *Raft) finishChange() {
	if !r.roles.changing.TryLock() {
		return
	}
	defer r.roles.changing.Unlock()
	rec, cfg := r.rlog.conf(), r.Config()
	var err error
	switch {
	case !r.announcedPrimary() || r.self() == nil:
		return
	case rec.rewritten():
		err = r.spread(r.ctx)
	case slices.ContainsFunc(cfg.Members, func(m MemberConfig) bool { return !rec.has(uint64(m.ID) + 1) }):
		err = r.addMissing(r.ctx)
	default:
		return
	}
	if err != nil { // will be tried again
		r.log.Info().Err(err).Msg("the members of the configuration are not in the log yet")
	}
}

// noteGrowth records whether there are members to promote.
func (r *Raft) noteGrowth(c *SetConfig, now *raftpb.ConfState) {
	growing := false
	for i := range c.Members {
		growing = growing || c.Members[i].Voter() && !slices.Contains(now.GetVoters(), uint64(c.Members[i].ID)+1)
	}
	r.growing.Store(growing)
}

// promotable finds the learners that should vote and have caught up; call it in the loop.
func (r *Raft) promotable() (steps []*raftpb.ConfChangeSingle) {
	rn, cfg := r.loop.rn, r.Config()
	if rn == nil || cfg == nil || rn.BasicStatus().RaftState != raft.StateLeader {
		return nil
	}
	commit := rn.BasicStatus().GetCommit()
	rn.WithProgress(func(id uint64, typ raft.ProgressType, p tracker.Progress) {
		m := cfg.Member(int(id) - 1)
		if typ == raft.ProgressTypeLearner && m != nil && m.Voter() && p.RecentActive && r.follows(id) &&
			p.State == tracker.StateReplicate && p.Match+nearLag >= commit {
			steps = append(steps, change(raftpb.ConfChangeAddNode, id))
		}
	})
	return steps
}

// follows reports whether a member, according to its last report, has a configuration of this member's epoch. In
// the set's first epoch every member has.
func (r *Raft) follows(id uint64) bool {
	epoch := r.epoch()
	if epoch == 0 {
		return true
	}
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	s := r.peers.seen[id]
	return s != nil && epochOf(s.report.term) == epoch && s.report.flags&reportSuperseded == 0
}

// confAttempt is the newest configuration change that this member has proposed.
type confAttempt struct {
	term  uint64
	index uint64 // of its entry, or of the empty one in its place, or of a later one; 0 until that is given to the appender
}

// pending reports whether the attempt has still to be applied.
func (a *confAttempt) pending(st *raft.BasicStatus) bool {
	return a.term != 0 && a.term == st.GetTerm() && (a.index == 0 || st.Applied < a.index)
}

// promote turns learners that have caught up into voters. It is tried again each time something arrives, but not before the last attempt has been
// applied: each one that is refused leaves an empty entry in the log.
func (r *Raft) promote() {
	rec := r.rlog.conf()
	if len(rec.state.GetVotersOutgoing()) > 0 {
		return
	}
	if st := r.loop.rn.BasicStatus(); r.loop.conf.pending(&st) {
		return
	}
	if steps := r.promotable(); len(steps) > 0 {
		if r.proposeConf(&raftpb.ConfChangeV2{Changes: steps}) == nil { // otherwise tried again later
			r.log.Info().Int("members", len(steps)).Msg("members have caught up and vote from now on")
		}
	}
}

// inAppender runs f between two writes of the log.
func (r *Raft) inAppender(f func() error) error {
	done := make(chan error, 1)
	r.appends.push(appendItem{f: func() error {
		done <- f()
		return nil
	}})
	select {
	case err := <-done:
		return err
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}
