package resharding

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// recipient is a collection that moves to this shard, or is divided differently.
type recipient struct {
	m     *Manager
	doc   *recipientDoc
	stop  context.CancelFunc // nil before the work begins; guarded by m.mu
	ended chan struct{}      // closed when it has stopped

	finishing chan struct{} // closed when nothing more is written to the collection
	once      sync.Once
	load      command.ClientLoad
	turn      sync.Mutex // held while changes are applied: stashes of several donors concern the same documents

	mu struct {
		sync.Mutex
		state   string
		err     *mongoerr.Error
		changed chan struct{} // closed and replaced with each state
		figures figures
		lag     map[string]time.Duration // the lag behind each donor, as the time needed to catch up; no entry if it is not known
	}
}

// figures count what a recipient has done.
type figures struct {
	docs, bytes      int64 // cloned
	fetched, applied int64 // entries of the oplog
	began            time.Time
	cloned, strict   time.Time // when it had cloned all, and caught up with all
	changes          changes
}

// changes count the writes by which a recipient has followed its donors: to the collection, and to stashes.
type changes struct{ inserts, updates, deletes, stashed int64 }

func (c *changes) add(d changes) {
	c.inserts, c.updates, c.deletes, c.stashed = c.inserts+d.inserts, c.updates+d.updates, c.deletes+d.deletes, c.stashed+d.stashed
}

func newRecipient(m *Manager, doc *recipientDoc) *recipient {
	r := &recipient{m: m, doc: doc, ended: make(chan struct{}), finishing: make(chan struct{})}
	r.mu.state, r.mu.err, r.mu.changed, r.mu.lag = doc.state, doc.why, make(chan struct{}), make(map[string]time.Duration)
	r.load.Begin(m.Counts)
	r.mu.figures.began = time.UnixMilli(doc.since)
	return r
}

// runReceive makes the shard a recipient. It may be repeated.
func (m *Manager) runReceive(op *command.Op, req *msg.ReshardReceive, dst []byte) ([]byte, error) {
	id := catalog.UUID(req.ID)
	if err := m.known(op, id); err != nil {
		return dst, err
	}
	m.mu.Lock()
	r, ctx := m.mu.recipients[id], m.mu.ctx
	m.mu.Unlock()
	if ctx.Err() != nil {
		return dst, errSteppedDown
	}
	if r != nil {
		return dst, nil
	}
	doc := &recipientDoc{
		about:  about{id: id, ns: req.NS, uuid: catalog.UUID(req.UUID), temp: req.Temp, since: m.Now().UnixMilli(), command: bytes.Clone(req.Command)},
		donors: slices.Clone(req.Donors), cloneAt: storage.Timestamp(req.CloneAt), docs: req.Docs, bytes: req.Bytes, state: cloning,
	}
	doc, err := begun(op, recipientDocs(m.Docs), m.Docs, doc)
	if err != nil {
		return dst, err
	}
	if err := m.receive(doc); err != nil {
		return dst, err
	}
	return dst, m.confirm(op, &doc.about)
}

func (m *Manager) receive(doc *recipientDoc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.ctx.Err() != nil {
		return errSteppedDown
	}
	if m.mu.recipients[doc.id] == nil {
		m.mu.recipients[doc.id] = newRecipient(m, doc)
		m.start(m.mu.ctx, m.mu.recipients[doc.id])
	}
	return nil
}

func (m *Manager) receiving(id [16]byte) (*recipient, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.mu.recipients[catalog.UUID(id)]; r != nil {
		return r, nil
	}
	if m.mu.ctx.Err() != nil {
		return nil, errSteppedDown
	}
	return nil, noSuch(id)
}

func (m *Manager) runProgress(_ *command.Op, req *msg.ReshardProgress, dst []byte) ([]byte, error) {
	r, err := m.receiving(req.ID)
	if err != nil {
		return dst, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	reply := &msg.ReshardProgressReply{
		State: r.mu.state, Elapsed: m.Now().Sub(r.mu.figures.began).Milliseconds(), Remaining: r.remaining().Milliseconds(), Docs: r.mu.figures.docs, Bytes: r.mu.figures.bytes,
	}
	if r.mu.err != nil {
		reply.Code, reply.Error = int64(r.mu.err.Code), r.mu.err.Message
	}
	return msg.AppendFields(dst, reply), nil
}

// unknown is the remaining time of a recipient that has no estimate.
const unknown = -time.Millisecond

// remaining estimates the time until the recipient has caught up. r.mu must be held.
func (r *recipient) remaining() time.Duration {
	switch r.mu.state {
	case strict:
		return 0
	case cloning:
		f := &r.mu.figures
		if f.docs == 0 || r.doc.docs == 0 {
			return unknown
		}
		left := float64(max(0, r.doc.docs-f.docs)) / float64(f.docs)
		return time.Duration(left * float64(r.m.Now().Sub(f.began)))
	case applying:
		if len(r.mu.lag) < len(r.doc.donors) {
			return unknown
		}
		longest := time.Duration(0)
		for _, l := range r.mu.lag {
			longest = max(longest, l)
		}
		return longest
	}
	return unknown
}

// runFinish returns when the recipient has everything.
func (m *Manager) runFinish(op *command.Op, req *msg.ReshardFinish, dst []byte) ([]byte, error) {
	r, err := m.receiving(req.ID)
	if err != nil {
		return dst, err
	}
	r.once.Do(func() { close(r.finishing) })
	for {
		r.mu.Lock()
		state, err, changed := r.mu.state, r.mu.err, r.mu.changed
		r.mu.Unlock()
		switch {
		case state == strict:
			return dst, nil
		case err != nil:
			return dst, err
		}
		select {
		case <-changed:
		case <-r.ended:
			return dst, errSteppedDown
		case <-op.Done():
			return dst, op.Err()
		}
	}
}

// set records a state, durably if a new primary is to continue from it.
func (r *recipient) set(ctx context.Context, state string, why *mongoerr.Error) error {
	err := recipientDocs(r.m.Docs).Update(ctx, r.doc.ID(), func(d *recipientDoc) { d.state, d.why = state, why })
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.state, r.mu.err = state, why
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
	return nil
}

// work continues from the stored state. A permanent error ends it; the coordinator receives the error when it asks for the state.
func (r *recipient) work(ctx context.Context) {
	err := r.run(ctx)
	for try := 0; err != nil && ctx.Err() == nil; try++ {
		var why *mongoerr.Error
		if !errors.As(err, &why) {
			why = mongoerr.New(mongoerr.InternalError, err.Error())
		}
		if r.set(ctx, failed, why) == nil || cluster.Backoff(ctx, try) != nil {
			return
		}
	}
}

func (r *recipient) run(ctx context.Context) error {
	// No client's request has informed this shard of changes while the collection was elsewhere, and no chunk moves from now on.
	for try := 0; r.doc.state != failed; try++ {
		err := r.m.State.Catalog.Reload(ctx, r.doc.ns)
		if err == nil {
			break
		}
		if !transient(err) || cluster.Backoff(ctx, try) != nil {
			return err
		}
	}
	switch r.doc.state {
	case failed:
		return nil
	case cloning:
		if err := r.hang(ctx, cloning); err != nil {
			return err
		}
		gathered := r.gatherBeside(ctx)
		err := r.each(func(donor string) error { return r.cloneFrom(ctx, donor) })
		gathered()
		if err != nil {
			return err
		}
		if err := r.m.Engine.Sync(ctx); err != nil {
			return err
		}
		r.mu.Lock()
		r.mu.figures.cloned = r.m.Now()
		r.mu.Unlock()
		if err := r.set(ctx, applying, nil); err != nil {
			return err
		}
	}
	if err := r.hang(ctx, applying); err != nil {
		return err
	}
	if err := r.each(func(donor string) error { return r.follow(ctx, donor) }); err != nil {
		return err
	}
	if err := r.checkStashes(); err != nil {
		return err
	}
	if err := r.m.Engine.Sync(ctx); err != nil {
		return err
	}
	if err := r.hang(ctx, strict); err != nil {
		return err
	}
	r.mu.Lock()
	r.mu.figures.strict = r.m.Now()
	r.mu.Unlock()
	return r.set(ctx, strict, nil)
}

// hang stops the recipient at a state while the fail point of that state is on.
func (r *recipient) hang(ctx context.Context, state string) error {
	if r.m.Points == nil {
		return nil
	}
	return r.m.Points.Register("reshardingPauseRecipientAtState").PauseWhere(ctx, func(data []byte) bool {
		at := value.Lookup(data, "state")
		return at.IsMissing() || at.Str() == state
	})
}

// each runs f for all donors at the same time, and returns the first error when all have ended.
func (r *recipient) each(f func(donor string) error) error {
	errs := make(chan error, len(r.doc.donors))
	for _, donor := range r.doc.donors {
		go func() { errs <- f(donor) }()
	}
	var first error
	for range r.doc.donors {
		if err := <-errs; err != nil && first == nil {
			first = err
			if !transient(err) && !errors.Is(err, context.Canceled) {
				r.fail(err) // the others stop at their next message
			}
		}
	}
	return first
}

// fail ends the work on the other donors.
func (r *recipient) fail(err error) {
	var why *mongoerr.Error
	if !errors.As(err, &why) {
		why = mongoerr.New(mongoerr.InternalError, err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.err == nil {
		r.mu.err = why
	}
}

func (r *recipient) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.err != nil {
		return r.mu.err
	}
	return nil
}

// ask sends a donor a message until it replies, or fails with a permanent error.
func (r *recipient) ask(ctx context.Context, donor string, m, reply msg.Message) error {
	for try := 0; ; try++ {
		if err := r.failure(); err != nil {
			return err
		}
		p, err := r.m.peer(ctx, donor)
		var body []byte
		if err == nil {
			body, err = cluster.Run(ctx, p, msg.Doc(m))
		}
		if err == nil {
			return msg.Parse(body, reply)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !transient(err) {
			return err
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return err
		}
	}
}

func (r *recipient) header() msg.Resharding { return msg.Resharding{NS: r.doc.ns, ID: r.doc.id} }

// fetchedAhead is the number of replies of a donor that may wait to be stored.
const fetchedAhead = 2

// cloneFrom fetches a donor's documents as of the clone's time.
func (r *recipient) cloneFrom(ctx context.Context, donor string) error {
	p := &progress{id: r.doc.id, shard: donor}
	stored, ok, err := progressDocs(r.m.Docs, clonesNS).Get(p.ID())
	if err != nil {
		return err
	}
	if ok {
		p = stored
		r.count(p.docs, p.bytes)
	}
	if p.done {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type fetched struct {
		msg.ReshardFetchDocumentsReply
		err error
	}
	replies := make(chan fetched, fetchedAhead)
	go func() {
		defer close(replies)
		for after := p.at; ; {
			var f fetched
			f.err = r.ask(ctx, donor, &msg.ReshardFetchDocuments{Resharding: r.header(), Recipient: r.m.State.ID, At: uint64(r.doc.cloneAt), After: after}, &f.ReshardFetchDocumentsReply)
			select {
			case replies <- f:
			case <-ctx.Done():
				return
			}
			if after = f.Next; f.err != nil || after.IsMissing() {
				return
			}
		}
	}()
	for f := range replies {
		if f.err != nil {
			return f.err
		}
		docs, began := value.Documents(f.Documents), time.Now()
		p.at, p.done = f.Next.Clone(), f.Next.IsMissing()
		p.docs, p.bytes = p.docs+int64(len(docs)), p.bytes+int64(len(f.Documents))
		if err := r.insert(ctx, docs, p); err != nil {
			return err
		}
		r.count(int64(len(docs)), int64(len(f.Documents)))
		// A pause for as long as the batch has kept the store busy: without it the clone is twice as fast, and clients' writes wait
		// seconds for flushes of what it has written. While this shard serves clients the pauses are longer: all clones of a node together then
		// leave most of two processors to them.
		pause := time.Since(began)
		if r.load.Busy(r.m.Counts, r.m.Now()) {
			pause *= command.PauseFactor
		}
		if err := cluster.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *recipient) count(docs, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.figures.docs += docs
	r.mu.figures.bytes += bytes
	r.m.counts.docs.Add(docs)
	r.m.counts.bytes.Add(bytes)
}

// insert stores documents of the clone, with the position that it has reached.
func (r *recipient) insert(ctx context.Context, docs [][]byte, p *progress) error {
	return r.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := r.collection(s)
		if err != nil {
			return err
		}
		u.SetFromMigrate()
		u.KeepCapped()
		if err := progressDocs(r.m.Docs, clonesNS).PutIn(s, u, p); err != nil {
			return err
		}
		u.ReferToVersions()
		_, err = u.InsertMany(c, docs, storage.NoInfo)
		return err
	})
}

// collection returns the temporary collection.
func (r *recipient) collection(s *storage.Snapshot) (*catalog.Collection, error) {
	c := s.Catalog().Lookup(r.doc.temp)
	if c == nil || c.UUID != r.doc.id {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "the temporary collection %s does not exist", r.doc.temp)
	}
	return c, nil
}
