package replication

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// A member that is new, or has fallen behind the log, receives a snapshot: the files of the engine's replicated
// tables. The sender offers it; the response names the part that is missing; parts are sent until none is. A
// transfer therefore resumes where it stopped, whatever interrupted it. Several members share one snapshot. All of
// this happens outside the loop, with calls of its own.
//
// Invariant: the log is kept from the snapshot's index on from before the snapshot is written until two minutes after it has arrived
// (pinLog); otherwise the member would install it only to find that the following entries are gone, and begin anew.
//
// Hazard: a member that lost its store may have acknowledged entries, which a majority counted. It must not come back with less: the
// snapshot's index is at least what raft knows it had (awaitSendable), and the configuration at that index has to contain the member.
//
// Rejected: sending the snapshot within raft's own message. It would be in memory as a whole, block the messages behind it, and
// begin anew after each interruption. Rejected, too: one snapshot for each member; a set that comes back after a long
// pause would write its store once for every secondary.

const (
	chunkSize     = 4 << 20
	snapshotFile  = 64 << 20        // size of the files a snapshot consists of
	snapshotKept  = time.Minute     // how long an unused snapshot is kept for a member that comes back for it
	pinAfterwards = 2 * time.Minute // how long the log is kept for a member that received a snapshot
)

// snapshotState has the transfers in progress, in both directions.
type snapshotState struct {
	pieces assembly
	calls  atomic.Uint64
	making chan struct{} // held while a snapshot is being made

	mu     sync.Mutex
	out    map[uint64]*outgoing
	pins   map[uint64]pin
	shared *sharedSnapshot
	in     *incoming
	number uint64
}

// outgoing is a snapshot being sent to a member.
type outgoing struct {
	SnapshotStatus
	cancel context.CancelFunc
}

// pin keeps the log from an index on for a member.
type pin struct {
	index uint64
	until time.Time
}

// sharedSnapshot is a snapshot on disk, with the transfers that use it.
type sharedSnapshot struct {
	number   uint64
	dir      string
	rec      confRecord
	manifest SnapshotManifest
	users    int
	idle     time.Time
}

func (s *snapshotState) init() {
	s.making = make(chan struct{}, 1)
	s.out = map[uint64]*outgoing{}
	s.pins = map[uint64]pin{}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	s.number = binary.BigEndian.Uint64(b[:])
}

func (s *snapshotState) nextCall() uint64 { return s.calls.Add(1) }

const (
	outgoingDir = "raft-out-"
	incomingDir = "raft-in-"
)

// clean removes what an earlier process was sending. A member without a log keeps what it was receiving: the sender may continue.
func (s *snapshotState) clean(r *Raft) {
	dirs, err := r.m.Files().List()
	if err != nil {
		r.log.Warn().Err(err).Msg("looking for old snapshots")
	}
	for _, d := range dirs {
		if strings.HasPrefix(d, outgoingDir) || r.rlog.started() && strings.HasPrefix(d, incomingDir) {
			_ = r.m.Files().Remove(d)
		}
	}
}

// Snapshot implements raft.Storage: the metadata of the snapshot that a member will receive. The actual one is
// made later and may be newer.
func (l *raftLog) Snapshot() (*raftpb.Snapshot, error) {
	rec := l.conf()
	if rec.index == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	at := max(l.appliedIndex(), rec.index)
	term, err := l.Term(at)
	if err != nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	rec.point = point{at, term}
	rec.doc = nil
	return rec.snapshot(), nil
}

// startSnapshot begins to send a snapshot to a member, unless one is already being sent. It returns false if that
// is not possible yet: the member may be in raft's configuration and not in the set's, or this member may not know
// yet that it leads.
func (r *Raft) startSnapshot(id uint64) bool {
	l := r.lead.Load()
	cfg := r.Config()
	if l.state != raft.StateLeader || cfg == nil || cfg.Member(int(id)-1) == nil || r.ctx.Err() != nil {
		return false
	}
	s := &r.snaps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out[id] != nil {
		return true
	}
	ctx, cancel := context.WithCancel(r.ctx)
	o := &outgoing{SnapshotStatus: SnapshotStatus{Member: int(id) - 1, Started: time.Now()}, cancel: cancel}
	s.out[id] = o
	r.spawn(func() {
		defer cancel()
		err := r.sendSnapshot(ctx, id, o, l.term)
		status := raft.SnapshotFinish
		if err != nil {
			status = raft.SnapshotFailure
			r.log.Warn().Err(err).Int("member", o.Member).Msg("sending a snapshot")
			_ = r.wait(ctx, r.loopPause())
		}
		s.mu.Lock()
		delete(s.out, id)
		s.mu.Unlock()
		r.snapshotEnded(id, status)
	})
	return true
}

// snapshotEnded tells raft that the transfer has ended; until then raft sends that member nothing.
func (r *Raft) snapshotEnded(id uint64, status raft.SnapshotStatus) {
	r.in.push(input{f: func() {
		if r.loop.rn != nil {
			r.loop.rn.ReportSnapshot(id, status)
		}
	}})
}

// sendSnapshot makes or shares a snapshot and sends it.
func (r *Raft) sendSnapshot(ctx context.Context, id uint64, o *outgoing, term uint64) error {
	match, err := r.acknowledgedBy(id)
	if err != nil {
		return err
	}
	if err := r.awaitSendable(ctx, id, match, term); err != nil {
		return err
	}
	snap, err := r.acquire(ctx, id, match)
	if err != nil {
		return err
	}
	defer r.release(snap)
	r.pinLog(id, snap.rec.index)
	r.snaps.mu.Lock()
	o.Index = snap.rec.index
	for _, f := range snap.manifest.Files {
		o.Total += f.Size
	}
	r.snaps.mu.Unlock()
	r.log.Info().Int("member", o.Member).Uint64("index", o.Index).Int64("bytes", o.Total).Msg("sending a snapshot")
	s := sending{r: r, id: id, snap: snap, o: o, term: term}
	if err := s.run(ctx); err != nil {
		return err
	}
	r.pinLog(id, snap.rec.index)
	r.log.Info().Int("member", o.Member).Uint64("index", o.Index).Dur("took", time.Since(o.Started)).Msg("a snapshot was sent and installed")
	return nil
}

// awaitSendable waits until a snapshot of this store would be of use to a member: it must include the member's
// addition, which the store may be about to apply, and a member that lost its store must not come back with less
// than it had acknowledged.
func (r *Raft) awaitSendable(ctx context.Context, id, match, term uint64) error {
	for {
		at := r.engineIndex()
		if rec, ok := r.rlog.confAt(at); at >= match && ok && rec.has(id) && epochOf(rec.term) == epochOf(term) {
			return nil
		}
		if l := r.lead.Load(); l.term != term || l.state != raft.StateLeader {
			return errDeposed
		}
		if r.Config().Member(int(id)-1) == nil {
			return errMemberRemoved
		}
		if err := r.wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

var errMemberRemoved = mongoerr.New(mongoerr.NodeNotFound, "the member was removed")

// acknowledgedBy returns the index up to which a member has the log, as far as raft knows here.
func (r *Raft) acknowledgedBy(id uint64) (match uint64, err error) {
	err = r.do(func() {
		if r.loop.rn != nil {
			r.loop.rn.WithProgress(func(i uint64, _ raft.ProgressType, p tracker.Progress) {
				if i == id {
					match = p.Match
				}
			})
		}
	})
	return match, err
}

// acquire returns the existing snapshot if it is new enough and includes the member it is for; otherwise it makes
// one.
func (r *Raft) acquire(ctx context.Context, id, least uint64) (*sharedSnapshot, error) {
	s := &r.snaps
	select {
	case s.making <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.making }()
	first, _ := r.rlog.FirstIndex()
	s.mu.Lock()
	if x := s.shared; x != nil && x.rec.index >= least && x.rec.index+1 >= first && x.rec.has(id) && epochOf(x.rec.term) == r.epoch() {
		x.users++
		s.mu.Unlock()
		return x, nil
	}
	s.number++
	x := &sharedSnapshot{number: s.number, users: 1}
	s.mu.Unlock()
	x.dir = fmt.Sprintf("%s%x", outgoingDir, x.number)
	r.pinLog(0, r.engineIndex())
	defer r.unpinLog(0)
	m, err := r.m.WriteSnapshot(ctx, x.dir, snapshotFile)
	if err == nil {
		var ok bool
		if x.rec, ok = r.rlog.confAt(m.Index); !ok {
			err = mongoerr.New(mongoerr.InternalError, "configuration at the snapshot's index has been compacted away")
		} else if !x.rec.has(id) {
			err = mongoerr.New(mongoerr.NodeNotFound, "the configuration of a snapshot does not have the member that it is for")
		}
	}
	if err != nil {
		_ = r.m.Files().Remove(x.dir)
		return nil, err
	}
	x.manifest = m
	x.rec.point = point{m.Index, m.Term}
	s.mu.Lock()
	old := s.shared
	s.shared = x
	if old != nil && old.users > 0 {
		old = nil // its last user removes it
	}
	s.mu.Unlock()
	if old != nil {
		_ = r.m.Files().Remove(old.dir)
	}
	return x, nil
}

// forget drops the existing snapshot: the data it was made from is no longer this member's.
func (s *snapshotState) forget(r *Raft) {
	s.mu.Lock()
	x := s.shared
	s.shared = nil
	used := x != nil && x.users > 0
	s.mu.Unlock()
	if x != nil && !used {
		_ = r.m.Files().Remove(x.dir)
	}
}

func (r *Raft) release(x *sharedSnapshot) {
	s := &r.snaps
	s.mu.Lock()
	x.users--
	x.idle = time.Now()
	gone := x.users == 0 && s.shared != x
	s.mu.Unlock()
	if gone {
		_ = r.m.Files().Remove(x.dir)
	}
}

// tidy removes a snapshot that no member came back for, or after which the log no longer continues.
func (s *snapshotState) tidy(r *Raft) {
	first, _ := r.rlog.FirstIndex()
	s.mu.Lock()
	x := s.shared
	if x != nil && (x.users > 0 || time.Since(x.idle) < snapshotKept && x.rec.index+1 >= first) {
		x = nil
	}
	if x != nil {
		s.shared = nil
	}
	for id, p := range s.pins {
		if time.Now().After(p.until) {
			delete(s.pins, id)
		}
	}
	s.mu.Unlock()
	if x != nil {
		_ = r.m.Files().Remove(x.dir)
	}
}

func (r *Raft) pinLog(id, index uint64) {
	r.snaps.mu.Lock()
	r.snaps.pins[id] = pin{index, time.Now().Add(pinAfterwards)}
	r.snaps.mu.Unlock()
}

func (r *Raft) unpinLog(id uint64) {
	r.snaps.mu.Lock()
	delete(r.snaps.pins, id)
	r.snaps.mu.Unlock()
}

// caughtUp ends the pin of a member that receives entries again.
func (s *snapshotState) caughtUp(id, match uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pins[id]; ok && s.out[id] == nil && match > p.index {
		delete(s.pins, id)
	}
}

// pinned lowers limit, the index up to which the log may be cut, to what members that are receiving a snapshot need.
func (s *snapshotState) pinned(limit uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.pins {
		if s.out[id] != nil {
			p.until = time.Now().Add(pinAfterwards)
			s.pins[id] = p
		}
		limit = min(limit, p.index)
	}
	return limit
}

// sending is one transfer.
type sending struct {
	r     *Raft
	id    uint64
	snap  *sharedSnapshot
	o     *outgoing
	term  uint64
	fails int
}

var errSnapshotOld = mongoerr.New(mongoerr.SnapshotTooOld, "the member has acknowledged more than the snapshot has")

// maxFails is the number of consecutive calls that may fail before a transfer is abandoned. It can be resumed.
const maxFails = 20

func (s *sending) run(ctx context.Context) error {
	ask := callOffer
	for {
		l := s.r.lead.Load()
		cfg := s.r.Config()
		if l.term != s.term || l.state != raft.StateLeader {
			return errDeposed
		}
		m := cfg.Member(int(s.id) - 1)
		if m == nil {
			return errMemberRemoved
		}
		want, err := s.call(ctx, m.Host, ask)
		if err != nil {
			if s.fails++; s.fails > maxFails || ctx.Err() != nil {
				return err
			}
			s.r.snaps.mu.Lock()
			s.o.LastError = err.Error()
			s.r.snaps.mu.Unlock()
			if err := s.r.wait(ctx, 4*s.r.loopPause()); err != nil {
				return err
			}
			ask = callOffer
			continue
		}
		s.fails = 0
		switch want.state {
		case wantInstalled:
			return nil
		case wantInstalling:
			ask = callOffer
			if err := s.r.wait(ctx, s.r.loopPause()); err != nil {
				return err
			}
		case wantDone:
			// The member may have acknowledged more, and lost its store, since this transfer began.
			if match, err := s.r.acknowledgedBy(s.id); err != nil || match > s.snap.rec.index {
				return firstErr(err, errSnapshotOld)
			}
			ask = callDone
		case wantChunk:
			if ask, err = callOffer, s.chunks(ctx, m.Host, want); err != nil && ctx.Err() != nil {
				return err
			}
		}
	}
}

// chunks sends the missing parts one by one, as fast as the rate allows.
func (s *sending) chunks(ctx context.Context, host string, want snapshotWant) error {
	buf := make([]byte, chunkSize)
	for want.state == wantChunk {
		if s.r.lead.Load().term != s.term {
			return errDeposed
		}
		if want.file >= uint64(len(s.snap.manifest.Files)) {
			return errEnvelope
		}
		f := s.snap.manifest.Files[want.file]
		n := min(int64(len(buf)), f.Size-int64(want.offset))
		if n < 0 {
			return errEnvelope
		}
		if _, err := s.r.m.Files().ReadAt(s.snap.dir, f.Name, buf[:n], int64(want.offset)); err != nil {
			return err
		}
		start := time.Now()
		var err error
		if want, err = s.exchange(ctx, host, callChunk, func(p *packer) {
			p.uint(want.file)
			p.uint(want.offset)
			p.b = append(p.b, buf[:n]...)
		}); err != nil {
			return err
		}
		s.r.snaps.mu.Lock()
		s.o.Sent += n
		s.o.LastError = ""
		s.r.snaps.mu.Unlock()
		if rate := s.r.opts.Params().SnapshotRate; rate > 0 {
			pause := time.Duration(float64(n)/float64(rate)*1e9) - time.Since(start)
			if pause > 0 && s.r.wait(ctx, pause) != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// call offers the snapshot, or reports that it is complete.
func (s *sending) call(ctx context.Context, host string, kind callKind) (snapshotWant, error) {
	return s.exchange(ctx, host, kind, func(p *packer) {
		meta, err := proto.Marshal(s.snap.rec.snapshot())
		if err == nil {
			p.bytes(meta)
			packManifest(p, &s.snap.manifest)
		}
	})
}

func (s *sending) exchange(ctx context.Context, host string, kind callKind, body func(*packer)) (snapshotWant, error) {
	e := s.r.envelope(kind, s.id)
	e.report.term = s.term
	var p packer
	p.uint(s.snap.number)
	body(&p)
	e.body = p.b
	reply, err := s.r.exchange(ctx, host, e, max(s.r.callTimeout(), 30*time.Second))
	if err != nil {
		return snapshotWant{}, err
	}
	u := unpacker{b: reply.body}
	w := snapshotWant{state: wantState(u.uint()), file: u.uint(), offset: u.uint()}
	if u.bad {
		return w, errEnvelope
	}
	return w, nil
}

// snapshotWant is the response to each call about a snapshot.
type snapshotWant struct {
	state  wantState
	file   uint64
	offset uint64
}

type wantState uint64

const (
	wantChunk      wantState = iota + 1 // the part of a file that begins at an offset
	wantDone                            // nothing: the sender may report that it is complete
	wantInstalling                      // wait
	wantInstalled
)

func (w snapshotWant) marshal() []byte {
	b := binary.AppendUvarint(nil, uint64(w.state))
	b = binary.AppendUvarint(b, w.file)
	return binary.AppendUvarint(b, w.offset)
}

func packManifest(p *packer, m *SnapshotManifest) {
	p.uint(m.Index)
	p.uint(m.Term)
	p.uint(uint64(m.TS))
	p.uint(uint64(len(m.Files)))
	for _, f := range m.Files {
		p.bytes([]byte(f.Name))
		p.uint(uint64(f.Size))
		p.uint(f.Sum)
	}
}

func unpackManifest(u *unpacker, m *SnapshotManifest) {
	m.Index, m.Term, m.TS = u.uint(), u.uint(), storageTS(u.uint())
	n := u.uint()
	for i := uint64(0); i < n && !u.bad; i++ {
		f := SnapshotFile{Name: string(u.bytes()), Size: int64(u.uint()), Sum: u.uint()}
		// Names come from another member: they must stay within the snapshot's directory.
		if f.Name == "" || strings.ContainsAny(f.Name, "/\\") || strings.HasPrefix(f.Name, ".") || f.Size < 0 {
			u.bad = true
			return
		}
		m.Files = append(m.Files, f)
	}
}

// sumFile computes the checksum that the manifest has for a file.
func sumFile(files SnapshotFiles, dir string, f SnapshotFile) (uint64, error) {
	h := xxhash.New()
	buf := make([]byte, min(int64(chunkSize), max(f.Size, 1)))
	for at := int64(0); at < f.Size; {
		n := min(int64(len(buf)), f.Size-at)
		if _, err := files.ReadAt(dir, f.Name, buf[:n], at); err != nil {
			return 0, err
		}
		_, _ = h.Write(buf[:n])
		at += n
	}
	return h.Sum64(), nil
}
