package migration

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/tables"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ShardState is a shard's view of the cluster: its id, the placement of databases and collections as
// last read from the config server, and the critical sections under way.
type ShardState struct {
	ID        string
	ConfigDB  string // the config server's connection string when the process started or joined
	ClusterID [12]byte
	Catalog   *cluster.Catalog
	Registry  *cluster.Registry
	Clock     *cluster.VectorClock
	moved     chan struct{} // signals that the config server's members may have changed
	readers   readers
	listed    atomic.Pointer[listed]

	tables *tables.Tables  // on disk; nil before the node takes part
	params *cluster.Params // likewise

	splitter *splitter // nil before the node takes part
	counts   counts

	reshardings sync.Map // how often DDL is refused of each collection that this shard donates to a resharding, by namespace; stored under mu

	// onLeftOver ends, durably, a DDL's section whose owner has gone; nil before the node takes part.
	onLeftOver atomic.Pointer[func(context.Context, *sectionDoc) error]

	mu struct {
		sync.Mutex
		critical map[string]*criticalSection // of migrations, by namespace
		ddl      map[string]*criticalSection // of DDL, by namespace or database name: those that are stored
		blocked  map[string]*Blocked         // what the sections of donors of reshardings block, by namespace
		loads    int                         // how often the sections of DDL were loaded
	}
	// sections is the number of sections in mu. Every request looks for a section several times, and there is hardly ever one.
	sections atomic.Int64
	// sectionsUntil is a time at which all sections had ended that are not in mu.
	sectionsUntil atomic.Uint64
}

// count brings sections up to date; mu must be held.
func (s *ShardState) count() { s.sections.Store(int64(len(s.mu.critical) + len(s.mu.ddl))) }

// criticalSection blocks operations while a migration (or a DDL) commits. Writes wait from its beginning, reads from
// the moment when the commit is sent.
type criticalSection struct {
	reads bool
	ended chan struct{}
	why   string

	// For a DDL: one operation at a time asks the coordinator whether it still holds the section.
	ddl    catalog.UUID
	owner  string
	all    bool // a database's holds up its sharded collections, too
	asking sync.Mutex
	// confirmed means that the owner has said, after the section was entered, that the run goes on. Guarded by ShardState.mu.
	confirmed bool
	// met counts what meets the section; nil for one that nobody asks about.
	met atomic.Pointer[Blocked]
}

// NewShardState makes the state of a shard.
func NewShardState(id string, c *cluster.Catalog, r *cluster.Registry, clock *cluster.VectorClock) *ShardState {
	s := &ShardState{ID: id, Catalog: c, Registry: r, Clock: clock, moved: make(chan struct{}, 1)}
	c.Clock = clock
	s.endedBy(storage.MaxTimestamp) // until they have been loaded
	s.mu.critical, s.mu.ddl = make(map[string]*criticalSection), make(map[string]*criticalSection)
	return s
}

// EnterCritical begins a critical section of a namespace or database for writes.
func (s *ShardState) EnterCritical(name, why string) (*criticalSection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range []*criticalSection{s.mu.critical[name], s.mu.ddl[name]} {
		if c != nil {
			return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s is in a critical section: %s", name, c.why)
		}
	}
	c := &criticalSection{ended: make(chan struct{}), why: why}
	s.mu.critical[name] = c
	s.count()
	return c, nil
}

// TakeCritical begins a critical section for reads and writes, replacing another migration's: operations that waited for
// that one find this one.
func (s *ShardState) TakeCritical(name, why string) *criticalSection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.mu.critical[name]; c != nil {
		close(c.ended)
	}
	c := &criticalSection{reads: true, ended: make(chan struct{}), why: why}
	s.mu.critical[name] = c
	s.count()
	return c
}

// Resharding has DDL of a collection refused while the shard donates it to a resharding: until it has been called without on as often as with it.
func (s *ShardState) Resharding(ns string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 1
	if before, ok := s.reshardings.Load(ns); ok {
		n += before.(int)
	}
	if !on {
		n -= 2
	}
	if n <= 0 {
		s.reshardings.Delete(ns)
		return
	}
	s.reshardings.Store(ns, n)
}

// leftOverAfter is the interval at which an operation that waits for a DDL's critical section checks whether the section
// is still held.
const leftOverAfter = 200 * time.Millisecond

// endLeftOver ends a DDL's critical section whose owner has gone: the message that began it arrived after
// the end of its DDL, or the one that ends it was lost.
func (s *ShardState) endLeftOver(ctx context.Context, name string, c *criticalSection) {
	end := s.onLeftOver.Load()
	if end == nil || !c.asking.TryLock() {
		return
	}
	defer c.asking.Unlock()
	if held, err := s.held(ctx, c.owner, c.ddl); err != nil || held {
		return // operations that still wait will ask again
	}
	_ = (*end)(ctx, &sectionDoc{name: name, why: c.why, owner: c.owner, id: c.ddl, at: math.MaxUint64})
}

// endLeft ends the DDL's critical section of a collection, or of its database, unless a run holds it, for what would be refused by it and does not wait. It is called
// without locks: the owner may be frozen.
func (s *ShardState) endLeft(ctx context.Context, ns string) {
	bounded, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	held := s.ddlSections()
	for _, name := range []string{ns, catalog.DBOf(ns)} {
		if c := held[name]; c != nil {
			s.endLeftOver(bounded, name, c)
		}
	}
}

// Removed is called on a primary once a collection's entry in the catalog has been removed without a critical section of its name: its routing table is removed from memory and disk.
func (s *ShardState) Removed(ns string) { s.forget(ns) }

// forget makes the next use of a collection, or of a database and its collections, ask the config server.
func (s *ShardState) forget(name string) {
	if s.tables != nil {
		defer s.tables.Changed(name)
	}
	if catalog.CollOf(name) == "" {
		s.Catalog.PurgeDatabase(name)
		return
	}
	s.Catalog.InvalidateCollection(name)
}

// EndMigrations ends the critical sections of migrations: the node is no longer primary, and another node may be
// asked to end them. Those of DDL are stored, and persist on every member.
func (s *ShardState) EndMigrations() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.mu.critical {
		close(c.ended)
	}
	clear(s.mu.critical)
	s.count()
}

// BlockReads makes a critical section block reads, too.
func (s *ShardState) BlockReads(c *criticalSection) {
	s.mu.Lock()
	c.reads = true
	s.mu.Unlock()
}

// LeaveCritical ends a critical section.
func (s *ShardState) LeaveCritical(name string, c *criticalSection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.critical[name] == c {
		delete(s.mu.critical, name)
		s.count()
		close(c.ended)
	}
}

func (s *ShardState) section(name string, write bool) *criticalSection {
	if s.sections.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range []*criticalSection{s.mu.ddl[name], s.mu.critical[name]} {
		if c != nil && (write || c.reads) {
			return c
		}
	}
	return nil
}

// CheckVersion implements Sharding: the request's database version, then its shard version.
//
// For a write it is called again under the collection's intent lock, and the verdict then holds until the lock is
// released: a critical section begins only under the exclusive lock. If the sender's version is newer than this
// shard's, or incomparable, the shard refreshes before it refuses. Otherwise a shard that missed a change would
// make the sender refresh a table that is correct already, and both would repeat that forever. A sender with an
// older version is refused at once; it has to refresh.
//
// Hazard: an operation that meets a critical section must release its locks before it waits (criticalError, WaitCritical). A
// donor that requests the exclusive lock waits for the holders of intent locks, and they would wait for its section.
//
// Rejected: answering StaleConfig at once from within a critical section. The sender refreshes, finds the placement
// unchanged, and repeats that until the section ends, against the config server that the commit is waiting for. Rejected,
// too: checking once, before the locks. A section that begins between the check and the write would not stop it, and what it writes
// would be on a shard that no longer owns it.
func (s *ShardState) CheckVersion(op *command.Op, ns string) error {
	if err := s.checkListed(op, ns); err != nil {
		return err
	}
	if op.Req.DatabaseVer != nil {
		if err := s.checkDatabase(op, catalog.DBOf(ns)); err != nil {
			return err
		}
	}
	if op.Req.ShardVersion == nil {
		return nil
	}
	received, err := cluster.ParseChunkVersion(value.NewDocument(op.Req.ShardVersion))
	if err != nil {
		return err
	}
	return s.checkShard(op, ns, received, writes(op))
}

// OwnWrite returns the versions of a write that this shard makes by itself, such as the deletion of expired documents. ok is false if the collection is another shard's, or may be soon: it is in a
// critical section, or not in the catalog, and its database has another primary shard.
//
// Hazard: while a movePrimary copies a database, both shards have its collections, and each has changes that the other does not: the new primary shard of what it has not been sent yet, the former
// one of what comes after the end of its writes. A write by itself would be an event for change streams that is not true, or comes twice.
func (s *ShardState) OwnWrite(ctx context.Context, ns string) (versions []value.Field, ok bool) {
	db := catalog.DBOf(ns)
	versions = []value.Field{value.F("shardVersion", value.NewDocument(cluster.Ignored.Doc()))}
	if cluster.FixedDatabase(db) {
		return versions, true
	}
	info, err := s.Catalog.Collection(ctx, ns)
	if err != nil || s.section(ns, true) != nil {
		return nil, false
	}
	if c := s.section(db, true); c != nil && (c.all || info.Map == nil) {
		return nil, false
	}
	if info.Map != nil {
		return versions, true
	}
	of, err := s.Catalog.Database(ctx, db)
	if err != nil || of.Primary != s.ID {
		return nil, false
	}
	return append(versions, value.F("databaseVersion", value.NewDocument(of.Version.Doc()))), true
}

// writes reports whether a request changes what it names.
func writes(op *command.Op) bool {
	return op.Req.Spec.Kind == command.Write || op.Req.Spec.Kind == command.DDL
}

// CheckTarget implements Sharding. The version of the target's database is read anew, since the request carries that of the source's.
func (s *ShardState) CheckTarget(op *command.Op, ns string) error {
	db := catalog.DBOf(ns)
	if c := s.section(db, true); c != nil {
		return &criticalError{c, cluster.StaleDbVersion(db, cluster.DatabaseVersion{}, nil), s, db}
	}
	s.Catalog.InvalidateDatabase(db)
	info, err := s.Catalog.Database(op, db)
	switch {
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		return cluster.StaleDbVersion(db, cluster.DatabaseVersion{}, nil)
	case err != nil:
		return err
	case info.Primary != s.ID && !info.Version.IsFixed():
		return cluster.StaleDbVersion(db, cluster.DatabaseVersion{}, &info.Version)
	}
	return s.checkShard(op, ns, cluster.Unsharded, true)
}

// CheckUntracked implements Sharding: it is CheckVersion as if the request had come with the version of a collection without an entry in
// the catalog.
func (s *ShardState) CheckUntracked(op *command.Op, ns string) error {
	return s.checkShard(op, ns, cluster.Unsharded, writes(op))
}

// ErrResharding returns the error of DDL that a resharding of the collection does not allow.
func ErrResharding(ns string) error {
	return mongoerr.Newf(mongoerr.ReshardCollectionInProgress, "reshardCollection is in progress for namespace %s", ns)
}

// checkShard compares a shard version with this shard's.
func (s *ShardState) checkShard(op *command.Op, ns string, received cluster.ChunkVersion, write bool) (err error) {
	if _, busy := s.reshardings.Load(ns); busy && op.Req.Spec.Kind == command.DDL {
		return ErrResharding(ns)
	}
	c, of := s.section(ns, write), ns
	if c == nil {
		of = catalog.DBOf(ns) // under this name it is ended, if it was left behind
		if c = s.section(of, write); c != nil && !c.all {
			c = nil
		}
	}
	if c != nil {
		c.met.Load().count(write)
		return &criticalError{c, cluster.StaleConfig(ns, received, nil, s.ID, "The critical section for the collection is acquired with reason: "+c.why), s, of}
	}
	if err := s.compareShard(op, ns, received); err != nil {
		return err
	}
	return s.checkMoment(op, ns) // against the version that both agree on
}

// compareShard compares a shard version with this shard's. The side with the older version refreshes: if the sender's is newer, this shard asks the
// config server before it refuses. It also does for a read at a cluster time: it may have to learn that the collection was another one then.
func (s *ShardState) compareShard(op *command.Op, ns string, received cluster.ChunkVersion) error {
	if received.IsIgnored() {
		return nil
	}
	err := s.compare(op, ns, received)
	if err != nil && mongoerr.CodeOf(err) != mongoerr.ExceededTimeLimit && (pastOf(op) != 0 || s.senderIsNewer(op, ns, received)) {
		s.Catalog.InvalidateCollection(ns)
		err = s.compare(op, ns, received)
	}
	return err
}

func (s *ShardState) compare(op *command.Op, ns string, received cluster.ChunkVersion) error {
	info, err := s.placement(op, ns)
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
	return cluster.CheckPlacement(info, ns, received, s.ID, cluster.PlacementTime(op.Req.ShardVersion), pastOf(op))
}

func (s *ShardState) senderIsNewer(op *command.Op, ns string, received cluster.ChunkVersion) bool {
	info, err := s.placement(op, ns)
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return false
	}
	return received.Compare(info.ShardVersion(s.ID)) != cluster.Older
}

// criticalError is a StaleConfig that is returned only once the critical section has ended, so that the router's
// retry finds the new version.
type criticalError struct {
	section *criticalSection
	stale   *mongoerr.Error
	state   *ShardState
	name    string
}

func (e *criticalError) Error() string { return e.stale.Error() }
func (e *criticalError) Unwrap() error { return e.stale }

// MeetsCritical reports whether an error is one that WaitCritical waits for.
func MeetsCritical(err error) bool {
	_, ok := err.(*criticalError)
	return ok
}

// WaitCritical blocks an operation that met a critical section until the section ends. A statement of a transaction does not wait for long: what the section is for may wait for a lock that
// the transaction holds on another shard. Its error says so, by which the router gives the transaction up (metadataRefreshInTransactionMaxWaitMS).
func WaitCritical(op *command.Op, err error) error {
	c, ok := err.(*criticalError)
	if !ok {
		return err
	}
	ctx, end := c.state.criticalWait(op)
	defer end()
	var ask <-chan time.Time
	if !c.section.ddl.IsZero() {
		t := time.NewTicker(leftOverAfter)
		defer t.Stop()
		ask = t.C
	}
	for {
		select {
		case <-c.section.ended:
			return c.stale
		case <-ctx.Done():
			if op.Err() == nil {
				return cluster.Blocked(c.stale)
			}
			return op.Err()
		case <-ask:
			c.state.endLeftOver(ctx, c.name, c.section)
		}
	}
}

// criticalWait limits how long an operation waits behind a critical section: what holds that up may itself wait for what the operation's transaction holds elsewhere.
//
// Rejected: limiting a refresh of the routing tables likewise. None waits for a transaction, and transactions would fail for an election of the config server, or on a slow machine.
func (s *ShardState) criticalWait(op *command.Op) (context.Context, context.CancelFunc) {
	if !op.InTransaction() || s.params == nil {
		return op, func() {}
	}
	return context.WithTimeout(op, time.Duration(s.params.Int("metadataRefreshInTransactionMaxWaitMS"))*time.Millisecond)
}

func (s *ShardState) checkDatabase(op *command.Op, db string) error {
	received, err := cluster.ParseDatabaseVersion(value.NewDocument(op.Req.DatabaseVer))
	if err != nil || received.IsFixed() {
		return err
	}
	if c := s.section(db, op.Req.Spec.Kind == command.Write || op.Req.Spec.Kind == command.DDL); c != nil {
		return &criticalError{c, cluster.StaleDbVersion(db, received, nil), s, db}
	}
	return s.compareDatabase(op, db, received)
}

// compareDatabase compares a database version with the one of the time that the operation reads at.
func (s *ShardState) compareDatabase(op *command.Op, db string, received cluster.DatabaseVersion) error {
	if received.IsFixed() {
		return nil
	}
	at := pastOf(op)
	for try := 0; ; try++ {
		info, err := s.Catalog.DatabaseAt(op, db, at)
		if err != nil {
			if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
				return cluster.StaleDbVersion(db, received, nil)
			}
			return err
		}
		if info.Primary == s.ID && info.Version == received {
			return nil
		}
		if try > 0 || at == 0 && received.Compare(info.Version) == cluster.Older {
			return cluster.StaleDbVersion(db, received, &info.Version)
		}
		s.Catalog.InvalidateDatabase(db)
	}
}

// ReadFilter implements Sharding.
func (s *ShardState) ReadFilter(op *command.Op, c *catalog.Collection) (func(doc []byte) (bool, error), *cluster.ChunkMap, error) {
	m, err := s.ReadTable(op, c)
	if err != nil || m == nil {
		return nil, nil, err
	}
	return s.filter(m), m, nil
}

// ReadTable implements Sharding. Between the check of a read's version and its snapshot the placement may have changed
// and documents may have moved, so the table has to be that of exactly the version that was checked.
func (s *ShardState) ReadTable(op *command.Op, c *catalog.Collection) (*cluster.ChunkMap, error) {
	received, err := cluster.ParseChunkVersion(value.NewDocument(op.Req.ShardVersion))
	if err != nil {
		return nil, err
	}
	info, err := s.placement(op, c.NS)
	switch {
	case received.IsIgnored() && (err != nil || info.Map == nil):
		return nil, nil
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		return nil, cluster.CheckShardVersion(c.NS, received, cluster.Unsharded, s.ID)
	case err != nil:
		return nil, err
	case info.Map == nil:
		return nil, cluster.CheckShardVersion(c.NS, received, cluster.Unsharded, s.ID)
	case received.IsIgnored():
		return info.Map, nil
	}
	if err := cluster.CheckPlacement(info, c.NS, received, s.ID, cluster.PlacementTime(op.Req.ShardVersion), pastOf(op)); err != nil {
		return nil, err
	}
	return info.Map, nil
}

// Ownership implements Sharding. The filter keeps the placement that it was made with for the lifetime of the query.
func (s *ShardState) Ownership(op *command.Op, c *catalog.Collection) func(doc []byte) (bool, error) {
	info, err := s.placement(op, c.NS)
	if err != nil || info.Map == nil {
		return nil
	}
	return s.filter(info.Map)
}

// filter returns a filter for the documents that this shard owns by a placement; nil if it owns all.
func (s *ShardState) filter(m *cluster.ChunkMap) func(doc []byte) (bool, error) {
	if s.OwnsAll(m) {
		return nil // every chunk is here; a query keeps its snapshot if that changes (Unmoved)
	}
	key := m.Key
	var vals []value.Value
	return func(doc []byte) (bool, error) {
		var err error
		if vals, err = key.FromDocument(doc, vals[:0]); err != nil {
			return false, nil
		}
		return m.Owns(s.ID, vals)
	}
}

// OwnsAll implements Sharding.
func (s *ShardState) OwnsAll(m *cluster.ChunkMap) bool {
	ids := m.Shards()
	return len(ids) == 1 && ids[0] == s.ID
}

// Owns implements Sharding.
func (s *ShardState) Owns(m *cluster.ChunkMap, doc []byte) (bool, error) {
	var room [2]value.Value
	vals, err := m.Key.FromDocument(doc, room[:0])
	if err != nil {
		return false, nil
	}
	return m.Owns(s.ID, vals)
}

// CheckUpdate implements Sharding.
func (s *ShardState) CheckUpdate(op *command.Op, c *catalog.Collection, old, next []byte, multi bool) error {
	if op.Req.ShardVersion == nil {
		return nil
	}
	info, err := s.Catalog.Collection(op, c.NS)
	if err != nil || info.Map == nil {
		return err
	}
	key := info.Map.Key
	was, err := key.FromDocument(old, nil)
	if err != nil {
		return err
	}
	is, err := key.FromDocument(next, nil)
	if err != nil {
		return err
	}
	switch {
	case cluster.CompareKeys(was, is) == 0:
		return nil
	case multi:
		return mongoerr.New(mongoerr.InvalidOptions, "Multi-update operations are not allowed when updating the shard key field.")
	case !op.Req.HasTxnNumber:
		return mongoerr.New(mongoerr.IllegalOperation, "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.")
	case info.Map.ShardOf(is) == s.ID:
		return nil
	}
	return s.changesOwner("This update would cause the doc to change owning shards", value.F("preImage", value.NewDocument(old)),
		value.F("postImage", value.NewDocument(next)), value.F("shouldUpsert", value.NewBool(false)))
}

// DocumentKey implements Sharding: the shard key and the _id.
func (s *ShardState) DocumentKey(op *command.Op, ns string) func(doc []byte) []byte {
	info, err := s.Catalog.Collection(op, ns)
	if err != nil || info.Map == nil || len(info.Map.Key.Parts) == 1 && info.Map.Key.Parts[0].Path == "_id" {
		return nil
	}
	return info.Map.Key.DocumentKey
}

// CheckUpsert implements Sharding.
func (s *ShardState) CheckUpsert(op *command.Op, ns string, doc []byte) error {
	if op.Req.ShardVersion == nil {
		return nil
	}
	info, err := s.Catalog.Collection(op, ns)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound || err == nil && info.Map == nil {
		return nil
	}
	if err != nil {
		return err
	}
	key, err := info.Map.Key.FromDocument(doc, nil)
	if err != nil || info.Map.ShardOf(key) == s.ID {
		return err
	}
	return s.changesOwner("The document we are inserting belongs on a different shard", value.F("postImage", value.NewDocument(doc)),
		value.F("shouldUpsert", value.NewBool(true)))
}

// changesOwner returns the error by which a router learns that a document belongs to another shard.
func (s *ShardState) changesOwner(text string, details ...value.Field) error {
	details = append(details, value.F("shard", value.NewString(s.ID)))
	return mongoerr.New(mongoerr.WouldChangeOwningShard, text).WithDetails(value.Doc(details...))
}
