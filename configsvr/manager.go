package configsvr

import (
	"context"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Manager owns the sharding catalog and everything that changes it.
type Manager struct {
	local    cluster.Peer // this config server's data node
	registry *cluster.Registry
	clock    *cluster.VectorClock
	host     func() string // its set's connection string
	now      func() time.Time

	Params *cluster.Params     // the node's; set before it runs
	Points *cluster.FailPoints // the node's, too; nil for none

	tables *cluster.Catalog // as read last; emptied when this member becomes primary, as another may have written since
	decisions
	blocks sections
	pauses pauses
	moves  activeMoves

	clusterID    [12]byte
	balancer     *balancer
	defragmenter *defragmenter
	sizes        sizeCache
	members      membership

	resharding reshardings
	settings   settingRuns
	creating   creations
}

// New returns a manager. Init must run before its commands do.
func New(local cluster.Peer, registry *cluster.Registry, clock *cluster.VectorClock, host func() string) *Manager {
	m := &Manager{local: local, registry: registry, clock: clock, host: host, Params: cluster.NewParams(), now: time.Now, balancer: newBalancer(), defragmenter: newDefragmenter(), tables: cluster.NewCatalog(local)}
	m.settings.patience = clientPatience
	m.blocks.held = make(map[[16]byte]struct{})
	m.members.changes, m.members.wake = make(map[string]memberChange), make(chan struct{}, 1)
	return m
}

// Short constructors for documents.

func doc(f ...value.Field) value.Value        { return value.NewDocument(value.Doc(f...)) }
func arr(v ...value.Value) value.Value        { return value.NewArray(value.ArrayOf(v...)) }
func str(s string) value.Value                { return value.NewString(s) }
func fld(k string, v value.Value) value.Field { return value.F(k, v) }

// find reads documents of a config collection.
func (m *Manager) find(ctx context.Context, coll string, filter value.Value) ([][]byte, error) {
	return cluster.Find{NS: "config." + coll, Filter: filter.Doc()}.All(ctx, m.local)
}

// first reads the first n documents of a config collection in an order, all if n is 0.
func (m *Manager) first(ctx context.Context, n int64, coll string, filter value.Value, order ...value.Field) ([][]byte, error) {
	f := cluster.Find{NS: "config." + coll, Filter: filter.Doc(), Limit: n}
	if len(order) > 0 {
		f.Sort = value.Doc(order...)
	}
	return f.All(ctx, m.local)
}

// findOnly reads some fields of documents of a config collection, and their _id.
func (m *Manager) findOnly(ctx context.Context, coll string, filter value.Value, fields ...string) ([][]byte, error) {
	p := []value.Field{fld("_id", value.NewInt32(1))}
	for _, name := range fields {
		p = append(p, fld(name, value.NewInt32(1)))
	}
	return cluster.Find{NS: "config." + coll, Filter: filter.Doc(), Projection: value.Doc(p...)}.All(ctx, m.local)
}

// write runs a write command on a config collection, durable on a majority.
func (m *Manager) write(ctx context.Context, w msg.Message) ([]byte, error) {
	return cluster.RunWrite(ctx, m.local, msg.Doc(w, fld("writeConcern", doc(fld("w", str("majority"))))))
}

func (m *Manager) insert(ctx context.Context, coll string, docs ...value.Value) error {
	_, err := m.write(ctx, &msg.Insert{DB: "config", Coll: coll, Documents: value.ArrayOf(docs...)})
	return err
}

// update changes one document and returns how many matched.
func (m *Manager) update(ctx context.Context, coll string, q, u value.Value, upsert bool) (int64, error) {
	reply, err := m.write(ctx, &msg.Update{DB: "config", Coll: coll, Updates: []msg.UpdateStatement{{Query: q.Doc(), Change: u, Upsert: upsert}}})
	n, _ := value.Lookup(reply, "n").AsInt64()
	return n, err
}

func (m *Manager) remove(ctx context.Context, coll string, q value.Value) error {
	_, err := m.write(ctx, &msg.Delete{DB: "config", Coll: coll, Deletes: []msg.DeleteStatement{{Query: q.Doc()}}})
	return err
}

// index is an index of a config collection.
type index struct {
	coll   string
	keys   []string
	unique bool
}

// configIndexes are the indexes that the manual lists for the config database.
var configIndexes = []index{
	{"chunks", []string{"uuid", "min"}, true},
	{"chunks", []string{"uuid", "shard", "min"}, true},
	{"chunks", []string{"uuid", "lastmod"}, true},
	{"chunks", []string{"uuid", "shard", "onCurrentShardSince"}, false},
	{"shards", []string{"host"}, true},
	{"tags", []string{"ns", "min"}, true},
	{"tags", []string{"ns", "tag"}, false},
	{"placementHistory", []string{"nss", "-timestamp"}, true},
}

// StepUp prepares a new primary for the commands of the config server. It returns an error only if these cannot be executed at all, because the cluster's id is not known. unready is the
// error of Init, which has to be repeated (Initialize).
//
// Hazard: a document that a client has written, for example a duplicate under a unique index, can make Init fail for good. If the config server did not serve then, nobody could remove it.
func (m *Manager) StepUp(ctx context.Context) (unready, err error) {
	if err := m.initVersion(ctx); err != nil {
		return nil, err
	}
	return m.Init(ctx), nil
}

// The pauses between two attempts of Initialize.
const initPause, longestInitPause = 100 * time.Millisecond, 10 * time.Second

// Initialize repeats Init, which has failed with err, until it succeeds or ctx ends. Without it nothing is balanced until the next election.
func (m *Manager) Initialize(ctx context.Context, err error) error {
	for pause := initPause; err != nil; pause = min(2*pause, longestInitPause) {
		if serr := cluster.Sleep(ctx, pause); serr != nil {
			return serr
		}
		err = m.Init(ctx)
	}
	return nil
}

// Init creates the config database: indexes, version document, the rules of the settings. It may run at every start.
func (m *Manager) Init(ctx context.Context) error {
	m.tables.Clear()
	m.members.silent.clear()
	for _, ix := range configIndexes {
		var keys []value.Field
		name := ""
		for i, k := range ix.keys {
			direction, suffix := int32(1), "_1"
			if down, ok := strings.CutPrefix(k, "-"); ok {
				k, direction, suffix = down, -1, "_-1"
			}
			keys = append(keys, fld(k, value.NewInt32(direction)))
			if i > 0 {
				name += "_"
			}
			name += k + suffix
		}
		spec := []value.Field{fld("key", doc(keys...)), fld("name", str(name))}
		if ix.unique {
			spec = append(spec, fld("unique", value.NewBool(true)))
		}
		if _, err := cluster.Run(ctx, m.local, msg.Doc(&msg.CreateIndexes{DB: "config", Coll: ix.coll, Indexes: [][]byte{value.Doc(spec...)}, Quorum: msg.NoQuorum()})); err != nil {
			return err
		}
	}
	if err := m.initSettings(ctx); err != nil {
		return err
	}
	if err := m.initVersion(ctx); err != nil {
		return err
	}
	// An invalid entry makes all operations that need the shards fail. The config server has to start nevertheless, so
	// that the entry can be removed.
	if err := m.registry.Reload(ctx); err != nil && mongoerr.CodeOf(err) != mongoerr.FailedToParse {
		return err
	}
	m.clock.AdvanceTopology(m.registry.Topology())
	return m.initHistory(ctx)
}

func (m *Manager) initVersion(ctx context.Context) error {
	docs, err := m.find(ctx, "version", doc())
	if err != nil {
		return err
	}
	if len(docs) == 0 {
		m.clusterID = cluster.NewObjectID()
		return m.insert(ctx, "version", doc(fld("_id", value.NewInt32(1)), fld("clusterId", value.NewObjectID(m.clusterID))))
	}
	if id := value.Lookup(docs[0], "clusterId").ObjectID(); id != m.clusterID { // commands read it while Init is repeated
		m.clusterID = id
	}
	return nil
}

// log writes an entry of config.changelog. The change is already done, so a failure to log it is not an error.
func (m *Manager) log(ctx context.Context, what, ns string, details value.Value) {
	m.logAs(ctx, cluster.ConfigShardID, what, ns, details)
}

// logAs is log for an action of a shard.
func (m *Manager) logAs(ctx context.Context, shard, what, ns string, details value.Value) {
	m.logIn(ctx, "changelog", shard, what, ns, details)
}

// logIn writes entries of config.changelog or config.actionlog that differ in their details.
func (m *Manager) logIn(ctx context.Context, coll, shard, what, ns string, details ...value.Value) {
	e := cluster.LogEntry{Server: m.server(ctx), Shard: shard, Time: time.Now(), What: what, NS: ns}
	if op := command.FromContext(ctx); op != nil {
		e.Client = op.Sender()
	}
	entries := make([]cluster.LogEntry, len(details))
	for i, d := range details {
		entries[i] = e
		entries[i].Details = d
	}
	cluster.WriteLog(ctx, m.local, coll, entries...)
}

// server returns the address of this member, as the logs show it.
func (m *Manager) server(ctx context.Context) string {
	hosts := m.host()
	if _, of, named := strings.Cut(hosts, "/"); named {
		hosts = of
	}
	first, _, several := strings.Cut(hosts, ",")
	if !several {
		return first
	}
	hello, err := cluster.Run(ctx, m.local, msg.Doc(&msg.Hello{}))
	if me := value.Lookup(hello, "me"); err == nil && me.T == value.String {
		return me.Str()
	}
	return first
}

// placement returns a collection's current placement. It reads the entries and only those chunks that changed since the last
// call: the commit of a migration calls it while writes to the range are blocked, and a table may have a million chunks.
func (m *Manager) placement(ctx context.Context, ns string) (*cluster.CollectionInfo, error) {
	db, _ := cluster.SplitNS(ns)
	m.tables.InvalidateDatabase(db)
	m.tables.InvalidateCollection(ns)
	return m.tables.Collection(ctx, ns)
}

// table returns a sharded collection's current entry and chunks.
func (m *Manager) table(ctx context.Context, ns string) (*cluster.CollectionInfo, *cluster.CollectionEntry, error) {
	info, err := m.placement(ctx, ns)
	if err != nil {
		return nil, nil, err
	}
	if !info.Sharded() {
		return nil, nil, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	e, err := cluster.ParseCollectionEntry(info.Entry)
	return info, e, err
}

// database reads a database's entry from the store.
func (m *Manager) database(ctx context.Context, db string) (*cluster.DatabaseInfo, error) {
	return cluster.NewCatalog(m.local).Database(ctx, db)
}

// onShard sends an internal command to a shard.
func (m *Manager) onShard(ctx context.Context, id string, cmd msg.Message) ([]byte, error) {
	return m.runOn(ctx, id, msg.Doc(cmd))
}

// runOn runs a client command on a shard.
func (m *Manager) runOn(ctx context.Context, id string, cmd []byte) ([]byte, error) {
	if id == cluster.ConfigShardID {
		return cluster.Run(ctx, m.local, cmd)
	}
	s, err := m.registry.Shard(ctx, id)
	if err != nil {
		return nil, err
	}
	return cluster.Run(ctx, s.Peer, cmd)
}

// findOn returns all documents of a command's cursor on a database's primary shard.
func (m *Manager) findOn(ctx context.Context, db *cluster.DatabaseInfo, q msg.Message) ([][]byte, error) {
	s, err := m.registry.Shard(ctx, db.Primary)
	if err != nil {
		return nil, err
	}
	return cluster.FindAll(ctx, s.Peer, db.Name, msg.Doc(q))
}

// shardIDs returns the ids of all shards.
func (m *Manager) shardIDs(ctx context.Context) ([]string, error) {
	all, err := m.registry.All(ctx)
	ids := make([]string, len(all))
	for i, s := range all {
		ids[i] = s.ID
	}
	return ids, err
}

// refreshShards tells shards that a collection's placement changed. A shard that cannot be reached learns it from
// the versions in requests.
func (m *Manager) refreshShards(ctx context.Context, ns string, ids []string) {
	for _, id := range ids {
		_, _ = m.onShard(ctx, id, &msg.FlushRoutingTable{NS: ns})
	}
}

// tick returns a new cluster time for a catalog change.
func (m *Manager) tick() uint64 { return m.clock.Tick(1) }
