package replication

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// peerTable holds the other members: a sender for each, and what each has reported.
type peerTable struct {
	mu   sync.Mutex
	byID map[uint64]*peer
	seen map[uint64]*seen
}

// peer sends to one other member. One call is under way at a time; what queues up meanwhile is sent with the next.
type peer struct {
	id   uint64
	host string
	stop context.CancelFunc
	wake chan struct{}

	mu    sync.Mutex
	queue []*raftpb.Message
	bytes int
	dirty bool // a call is wanted although there is no message
}

// seen has a member's last report, and the times of contact with it.
type seen struct {
	report   report
	at       time.Time // when it was last heard from
	received time.Time // when it last called
	sent     time.Time // when it last answered
	ping     time.Duration
	err      string
}

// Limits for what waits for one member. Anything beyond is dropped: raft sends again what is missing.
const (
	maxQueued      = 4096
	maxQueuedBytes = 192 << 20
)

// setPeers creates the senders for the members of a configuration, and for excluded members that have a vote until
// raft has completed the change.
func (r *Raft) setPeers(c *SetConfig, rec *confRecord) {
	t := &r.peers
	t.mu.Lock()
	defer t.mu.Unlock()
	self := r.id.Load()
	keep := map[uint64]string{}
	if r.self() != nil {
		for i := range c.Members {
			if id := uint64(c.Members[i].ID) + 1; id != self {
				keep[id] = c.Members[i].Host
			}
		}
	} else {
		for i := range c.Members { // removed: others may tell when it is a member again
			keep[uint64(c.Members[i].ID)+1] = c.Members[i].Host
		}
	}
	for id, p := range t.byID {
		if keep[id] == "" && rec.has(id) && id != self {
			keep[id] = p.host
		}
		if keep[id] != p.host {
			p.stop()
			delete(t.byID, id)
		}
	}
	for id := range t.seen {
		if _, ok := keep[id]; !ok {
			delete(t.seen, id)
		}
	}
	for id, host := range keep {
		if t.byID[id] == nil {
			r.startPeer(id, host)
		}
	}
}

// startPeer must be called with the table locked.
func (r *Raft) startPeer(id uint64, host string) {
	ctx, stop := context.WithCancel(r.ctx)
	p := &peer{id: id, host: host, stop: stop, wake: make(chan struct{}, 1)}
	r.peers.byID[id] = p
	r.spawn(func() { r.runPeer(ctx, p) })
}

func (r *Raft) peer(id uint64) *peer {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	return r.peers.byID[id]
}

// send queues a message from raft for another member.
func (r *Raft) send(m *raftpb.Message) {
	switch m.GetType() {
	case raftpb.MsgPreVote, raftpb.MsgVote:
		if !r.mayStand(m) {
			return
		}
	case raftpb.MsgSnap:
		if !r.startSnapshot(m.GetTo()) {
			r.snapshotEnded(m.GetTo(), raft.SnapshotFailure) // it asks again after the next heartbeat
		}
		return
	}
	if p := r.peer(m.GetTo()); p != nil {
		p.add(m)
		p.notify()
	}
}

// add queues a message for the next call.
func (p *peer) add(m *raftpb.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.queue); n > 0 && supersedes(m, p.queue[n-1]) {
		p.bytes += messageSize(m) - messageSize(p.queue[n-1])
		p.queue[n-1] = m
		return
	}
	if len(p.queue) < maxQueued && p.bytes < maxQueuedBytes {
		p.queue = append(p.queue, m)
		p.bytes += messageSize(m)
	}
}

// supersedes reports whether m conveys all that the preceding message conveys: how far the log is committed, or
// has been received.
func supersedes(m, old *raftpb.Message) bool {
	if m.GetType() != old.GetType() || m.GetTerm() != old.GetTerm() {
		return false
	}
	switch m.GetType() {
	case raftpb.MsgApp:
		return len(old.GetEntries()) == 0 && m.GetCommit() >= old.GetCommit()
	case raftpb.MsgAppResp:
		return !m.GetReject() && !old.GetReject() && m.GetIndex() >= old.GetIndex()
	}
	return false
}

func (p *peer) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// call makes the peer call soon, to send its report.
func (p *peer) call() {
	p.mu.Lock()
	p.dirty = true
	p.mu.Unlock()
	p.notify()
}

// take removes from the queue what one call can carry. A message larger than that gets a call of its own, which is
// sent in pieces.
func (p *peer) take() (ms []*raftpb.Message, some bool) { return p.takeUpTo(maxPayload/2, true) }

// takeReply removes from the queue what a response can carry. A response cannot be sent in pieces: what is too
// large for it goes with a call.
func (p *peer) takeReply() []*raftpb.Message {
	ms, _ := p.takeUpTo(maxPayload/2, false)
	return ms
}

func (p *peer) takeUpTo(limit int, oversized bool) (ms []*raftpb.Message, some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	some = p.dirty || len(p.queue) > 0
	p.dirty = false
	n, size := 0, 0
	for n < len(p.queue) && (n == 0 && oversized || size+messageSize(p.queue[n]) < limit) {
		size += messageSize(p.queue[n])
		n++
	}
	ms = p.queue[:n:n]
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	} else {
		p.notify()
	}
	p.bytes -= size
	return ms, some
}

func (p *peer) drop() {
	p.mu.Lock()
	p.queue, p.bytes = nil, 0
	p.mu.Unlock()
}

// callAll makes this member call all others soon.
func (r *Raft) callAll() {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	for _, p := range r.peers.byID {
		p.call()
	}
}

// callTimeout returns how long a call between members may take.
func (r *Raft) callTimeout() time.Duration {
	if c := r.Config(); c != nil && c.Settings.HeartbeatTimeout > 0 {
		return c.Settings.HeartbeatTimeout
	}
	return 10 * time.Second
}

// runPeer calls one member when there is something to send, and periodically.
func (r *Raft) runPeer(ctx context.Context, p *peer) {
	if p.host == "" { // the responses to its own calls carry what is queued for it
		<-ctx.Done()
		return
	}
	beat := time.NewTimer(0)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-beat.C:
			p.mu.Lock()
			p.dirty = true
			p.mu.Unlock()
		}
		ms, some := p.take()
		if !some {
			continue
		}
		beat.Reset(r.beatInterval())
		if err := r.callPeer(ctx, p, ms); err != nil {
			p.drop()
			if id := p.id; ctx.Err() == nil {
				r.in.push(input{f: func() {
					if r.loop.rn != nil {
						r.loop.rn.ReportUnreachable(id)
					}
				}})
			}
			if r.wait(ctx, r.loopPause()) != nil {
				return
			}
		}
	}
}

// beatInterval returns the interval at which members call each other when there is nothing to send.
func (r *Raft) beatInterval() time.Duration {
	d := 2 * time.Second
	if c := r.Config(); c != nil {
		d = min(d, c.Settings.HeartbeatInterval, c.Settings.ElectionTimeout/4)
	}
	return max(d, 10*time.Millisecond)
}

// loopPause returns the pause before a member that could not be reached is called again.
func (r *Raft) loopPause() time.Duration {
	return min(max(tickOf(r.Config())/2, 5*time.Millisecond), 50*time.Millisecond)
}

func (r *Raft) callPeer(ctx context.Context, p *peer, ms []*raftpb.Message) error {
	e := r.envelope(callMessages, p.id)
	e.messages = ms
	r.peers.mu.Lock()
	if s := r.peers.seen[p.id]; s != nil {
		e.body = r.shown(p.id, s.report.flags)
	}
	r.peers.mu.Unlock()
	start := time.Now()
	reply, err := r.exchange(ctx, p.host, e, r.callTimeout())
	now := time.Now()
	r.peers.mu.Lock()
	if r.peers.byID[p.id] == p {
		s := r.peers.of(p.id)
		if err != nil {
			s.err = err.Error()
		} else {
			s.err, s.sent, s.at, s.ping = "", now, now, now.Sub(start)
		}
	}
	r.peers.mu.Unlock()
	if err != nil {
		return err
	}
	r.recordReport(p.id, reply, false)
	return nil
}

// of returns what is known about a member; the table must be locked.
func (t *peerTable) of(id uint64) *seen {
	s := t.seen[id]
	if s == nil {
		s = &seen{report: report{role: Unknown}}
		t.seen[id] = s
	}
	return s
}

// envelope starts a call to a member, or a response.
func (r *Raft) envelope(kind callKind, to uint64) *envelope {
	e := &envelope{kind: kind, set: r.opts.SetName, from: r.id.Load(), to: to, report: r.report()}
	if m := r.self(); m != nil {
		e.host = m.Host
	}
	if c := r.Config(); c != nil {
		e.setID = c.Settings.ID
	}
	return e
}

// checkSet refuses what another set's member sends. Sets that were begun apart may have the same name, and, one after the other, the same addresses:
// terms and entries of the one must not reach the other. A member without a configuration has no identity yet.
func (r *Raft) checkSet(e *envelope, peer string) error {
	if e.set != r.opts.SetName {
		return mongoerr.Newf(mongoerr.InconsistentReplicaSetNames, "replica set name mismatch: this is a member of '%s', %s is of '%s'", r.opts.SetName, peer, e.set)
	}
	var none [12]byte
	if c := r.Config(); c != nil && c.Settings.ID != none && e.setID != none && e.setID != c.Settings.ID {
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "replica set IDs do not match, ours: %x; remote node's: %x", c.Settings.ID, e.setID)
	}
	return nil
}

// exchange makes a call, in pieces if it is too large for one, and reads the response. limit applies to each
// piece.
func (r *Raft) exchange(ctx context.Context, host string, e *envelope, limit time.Duration) (*envelope, error) {
	payload, err := e.marshal()
	if err != nil {
		return nil, err
	}
	if len(payload) > maxPayload {
		if payload, err = r.sendPieces(ctx, host, e, payload, limit); err != nil {
			return nil, err
		}
	}
	b, err := r.sendOnce(ctx, host, payload, limit)
	if err != nil {
		return nil, err
	}
	reply := &envelope{}
	if err := reply.unmarshal(b); err != nil {
		return nil, err
	}
	if err := r.checkSet(reply, host); err != nil {
		return nil, err
	}
	return reply, nil
}

func (r *Raft) sendOnce(ctx context.Context, host string, payload []byte, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return r.opts.Transport.Send(ctx, host, payload)
}

// pieceTries is the number of times that a piece is sent before the whole call fails.
const pieceTries = 3

// sendPieces sends all pieces of a payload but the last, which it returns. Only a piece that does not arrive is
// sent again. Entries this large occur only in logs of versions that did not stage units.
func (r *Raft) sendPieces(ctx context.Context, host string, e *envelope, payload []byte, limit time.Duration) ([]byte, error) {
	number := r.snaps.nextCall()
	for seq := uint64(0); ; seq++ {
		part := payload[:min(len(payload), maxPayload-1024)]
		payload = payload[len(part):]
		left := uint64(0)
		if len(payload) > 0 {
			left = 1
		}
		x := envelope{kind: callPiece, set: e.set, setID: e.setID, from: e.from, to: e.to, host: e.host, report: e.report}
		x.body = binary.AppendUvarint(nil, number)
		x.body = binary.AppendUvarint(x.body, seq)
		x.body = binary.AppendUvarint(x.body, left)
		x.body = append(x.body, part...)
		b, err := x.marshal()
		if err != nil || left == 0 {
			return b, err
		}
		for try := 1; ; try++ {
			_, err := r.sendOnce(ctx, host, b, limit)
			if err == nil {
				break
			}
			if try == pieceTries || r.wait(ctx, r.loopPause()) != nil {
				return nil, err
			}
		}
	}
}

// maxPieces bounds the number of pieces of a payload.
const maxPieces = 256

// assembly is a payload of which pieces are arriving.
type assembly struct {
	mu     sync.Mutex
	from   uint64
	number uint64
	next   uint64
	b      []byte
}

// piece adds a piece; with the last one it returns the whole payload.
func (a *assembly) piece(e *envelope) ([]byte, error) {
	u := unpacker{b: e.body}
	number, seq, left := u.uint(), u.uint(), u.uint()
	a.mu.Lock()
	defer a.mu.Unlock()
	if seq == 0 {
		a.from, a.number, a.next, a.b = e.from, number, 0, nil
	}
	if !u.bad && a.from == e.from && a.number == number && left > 0 && seq+1 == a.next {
		return nil, nil // sent again, because the response was lost
	}
	if u.bad || a.from != e.from || a.number != number || a.next != seq || seq >= maxPieces {
		return nil, errEnvelope
	}
	a.b = append(a.b, u.b...)
	a.next++
	if left > 0 {
		return nil, nil
	}
	b := a.b
	a.b, a.next = nil, 0
	return b, nil
}

// Handle answers a call from another member's Transport. It does not retain payload.
func (r *Raft) Handle(ctx context.Context, payload []byte) ([]byte, error) {
	if r.ctx.Err() != nil {
		return nil, errStopped
	}
	e := &envelope{}
	if err := e.unmarshal(payload); err != nil {
		return nil, err
	}
	if err := r.checkSet(e, "the caller"); err != nil {
		return nil, err
	}
	if e.kind == callPiece {
		whole, err := r.snaps.pieces.piece(e)
		if err != nil {
			return nil, err
		}
		if whole == nil {
			return r.envelope(callMessages, e.from).marshal()
		}
		e = &envelope{}
		if err := e.unmarshal(whole); err != nil || e.kind == callPiece {
			return nil, errEnvelope
		}
		if err := r.checkSet(e, "the caller"); err != nil {
			return nil, err
		}
	}
	reply := r.envelope(callMessages, e.from)
	switch e.kind {
	case callMessages:
	case callOffer, callChunk, callDone:
		var err error
		if reply.body, err = r.receiveSnapshot(ctx, e); err != nil {
			return nil, err
		}
		return reply.marshal()
	default:
		return nil, errEnvelope
	}
	r.meet(e)
	if p := r.peer(e.from); p != nil {
		reply.messages = p.takeReply()
	}
	reply.body = r.shown(e.from, e.report.flags)
	r.answerNonMember(e, reply)
	return reply.marshal()
}

// meet processes a call with messages.
func (r *Raft) meet(e *envelope) {
	rec := r.rlog.conf()
	// A member that is leaving no longer knows its address, and has a vote until raft has completed the change.
	leaving := rec.has(e.from)
	if c := r.Config(); c != nil && e.from != 0 && (e.host != "" || leaving) {
		r.peers.mu.Lock()
		// The caller may be a primary that was made a member after the configuration this one knows. A member that
		// was removed answers it too: it may be a member again, and makes no progress while the primary does not
		// learn what it lacks.
		wanted := leaving || !r.outdated(e) && (r.self() != nil || e.report.role == Primary)
		if r.peers.byID[e.from] == nil && e.from != r.id.Load() && wanted {
			r.startPeer(e.from, e.host)
		}
		r.peers.mu.Unlock()
	}
	r.recordReport(e.from, e, true)
}

// outdated reports whether a caller has an older configuration than this member. A forced configuration's version
// is not comparable with those of other epochs.
func (r *Raft) outdated(e *envelope) bool {
	c := r.Config()
	if c == nil || r.self() == nil {
		return false
	}
	epoch, own := epochOf(e.report.term), r.epoch()
	return epoch < own || epoch == own && (e.report.flags&reportSuperseded != 0 || c.Newer(e.report.config()))
}

// answerNonMember tells a caller that it is not a member.
func (r *Raft) answerNonMember(e, reply *envelope) {
	c, rec := r.Config(), r.rlog.conf()
	if c == nil || r.self() == nil || r.superseded() || e.from != 0 && (c.Member(int(e.from)-1) != nil || rec.has(e.from)) {
		return
	}
	if r.outdated(e) {
		reply.report.flags |= reportStranger
		reply.config = c.Doc()
	}
}

// recordReport records what a member has reported.
func (r *Raft) recordReport(id uint64, e *envelope, called bool) {
	if e.report.flags&reportStranger != 0 {
		r.expelled(e)
	}
	epoch, own := epochOf(e.report.term), r.epoch()
	if epoch > own {
		r.in.push(input{f: func() { r.enter(epoch) }})
	}
	// A member without data does not belong to any epoch yet.
	if e.report.flags&reportStranger != 0 || epoch != own && r.hasLog() && e.report.flags&reportEmpty == 0 {
		return
	}
	now := time.Now()
	r.peers.mu.Lock()
	p := r.peers.byID[id]
	changed := false
	if p != nil {
		s := r.peers.of(id)
		changed = s.report.role != e.report.role || s.report.term != e.report.term || s.report.flags != e.report.flags
		s.report = e.report
		if s.at = now; called {
			s.received = now
			s.err = ""
		}
	}
	r.peers.mu.Unlock()
	if id != 0 && id == r.lead.Load().lead {
		r.roles.eager.Store(e.report.flags&reportEager != 0)
	}
	if len(e.messages) > 0 && e.to == r.id.Load() && e.to != 0 {
		starved := r.opts.Starved != nil && r.opts.Starved()
		ms := slices.DeleteFunc(e.messages, func(m *raftpb.Message) bool {
			return m.GetTo() != e.to || m.GetFrom() != id || starved && hasEntries(m)
		})
		r.in.push(input{f: func() { r.stepAll(ms) }})
	} else if e.to != r.id.Load() && e.to != 0 && called {
		r.misnamed(e)
	}
	if len(e.body) > 0 && r.unproven() {
		body := slices.Clone(e.body)
		r.in.push(input{f: func() { r.compareWith(epoch, body) }})
	}
	if e.report.flags&reportElectable == 0 {
		r.refused(id)
	}
	if e.report.flags&reportEmpty != 0 {
		r.startSnapshot(id) // whatever raft believes that it has
	}
	r.waits.check(r)
	if changed {
		r.roleChanged()
	}
}

func hasEntries(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgSnap || m.GetType() == raftpb.MsgApp && len(m.GetEntries()) > 0
}

// report returns what this member reports about itself.
func (r *Raft) report() report {
	l := r.lead.Load()
	p := report{role: r.role(), term: l.term, lead: l.lead, ts: r.m.Visible(), uptimeMS: uint64(time.Since(r.started).Milliseconds())}
	p.index, p.indexTerm = r.m.AppliedIndex()
	if c := r.Config(); c != nil {
		p.configVersion, p.configTerm = c.Version, c.Term
	}
	if r.electable() {
		p.flags |= reportElectable
	}
	if r.writable.Load() {
		p.flags |= reportWritable
		p.electionTS, p.electionMS = r.election.won()
	}
	if !r.hasLog() || r.roles.forced.diverged.Load() {
		p.flags |= reportEmpty
	}
	if r.superseded() {
		p.flags |= reportSuperseded
	}
	if r.unproven() { // what it has applied does not count
		p.index, p.indexTerm, p.ts = 0, 0, 0
	}
	if r.waits.some() {
		p.flags |= reportEager
	}
	return p
}

// hosts returns the other members' addresses, for tests and messages.
func (r *Raft) hosts() (all []string) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	for _, p := range r.peers.byID {
		all = append(all, p.host)
	}
	slices.Sort(all)
	return all
}
