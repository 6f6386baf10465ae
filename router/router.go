package router

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/command/analyzer"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Router is one mongos.
type Router struct {
	Service  *command.Service
	Catalog  *cluster.Catalog
	Registry *cluster.Registry
	Clock    *cluster.VectorClock
	Params   *cluster.Params
	TempDir  string // where merging stages spill to; empty for the system's temporary directory
	Fail     *cluster.FailPoints
	Sessions *cluster.SessionCache

	config  cluster.Peer
	cursors cursorTable
	hubs    *watchHubs
	txns    txnTable
	temps   temps
	ops     command.Opcounters
	work    command.WorkCounters
	txnStat txnStats
	targets targetStats

	settings querySettings
	params   clusterParams
	lost     chan *command.Client // behind load balancers, disconnected
}

// New returns a router over a config server and registers its commands with the service.
func New(s *command.Service, reg *cluster.Registry, clock *cluster.VectorClock, params *cluster.Params, fail *cluster.FailPoints) *Router {
	r := &Router{
		Service: s, Registry: reg, Clock: clock, Params: params, Fail: fail,
		Catalog: cluster.NewCatalog(reg.Config()),
		config:  reg.Config(), lost: make(chan *command.Client, 1024),
	}
	r.Catalog.ServeStale, r.Catalog.Coarse = true, !params.Bool("enableFinerGrainedCatalogCacheRefresh")
	r.Catalog.Clock = clock
	r.Catalog.Limit(params.Int("catalogCacheCollectionMaxEntries"), params.Int("catalogCacheDatabaseMaxEntries"))
	r.cursors.init()
	r.hubs = newWatchHubs(r)
	r.work.Init()
	r.cursors.kill = r.closeRemote
	s.Table.Add(r.specs()...)
	r.sampleQueries(s)
	s.Hooks.After = r.hideStateChanges(s.Hooks.After)
	s.Hooks.IsTimeSeries = r.isTimeSeries
	s.Hooks.BalancedLost = r.noteLost
	s.Status.Add(r.ops.Section(),
		command.StatusSection{Name: "mem", Doc: func(*command.Op, value.Value) []byte { return command.MemDoc() }},
		command.StatusSection{Name: "shardingStatistics", Doc: func(*command.Op, value.Value) []byte { return r.shardingStatus() }},
		command.StatusSection{Name: "transactions", Doc: func(*command.Op, value.Value) []byte { return r.txnStat.doc() }},
		command.StatusSection{Name: "metrics", Doc: func(*command.Op, value.Value) []byte { return r.metrics() }})
	return r
}

// Serve makes the pipeline of the router's service use the router for sessions and transactions.
func (r *Router) Serve(base *command.Base) {
	r.Sessions, base.BeginTxn, base.Done = base.Sessions, r.BeginTxn, r.OpDone
	r.Sessions.WithCursors(r.cursors.sessions)
	base.KillCursors = func(f func(cluster.LogicalSessionID) bool) int {
		killed := r.KillSessionCursors(f)
		r.EndSessionTxns(f)
		return killed
	}
	base.SessionCatalog = r.txns.len
	base.KillBelow = r.killOnShards
}

// killOnShards makes every member of every shard and of the config server run a command that kills sessions:
// another router may have started operations in them. Transactions are on primaries, which must reply. Other
// members have only cursors and reads of the sessions; one that cannot be reached has lost its clients, too.
func (r *Router) killOnShards(op *command.Op) error {
	all, err := r.Registry.All(op)
	if err != nil {
		return err
	}
	members := [][]string{cluster.MembersOf(r.config)}
	ids := []string{cluster.ConfigShardID}
	for _, s := range all {
		if s.ID != cluster.ConfigShardID {
			ids, members = append(ids, s.ID), append(members, cluster.MembersOf(s.Peer))
		}
	}
	body := msg.Doc(op.OwnedSessions())
	var others sync.WaitGroup
	for _, set := range members {
		for _, host := range set {
			if len(set) > 1 {
				others.Go(func() { _, _ = r.runOnMember(op, host, body) })
			}
		}
	}
	err = firstError(r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return body, nil }))
	others.Wait()
	return err
}

// memberTimeout is the time that a router waits for the reply of a member that is not essential.
const memberTimeout = 2 * time.Second

// runOnMember runs a command on one member of a set, whatever its role.
func (r *Router) runOnMember(ctx context.Context, host string, cmd []byte) ([]byte, error) {
	p, err := r.Registry.Dial("", []string{host})
	if err != nil {
		return nil, err
	}
	defer cluster.Release(p)
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	return cluster.Run(ctx, p, cmd)
}

// metrics returns the section metrics of a router's serverStatus, from its own counters.
func (r *Router) metrics() []byte {
	return value.Doc(append(r.work.Uses(), value.F("commands", value.NewDocument(r.Service.CommandCounters())), r.cursors.metrics(),
		value.F("queryStats", value.NewDocument(r.Service.Queries.Status())))...)
}

// OpDone counts an operation that has ended.
func (r *Router) OpDone(op *command.Op, _ error) {
	if op.Req.Spec != nil {
		r.ops.Note(op)
		r.work.Note(op)
	}
}

// Run does the router's periodic work until ctx ends: it registers in config.mongos, expires idle cursors and sessions, and
// follows config.shards and the users.
func (r *Router) Run(ctx context.Context) {
	beat := time.NewTicker(10 * time.Second)
	defer beat.Stop()
	synced := time.Now()
	var followers sync.WaitGroup
	defer followers.Wait()
	followers.Go(func() { r.Registry.Follow(ctx) })
	followers.Go(func() { r.endLost(ctx) })
	followers.Go(func() { r.killing(ctx) })
	followers.Go(func() { r.Service.Sampler.Run(ctx, samplingRouter{r, &analyzer.Queries{Service: r.Service}}) })
	if r.Service.Access != nil {
		followers.Go(func() { r.watchUsers(ctx) })
	}
	for {
		// Each of these is repeated periodically: a failure now only delays it.
		r.dropTemps(ctx)
		_ = r.heartbeat(ctx)
		_, _ = r.loadClusterParams(ctx)
		r.cursors.expire(time.Duration(r.Params.Int("cursorTimeoutMillis")) * time.Millisecond)
		if r.Sessions != nil {
			for _, t := range r.txns.forget(time.Now().Add(-r.Sessions.Timeout()), func(cluster.LogicalSessionID) bool { return false }) {
				r.txnStat.abort(t, "expired") // on the shards it ended long ago
			}
		}
		every := time.Duration(r.Params.Int("logicalSessionRefreshMillis")) * time.Millisecond
		if r.Sessions != nil && time.Since(synced) > every && !r.Params.Bool("disableLogicalSessionCacheRefresh") {
			synced = time.Now()
			_ = r.Sessions.Sync(ctx)
		}
		select {
		case <-beat.C:
		case <-ctx.Done():
			return
		}
	}
}

// heartbeat registers the router. One that listens on no address is not registered: config.mongos, and sh.status, tell operators which routers their clients can use.
func (r *Router) heartbeat(ctx context.Context) error {
	if r.Service.Host == "" {
		return nil
	}
	now := time.Now()
	set := value.Doc(
		value.F("ping", value.NewTime(now)),
		value.F("up", value.NewInt64(int64(time.Since(r.Service.Started).Seconds()))),
		value.F("waiting", value.NewBool(true)),
		value.F("mongoVersion", value.NewString(command.Version)),
		value.F("advisoryHostFQDNs", value.NewArray(value.ArrayOf())),
		value.F("created", value.NewTime(r.Service.Started)))
	u := msg.UpdateStatement{
		Query: value.Doc(value.F("_id", value.NewString(r.Service.Host))), Change: value.NewDocument(value.Doc(value.F("$set", value.NewDocument(set)))), Upsert: true,
	}
	_, err := cluster.RunWrite(ctx, r.config, msg.Doc(&msg.Update{DB: "config", Coll: "mongos", Updates: []msg.UpdateStatement{u}}))
	return err
}

// maxStaleTries bounds how often one request is rerouted. Most stale errors are settled by the first refresh; a
// migration's critical section may take several.
const maxStaleTries = 30

// maxPastTries is that limit for a read at a cluster time. While the catalog is changing, nodes may disagree about the time of the change; shards
// refuse reads at that time anyway.
const maxPastTries = 10

// collection returns the placement of a namespace, as of the cluster time that the command reads at. If its database does not exist, reads go to
// any shard, which then replies as for any collection that does not exist: the same checks, the same empty result. A transaction asks one that it has already: another may have joined after the
// time of its snapshot, and refuse it.
func (r *Router) collection(op *command.Op, ns string) (*cluster.CollectionInfo, error) {
	info, err := r.Catalog.CollectionAt(op, ns, readsAt(op))
	if err == nil || mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return info, err
	}
	all, err := r.Registry.All(op)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, mongoerr.New(mongoerr.ShardNotFound, "No shards found")
	}
	if t := transactionOf(op); t != nil {
		return cluster.WithoutDatabase(ns, t.anyParticipant(all[0].ID)), nil
	}
	db, _ := cluster.SplitNS(ns)
	return &cluster.CollectionInfo{NS: ns, DB: &cluster.DatabaseInfo{Name: db, Primary: all[0].ID}}, nil
}

// collectionForWrite is collection for commands that create the collection they write to.
func (r *Router) collectionForWrite(op *command.Op, ns string) (*cluster.CollectionInfo, error) {
	info, err := r.Catalog.Collection(op, ns)
	if err == nil || mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return info, err
	}
	db, _ := cluster.SplitNS(ns)
	if err := r.createDatabase(op, db, ""); err != nil {
		return nil, err
	}
	return r.Catalog.Collection(op, ns)
}

func (r *Router) createDatabase(ctx context.Context, db, primary string) error {
	if err := command.CheckDBName(db); err != nil {
		return err
	}
	reply, err := r.askConfig(ctx, msg.Doc(&msg.CreateDatabase{DB: db, Primary: primary}))
	if err == nil {
		err = cluster.ReplyError(reply)
	}
	r.Catalog.InvalidateDatabase(db)
	return err
}

// routed runs f with the placement of ns until it is not answered as stale.
//
// A stale error means that the shard has not executed the request or, in a batch, the statement that the error
// belongs to, so repeating that is safe. It is not so for the whole command: if some shards have executed their
// part, f has to remember which (writeBatch) before it returns the error. The placement is looked up again for
// every try, because another request may have refreshed it meanwhile.
func (r *Router) routed(op *command.Op, ns string, write bool, f func(info *cluster.CollectionInfo) error) error {
	for try := 0; ; try++ {
		find := r.collection
		if write {
			find = r.collectionForWrite
		}
		info, err := find(op, ns)
		if err == nil {
			err = info.KnownAt(readsAt(op))
		}
		if err == nil {
			err = f(info)
		}
		if try > 0 && readsAt(op) != 0 && mongoerr.CodeOf(err) == mongoerr.ShardNotFound {
			return mongoerr.Newf(mongoerr.SnapshotUnavailable, "%s was on a shard that has been removed since: %s", ns, err)
		}
		if err != nil && info != nil && info.Late() != nil && isStale(err) {
			return info.Late() // the placement can be refreshed only once the config server replies
		}
		if err == nil {
			return nil
		}
		if try >= maxPastTries && readsAt(op) != 0 && isStale(err) {
			return mongoerr.Newf(mongoerr.SnapshotUnavailable, "the placement of %s at the time of the snapshot cannot be agreed upon: %s", ns, err)
		}
		if err = r.absorbStale(op, err, try); err != nil {
			return err
		}
	}
}

// routedOrView is routed for a command that reads and appends its reply to dst; what a failed attempt wrote is
// discarded. On a view of a sharded collection, which no shard can evaluate, onView runs instead.
func (r *Router) routedOrView(op *command.Op, ns string, dst []byte,
	on func(*command.Op, *cluster.CollectionInfo, []byte) ([]byte, error), onView func(*command.Op, *viewDef, []byte) ([]byte, error),
) ([]byte, error) {
	from := len(dst)
	err := r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = on(op, info, dst[:from])
		return err
	})
	if mongoerr.CodeOf(err) != mongoerr.CommandOnShardedViewNotSupportedOnMongod {
		return dst, err
	}
	view, err := resolvedView(err)
	if err != nil {
		return dst[:from], err
	}
	return onView(op, view, dst[:from])
}

// absorbStale processes a stale error. It returns nil if the request is to be tried again, else the error to report: err itself if it is not a
// stale error or the tries are used up, or the error of refreshing the placement.
func (r *Router) absorbStale(op *command.Op, err error, try int) error {
	if !r.noteStale(err) || try >= maxStaleTries {
		return err
	}
	if mongoerr.CodeOf(err) == mongoerr.ShardInvalidatedForTargeting {
		return r.refreshPart(op, err) // nothing was sent
	}
	if t := transactionOf(op); t != nil && !t.mayRetry(op, r, err) {
		op.AddLabel(mongoerr.LabelTransientTransaction) // a retry uses the placement that the router has now
		return err
	}
	if try >= 2 && cluster.Backoff(op, min(try-1, 7)) != nil {
		return err
	}
	return r.refreshPart(op, err)
}

// refreshPart refreshes the part of the placement that a stale error concerns, if only that part is marked. If that fails, the mark stays, and
// operations that target other shards continue.
func (r *Router) refreshPart(op *command.Op, err error) error {
	e, ok := err.(*mongoerr.Error)
	if !ok {
		return nil
	}
	info, _ := cluster.ParseStaleInfo(e.Details)
	if info.Ns == "" || info.Shard == "" {
		return nil
	}
	err = r.Catalog.Refresh(op, info.Ns, info.Shard)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound { // the database has been dropped, which the next look-up finds, too
		r.Catalog.InvalidateCollection(info.Ns)
		return nil
	}
	return err
}

// current checks that the part of the placement by which a shard was targeted is not known to be out of date.
func current(info *cluster.CollectionInfo, shard string) error {
	if !info.Outdated(shard) {
		return nil
	}
	return mongoerr.Newf(mongoerr.ShardInvalidatedForTargeting, "the placement of %s on shard %s is being refreshed", info.NS, shard).
		WithDetails(value.Doc(value.F("ns", value.NewString(info.NS)), value.F("shardId", value.NewString(shard))))
}

// ownerOf returns the shard that owns a shard key.
func ownerOf(info *cluster.CollectionInfo, key []value.Value) (string, error) {
	shard := info.Map.ShardOf(key)
	return shard, current(info, shard)
}

// noteStale marks the entry that a stale error concerns, so that its next use reloads it; false for other errors.
func (r *Router) noteStale(err error) bool {
	e, ok := err.(*mongoerr.Error)
	if !ok {
		return false
	}
	switch e.Code {
	case mongoerr.StaleConfig, mongoerr.StaleDbVersion, mongoerr.StaleEpoch:
		info, _ := cluster.ParseStaleInfo(e.Details)
		r.Catalog.OnStale(e.Code, info)
	case mongoerr.CannotImplicitlyCreateCollection:
		// The collection is not sharded on the shard although the router considered it sharded, or vice versa.
		info, _ := cluster.ParseStaleInfo(e.Details)
		r.Catalog.InvalidateCollection(info.Ns)
	case mongoerr.ShardInvalidatedForTargeting:
		// The router's own error: the entry is marked already.
	case mongoerr.ShardNotFound:
		r.Catalog.Clear()
	default:
		return false
	}
	return true
}

// peer returns the peer of a shard.
func (r *Router) peer(ctx context.Context, shard string) (cluster.Peer, error) {
	if shard == cluster.ConfigShardID {
		return r.config, nil
	}
	s, err := r.Registry.Shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	return s.Peer, nil
}

// relay sends a body (nil: the request's own) to one shard with the version elements appended, and lets the shard
// write its reply directly into dst, which must be as the handler received it. What remains of the reply are the
// shard's own elements, without ok and times.
func (r *Router) relay(op *command.Op, shard string, body, suffix, dst []byte) ([]byte, error) {
	out, _, err := r.relayAt(op, shard, body, suffix, dst)
	return out, err
}

// relayAt is relay for commands that open cursors: it also returns the member that has them.
func (r *Router) relayAt(op *command.Op, shard string, body, suffix, dst []byte) ([]byte, cluster.Peer, error) {
	p, err := r.peer(op, shard)
	if err != nil {
		return dst, nil, err
	}
	if t := transactionOf(op); t != nil {
		if body == nil {
			body = op.Req.Body
		}
		body = t.attach(op, shard, body)
	}
	return r.relayTo(op, shard, p, readsFrom(op), body, suffix, dst)
}

// readsFrom returns the read preference that a command is sent with; commands that write go to the primary
// regardless.
func readsFrom(op *command.Op) *cluster.ReadPreference {
	if op.Req.ReadPreference == nil || op.Req.Spec == nil || op.Req.Spec.Kind != command.Read || op.Txn != nil {
		return nil
	}
	return op.Req.ReadPreference
}

// relayTo is relayAt to a given peer: a shard, or one member of it.
func (r *Router) relayTo(op *command.Op, shard string, p cluster.Peer, pref *cluster.ReadPreference, body, suffix, dst []byte) ([]byte, cluster.Peer, error) {
	if body == nil {
		body = op.Req.Body
	}
	sb := scratch.get()
	defer scratch.put(sb)
	m := wire.Message{OpCode: wire.OpMsg, Flags: op.Req.Msg.Flags &^ (wire.ChecksumPresent | wire.ExhaustAllowed), Seqs: op.Req.Msg.Seqs}
	m.Flags &^= wire.MoreToCome
	m.Body = withSuffix(sb, body, suffix, op.AskQueryMetrics(body))
	mark := len(dst) - 4
	out, at, err := cluster.CallOn(op, p, pref, &m, dst[:mark])
	if err != nil {
		return dst, nil, err
	}
	transactionOf(op).note(shard, out[mark:])
	op.TakeQueryMetrics(out[mark:], true)
	out, err = r.trimReply(op, shard, out, mark)
	return out, at, err
}

// withSuffix copies a command and inserts elements before its terminator. OP_QUERY is not relayed, so $db is in the body.
func withSuffix(sb *[]byte, body []byte, suffixes ...[]byte) []byte {
	b := append((*sb)[:0], body[:len(body)-1]...)
	for _, s := range suffixes {
		b = append(b, s...)
	}
	b = append(b, 0)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	*sb = b
	return b
}

// okTail is how a reply from a node of the same process ends: ok: 1 and the terminator.
var okTail = append(value.Append(nil, "ok", value.NewDouble(1)), 0)

// trimReply removes ok and times from the reply document that begins at mark, or turns it into its error. A write
// concern error is reported with the shard's name, if there is one.
func (r *Router) trimReply(op *command.Op, shard string, out []byte, mark int) ([]byte, error) {
	reply := out[mark:]
	if n := len(out) - len(okTail); n >= mark+4 && string(out[n:]) == string(okTail) && op.Txn == nil && plainReply(op, reply) {
		return out[:n], nil
	}
	wcErr := cluster.WriteConcernErrorOf(reply)
	if wcErr != nil {
		if shard != "" {
			wcErr = atShard(wcErr, shard)
		}
		op.SetWriteConcernError(wcErr) // it adds labels, and at the end of the command a state change is hidden
	}
	if t := value.Lookup(reply, "operationTime"); t.T == value.Timestamp {
		op.AdvanceOperationTime(t.TimestampU64())
	}
	if err := cluster.ReplyError(reply); err != nil {
		return out[:mark+4], err
	}
	keep := mark + 4
	for it := value.Walk(reply); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return out[:keep], nil
		}
		switch string(k) {
		case "ok", "$clusterTime", "operationTime", "$configTime", "$topologyTime", "$gleStats", "lastCommittedOpTime",
			command.QueryMetricsField:
		case "readOnly":
			if op.Txn == nil {
				keep += copy(out[keep:], raw)
			}
		case "writeConcernError", "errorLabels":
			if wcErr == nil {
				keep += copy(out[keep:], raw)
			}
		default:
			keep += copy(out[keep:], raw)
		}
	}
}

// toHome relays the request to the shard of a collection that is not sharded.
func (r *Router) toHome(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	suffix := info.Suffix
	if op.Req.Spec.Kind != command.Read {
		suffix = info.ClientSuffix
	}
	return r.relay(op, info.Home(), nil, suffix(info.Home()), dst)
}

// internalClient returns the client of commands that the router sends to itself.
func (r *Router) internalClient() *command.Client {
	return &command.Client{InProcess: true, Internal: true, Started: r.Service.Started}
}
