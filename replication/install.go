package replication

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func storageTS(v uint64) storage.Timestamp { return storage.Timestamp(v) }

// A received snapshot replaces the member's store and log, which are written separately. The order makes it safe to be killed
// anywhere:
//
//	noteInstall (durable) ──► InstallSnapshot: tables, in one step ──► reset of the log ──► adopt, or begin
//
// Invariant: the log never claims entries that the store does not contain. A crash before the tables are replaced leaves the old
// store and the old log; after it, finishInstall finds the note and a store at the snapshot's index, and does the reset.
//
// Hazards. The applier may still have entries from before the snapshot: it does the engine's part itself, after them, and the appender waits
// for it. Raft may follow another primary by the time all files are here: it is asked first (complete), and what it
// did not take is discarded or offered again. An empty member may have voted before it lost its store: it starts in the sender's term with its
// vote given to the sender, so that it cannot vote twice in that term.
//
// Rejected: resetting the log first. A crash in between would leave a log that begins behind the store's last entry, a gap that
// nothing can fill.

// incoming is a snapshot that this member receives.
type incoming struct {
	mu       sync.Mutex
	from, to uint64 // raft ids
	term     uint64 // of the sender
	number   uint64
	dir      string
	rec      confRecord
	manifest SnapshotManifest
	have     []int64
	file     int // the first file that is not complete
	state    wantState
	taken    bool // raft has requested its installation
	started  time.Time
}

// receiveSnapshot answers a call about a snapshot.
func (r *Raft) receiveSnapshot(ctx context.Context, e *envelope) ([]byte, error) {
	if e.to == 0 || e.from == 0 || r.hasLog() && e.to != r.id.Load() {
		return nil, mongoerr.New(mongoerr.NodeNotFound, "the snapshot is for another member")
	}
	if r.unproven() && !r.roles.forced.diverged.Load() {
		return nil, mongoerr.New(mongoerr.NotYetInitialized, "this member does not know yet whether it needs a snapshot")
	}
	if l := r.lead.Load(); e.report.term < l.term {
		return nil, mongoerr.Newf(mongoerr.NotWritablePrimary, "the snapshot is from a primary of term %d, the term is %d", e.report.term, l.term)
	}
	u := unpacker{b: e.body}
	number := u.uint()
	if u.bad {
		return nil, errEnvelope
	}
	s := &r.snaps
	s.mu.Lock()
	in := s.in
	s.mu.Unlock()
	if e.kind == callOffer {
		var err error
		if in, err = r.offered(in, e, number, &u); err != nil {
			return nil, err
		}
	}
	if in == nil || in.number != number {
		return nil, mongoerr.New(mongoerr.NoSuchKey, "the snapshot was not offered")
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	var err error
	switch {
	case in.state >= wantInstalling:
	case e.kind == callChunk:
		err = in.chunk(r, &u)
	case e.kind == callDone && in.file == len(in.have):
		err = r.complete(in)
	}
	if err != nil {
		return nil, err
	}
	w := snapshotWant{state: in.state}
	if in.state == wantChunk {
		w.file, w.offset = uint64(in.file), uint64(in.have[in.file])
	}
	return w.marshal(), nil
}

// offered starts to receive a snapshot, or continues an interrupted transfer.
func (r *Raft) offered(in *incoming, e *envelope, number uint64, u *unpacker) (*incoming, error) {
	if in != nil && in.number == number && in.from == e.from {
		in.mu.Lock()
		in.term = e.report.term
		usable := in.state != wantInstalled || r.applied.Load() >= in.rec.index
		in.mu.Unlock()
		if usable {
			return in, nil
		}
	}
	n := &incoming{from: e.from, to: e.to, term: e.report.term, number: number, dir: fmt.Sprintf("%s%x", incomingDir, number), state: wantChunk, started: time.Now()}
	snap := &raftpb.Snapshot{}
	if err := proto.Unmarshal(u.bytes(), snap); err != nil {
		return nil, errEnvelope
	}
	n.rec = confOf(snap)
	unpackManifest(u, &n.manifest)
	if u.bad || n.rec.index == 0 || n.rec.index != n.manifest.Index {
		return nil, errEnvelope
	}
	if _, err := ParseConfig(n.rec.doc); err != nil {
		return nil, err
	}
	if in != nil {
		in.mu.Lock()
		busy := in.state == wantInstalling
		in.mu.Unlock()
		if busy {
			return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "another snapshot is being installed")
		}
	}
	files := r.m.Files()
	dirs, err := files.List()
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		if d != n.dir && len(d) > len(incomingDir) && d[:len(incomingDir)] == incomingDir {
			_ = files.Remove(d)
		}
	}
	sizes, err := files.Sizes(n.dir)
	if err != nil {
		return nil, err
	}
	for _, f := range n.manifest.Files {
		n.have = append(n.have, min(sizes[f.Name], f.Size))
	}
	n.skip()
	r.snaps.mu.Lock()
	r.snaps.in = n
	r.snaps.mu.Unlock()
	if !r.hasLog() {
		r.roles.receiving.Store(true)
		r.roleChanged()
	}
	return n, nil
}

// skip moves to the first file that is not complete.
func (in *incoming) skip() {
	for in.file < len(in.have) && in.have[in.file] == in.manifest.Files[in.file].Size {
		in.file++
	}
	if in.file == len(in.have) {
		in.state = wantDone
	}
}

func (in *incoming) chunk(r *Raft, u *unpacker) error {
	file, offset := u.uint(), u.uint()
	if u.bad {
		return errEnvelope
	}
	if in.state != wantChunk || file != uint64(in.file) || offset != uint64(in.have[in.file]) {
		return nil // a repetition; the response says what is wanted
	}
	f := in.manifest.Files[in.file]
	data := u.b
	if int64(len(data)) > f.Size-in.have[in.file] {
		return errEnvelope
	}
	if err := r.m.Files().Append(in.dir, f.Name, data); err != nil {
		return err
	}
	in.have[in.file] += int64(len(data))
	in.skip()
	return nil
}

// complete verifies what was received and starts its installation, without waiting for it.
func (r *Raft) complete(in *incoming) error {
	for i, f := range in.manifest.Files {
		sum, err := sumFile(r.m.Files(), in.dir, f)
		if err != nil {
			return err
		}
		if sum != f.Sum {
			_ = r.m.Files().Remove(in.dir)
			for k := range in.have {
				in.have[k] = 0
			}
			in.file, in.state = 0, wantChunk
			in.skip()
			return mongoerr.Newf(mongoerr.InternalError, "file %d of the snapshot arrived damaged", i)
		}
	}
	in.state = wantInstalling
	msg := &raftpb.Message{Type: raftpb.MsgSnap.Enum(), From: new(in.from), To: new(in.to), Term: new(in.term), Snapshot: in.rec.snapshot()}
	if !r.hasLog() {
		r.applies.push(applyItem{f: func() error { return r.installFirst(in, msg) }})
		return nil
	}
	if r.roles.forced.diverged.Load() {
		r.applies.push(applyItem{f: func() error { return r.installOver(in, msg) }})
		return nil
	}
	r.in.push(input{m: msg}, input{f: func() {
		// If raft had no use for it, raft has not requested its installation by now.
		r.in.push(input{f: func() {
			in.mu.Lock()
			defer in.mu.Unlock()
			switch {
			case in.taken:
			case r.applied.Load() < in.rec.index:
				in.state = wantDone // raft follows another primary now
			default:
				in.state = wantInstalled
				_ = r.m.Files().Remove(in.dir)
			}
		}})
	}})
	return nil
}

// installFirst makes this member, which had no data, a member of the set. Only the applier calls it.
func (r *Raft) installFirst(in *incoming, msg *raftpb.Message) error {
	if r.hasLog() {
		in.finish(r)
		return nil
	}
	if err := r.rlog.noteInstall(in.rec, in.to); err != nil {
		return err
	}
	if err := r.m.InstallSnapshot(r.ctx, in.dir, in.manifest); err != nil {
		return err
	}
	// It cannot know how it voted before it lost its store, if that is what happened. It must not vote in a term
	// that already has its leader.
	hard := &raftpb.HardState{Term: new(msg.GetTerm()), Vote: new(in.from), Commit: new(in.rec.index)}
	if err := r.rlog.reset(in.rec, hard, in.to); err != nil {
		return err
	}
	if err := r.begin(&in.rec, in.to); err != nil {
		return err
	}
	in.finish(r)
	r.in.push(input{m: msg}) // raft responds that it already has this, which is what the leader waits for
	return nil
}

// confirmAgain makes the sender repeat that the snapshot is complete.
func (in *incoming) confirmAgain() {
	in.mu.Lock()
	in.state = wantDone
	in.mu.Unlock()
}

// finish ends the wait of raft or of an empty member.
func (in *incoming) finish(r *Raft) {
	in.mu.Lock()
	in.state = wantInstalled
	in.mu.Unlock()
	_ = r.m.Files().Remove(in.dir)
	r.roles.receiving.Store(false)
	r.roleChanged()
}

// expect is called in the loop when raft asks for a snapshot to be installed.
func (r *Raft) expect(m *raftpb.Message) {
	r.snaps.mu.Lock()
	in := r.snaps.in
	r.snaps.mu.Unlock()
	if in == nil {
		return
	}
	in.mu.Lock()
	if in.rec.index == m.GetSnapshot().GetMetadata().GetIndex() {
		in.taken = true
	}
	in.mu.Unlock()
}

// installStepped installs a snapshot that raft has accepted. The appender calls it; the applier does the engine's
// part, after the entries that it still has to apply.
func (r *Raft) installStepped(m *raftpb.Message) error {
	rec := confOf(m.GetSnapshot())
	r.snaps.mu.Lock()
	in := r.snaps.in
	r.snaps.mu.Unlock()
	if in == nil || in.rec.index != rec.index {
		return fmt.Errorf("the snapshot at entry %d is not here", rec.index)
	}
	r.roles.receiving.Store(true)
	r.roleChanged()
	if err := r.rlog.noteInstall(rec, r.id.Load()); err != nil {
		return err
	}
	if err := r.inApplier(func() error {
		err := r.m.InstallSnapshot(r.ctx, in.dir, in.manifest)
		if err == nil {
			r.applied.Store(rec.index)
		}
		return err
	}); err != nil {
		return err
	}
	hard := hardOf(m)
	if hard == nil {
		hard, _, _ = r.rlog.InitialState()
	}
	hard = proto.Clone(hard).(*raftpb.HardState)
	hard.Commit = new(max(hard.GetCommit(), rec.index))
	if err := r.rlog.reset(rec, hard, r.id.Load()); err != nil {
		return err
	}
	in.finish(r)
	return r.adopt(&rec)
}
