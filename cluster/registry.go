package cluster

import (
	"context"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ConfigShardID is the shard id of the config server.
const ConfigShardID = "config"

// Shard is an entry of config.shards, with the peer that reaches it.
type Shard struct {
	ID       string
	Host     string // as stored: "set/host:port,host:port"
	SetName  string
	Hosts    []string
	Tags     []string
	Draining bool
	State    int64
	Topology uint64 // topologyTime
	Doc      []byte // the whole entry
	Peer     Peer
}

// SplitHosts splits a connection string "set/host,host" (or a lone host, with no set).
func SplitHosts(conn string) (set string, hosts []string) {
	if s, h, ok := strings.Cut(conn, "/"); ok {
		set, conn = s, h
	}
	for _, h := range strings.Split(conn, ",") {
		if h != "" {
			hosts = append(hosts, h)
		}
	}
	return set, hosts
}

// Registry mirrors config.shards. It refreshes when a shard that it does not know is looked up, every 30 seconds, and as soon as
// the vector clock's topology time passes what it loaded (Follow).
type Registry struct {
	config Peer
	clock  *VectorClock // of the node; nil in tests of only the registry
	dial   func(set string, hosts []string) (Peer, error)
	mu     struct {
		sync.RWMutex
		byID     map[string]*Shard
		odd      map[string]unusableEntry // by id
		topology uint64
	}
	refreshing chan struct{} // full during a reload
}

// NewRegistry returns an empty registry. dial connects to a shard by its hosts.
func NewRegistry(config Peer, clock *VectorClock, dial func(set string, hosts []string) (Peer, error)) *Registry {
	r := &Registry{config: config, clock: clock, dial: dial, refreshing: make(chan struct{}, 1)}
	r.mu.byID = make(map[string]*Shard)
	return r
}

// Config returns the config server.
func (r *Registry) Config() Peer { return r.config }

// ParseShard reads an entry of config.shards.
func ParseShard(doc []byte) (*Shard, error) {
	id, host := value.Lookup(doc, "_id"), value.Lookup(doc, "host")
	if id.T != value.String || host.T != value.String {
		return nil, mongoerr.New(mongoerr.FailedToParse, "an entry of config.shards lacks _id or host")
	}
	s := &Shard{ID: id.Str(), Host: host.Str(), Doc: append([]byte(nil), doc...)}
	s.SetName, s.Hosts = SplitHosts(s.Host)
	s.Draining = value.Lookup(doc, "draining").Truthy()
	s.State, _ = value.Lookup(doc, "state").AsInt64()
	s.Topology = value.Lookup(doc, "topologyTime").TimestampU64()
	for _, t := range value.Values(value.Lookup(doc, "tags").Doc()) {
		s.Tags = append(s.Tags, t.Str())
	}
	return s, nil
}

// Reload reloads config.shards. Shards whose set did not change keep their peer and its connections. An invalid
// entry, or one without a valid address, is skipped: looking it up fails, but the other shards remain reachable.
//
// Hazard: such a shard has not left the cluster. It may have data, and operations that wait for it: looking it up does not fail with ShardNotFound, by which callers know
// that a shard was removed.
func (r *Registry) Reload(ctx context.Context) error {
	return r.reloadUnless(ctx, func() bool { return false })
}

// reloadUnless is Reload, unless nothing is left to do once it is this one's turn.
func (r *Registry) reloadUnless(ctx context.Context, done func() bool) error {
	select {
	case r.refreshing <- struct{}{}:
		defer func() { <-r.refreshing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if done() {
		return nil
	}
	// Catalog reads are not older than the config time, so this one shows every change up to the current topology time,
	// including the removal of a shard.
	topology := r.known()
	docs, err := FindConfig(ctx, r.config, Find{NS: "config.shards"}.Doc())
	if err != nil {
		return err
	}
	r.mu.RLock()
	old := r.mu.byID
	r.mu.RUnlock()
	next, odd := make(map[string]*Shard, len(docs)), make(map[string]unusableEntry)
	for _, d := range docs {
		s, err := ParseShard(d)
		if err != nil {
			if id := value.Lookup(d, "_id"); id.T == value.String {
				odd[id.Str()] = unusable(d, err)
			}
			continue
		}
		if o := old[s.ID]; o != nil && o.sameSet(s) {
			s.Peer = o.Peer
			s.reseed(o)
		} else {
			if o != nil {
				Release(o.Peer) // first: dialling a set that this one still follows would return the same
			}
			if s.Peer, err = r.dial(s.SetName, s.Hosts); err != nil {
				odd[s.ID] = unusable(d, err)
				continue
			}
		}
		topology = max(topology, s.Topology)
		next[s.ID] = s
	}
	r.mu.Lock()
	r.mu.byID, r.mu.odd, r.mu.topology = next, odd, topology
	r.mu.Unlock()
	for id, o := range old {
		if next[id] == nil {
			Release(o.Peer)
		}
	}
	return nil
}

// unusableEntry is the error of a lookup of a shard whose entry is there, but cannot be used.
type unusableEntry struct {
	err   error
	added bool // the shard was added to the cluster: the entry has the time of that
}

func unusable(entry []byte, err error) unusableEntry {
	return unusableEntry{
		mongoerr.Newf(mongoerr.FailedToParse, "the entry of shard %s in config.shards cannot be used: %v", value.Lookup(entry, "_id").Str(), err),
		value.Lookup(entry, "topologyTime").TimestampU64() != 0,
	}
}

// Complete returns an error if a shard was in the cluster, at the last load, that All does not list because its entry cannot be used. What a client has
// written beside the shards' entries is no shard, and has no data.
func (r *Registry) Complete() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(r.mu.odd)) {
		if odd := r.mu.odd[id]; odd.added {
			return odd.err
		}
	}
	return nil
}

// follower is a peer that follows the membership of its set.
type follower interface {
	// ConnString returns the set as its primary lists it, empty before one was seen; Hosts returns the known addresses.
	ConnString() string
	Hosts() []string
	// Seed adds addresses at which to look for the set if none of the known ones answers.
	Seed(hosts []string)
}

// MembersOf lists the addresses of the members of a peer's set, as far as they are known.
func MembersOf(p Peer) []string {
	if f, ok := p.(follower); ok {
		return f.Hosts()
	}
	return nil
}

// Release releases a peer that a registry's dial made.
func Release(p Peer) {
	if c, ok := p.(interface{ Close() }); ok {
		c.Close()
	}
}

// sameSet reports whether two entries are the same shard, whose members may have changed.
//
// Hazard: a set that is removed may be followed by another one with the same names, which is up while the former one still is; a peer that looks for the set by its name keeps the former one. A change of
// members does not change the topology time. The removal of another shard may, but leaves the members.
func (s *Shard) sameSet(o *Shard) bool {
	return s.Host == o.Host || s.SetName != "" && s.SetName == o.SetName &&
		(s.Topology == o.Topology || slices.ContainsFunc(s.Hosts, func(h string) bool { return slices.Contains(o.Hosts, h) }))
}

func (s *Shard) reseed(old *Shard) {
	if f, ok := s.Peer.(follower); ok && old.Host != s.Host {
		f.Seed(s.Hosts)
	}
}

// ConnString returns the shard's set and hosts: as its primary lists them now, else as config.shards has them.
func (s *Shard) ConnString() string {
	if f, ok := s.Peer.(follower); ok {
		if c := f.ConnString(); c != "" {
			return c
		}
	}
	return s.Host
}

// Shard finds a shard by id, replica set name, host or connection string, reloading once if it is not known. It returns ShardNotFound only if config.shards has no such _id.
func (r *Registry) Shard(ctx context.Context, key string) (*Shard, error) {
	r.follow(ctx)
	if s := r.find(key); s != nil {
		return s, nil
	}
	if key == ConfigShardID {
		return &Shard{ID: ConfigShardID, Peer: r.config}, nil
	}
	if err := r.Reload(ctx); err != nil {
		return nil, err
	}
	if s := r.find(key); s != nil {
		return s, nil
	}
	r.mu.RLock()
	odd, there := r.mu.odd[key]
	r.mu.RUnlock()
	if there {
		return nil, odd.err
	}
	return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", key)
}

// Listed is Shard for a shard that is to receive data: a config server is not a shard unless config.shards has it.
func (r *Registry) Listed(ctx context.Context, key string) (*Shard, error) {
	s, err := r.Shard(ctx, key)
	if err == nil && s.Doc == nil { // or this node does not know it yet
		if err = r.Reload(ctx); err == nil {
			s, err = r.Shard(ctx, key)
		}
	}
	if err == nil && s.Doc == nil {
		return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", key)
	}
	return s, err
}

// CatchUp reloads the registry unless it has the shards of a topology time, or of a later one.
func (r *Registry) CatchUp(ctx context.Context, topology uint64) error {
	has := func() bool { return r.Topology() >= topology }
	if has() {
		return nil
	}
	return r.reloadUnless(ctx, has)
}

// followLimit is the time for which an operation waits for the newest list of shards, before it uses the one that is there.
const followLimit = time.Second

// follow reloads the registry if shards were added or removed since.
//
// Hazard: a router that has read a collection's table anew, and the list of shards before, would send a write for a new set to the one that had its name before, which may still run and which finds
// itself an owner as well.
func (r *Registry) follow(ctx context.Context) {
	if r.clock == nil || r.clock.Topology() <= r.Topology() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followLimit)
	defer cancel()
	_ = r.CatchUp(ctx, r.clock.Topology()) // the config server may be electing, and most shards are the same
}

func (r *Registry) find(key string) *Shard {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s := r.mu.byID[key]; s != nil {
		return s
	}
	for _, s := range r.mu.byID {
		conn := s.ConnString()
		_, hosts := SplitHosts(conn)
		if s.Host == key || conn == key || s.SetName == key && key != "" || slices.Contains(hosts, key) || slices.Contains(s.Hosts, key) {
			return s
		}
	}
	return nil
}

// All lists the shards by id, loading them first if none is known.
func (r *Registry) All(ctx context.Context) ([]*Shard, error) {
	r.follow(ctx)
	r.mu.RLock()
	n := len(r.mu.byID)
	r.mu.RUnlock()
	if n == 0 {
		if err := r.Reload(ctx); err != nil {
			return nil, err
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]*Shard, 0, len(r.mu.byID))
	for _, s := range r.mu.byID {
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out, nil
}

// Several reports whether the cluster has more than one shard.
func (r *Registry) Several(ctx context.Context) (bool, error) {
	all, err := r.All(ctx)
	return len(all) > 1, err
}

// Receiving returns the ids of the shards that may receive data, in their order: those that are not draining and, unless zone is "",
// have the zone's tag.
func Receiving(shards []*Shard, zone string) (out []string) {
	for _, s := range shards {
		if !s.Draining && (zone == "" || slices.Contains(s.Tags, zone)) {
			out = append(out, s.ID)
		}
	}
	return out
}

// known returns the newest topology time that the node knows of.
func (r *Registry) known() uint64 {
	if r.clock == nil {
		return 0
	}
	return r.clock.Now().Topology
}

// Topology returns the topology time of the entries that were loaded last.
func (r *Registry) Topology() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.topology
}

// reloadInterval is the maximum time between two reads of config.shards: changes of a shard's hosts or tags do not advance the
// topology time.
const reloadInterval = 30 * time.Second

// Follow keeps the registry in step with config.shards until ctx ends: it reloads at once when the topology time
// shows that a shard was added or removed, and every 30 seconds. Nothing else would make a node that only targets
// known shards look for a new one.
func (r *Registry) Follow(ctx context.Context) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for failed := 0; ; {
		moved := r.clock.TopologyMoved()
		if r.clock.Now().Topology > r.Topology() {
			if err := r.Reload(ctx); err != nil && ctx.Err() == nil {
				_ = Backoff(ctx, failed)
				failed++
				continue
			}
			failed = 0
		}
		select {
		case <-moved:
		case <-tick.C:
			_ = r.Reload(ctx) // repeated in the next period
		case <-ctx.Done():
			return
		}
	}
}

// Dial connects to a set that is not a shard yet.
func (r *Registry) Dial(set string, hosts []string) (Peer, error) { return r.dial(set, hosts) }

// AppendShardMap appends the reply of getShardMap: the config server and the shards by id, by host and by
// connection string.
func (r *Registry) AppendShardMap(ctx context.Context, dst []byte) ([]byte, error) {
	all, err := r.All(ctx)
	if err != nil {
		return dst, err
	}
	if !slices.ContainsFunc(all, func(s *Shard) bool { return s.ID == ConfigShardID }) {
		config, err := r.configConnString(ctx)
		if err != nil {
			return dst, err
		}
		all = append([]*Shard{{ID: ConfigShardID, Host: config}}, all...)
	}
	return appendShardMap(dst, all), nil
}

// configConnString returns the config server's set and hosts.
func (r *Registry) configConnString(ctx context.Context) (string, error) {
	if f, ok := r.config.(follower); ok {
		if c := f.ConnString(); c != "" {
			return c, nil
		}
	}
	reply, err := Run(ctx, r.config, msg.Doc(new(msg.Hello)))
	if err != nil {
		return "", err
	}
	var hosts []string
	for _, h := range value.Values(value.Lookup(reply, "hosts").Doc()) {
		hosts = append(hosts, h.Str())
	}
	return value.Lookup(reply, "setName").Str() + "/" + strings.Join(hosts, ","), nil
}

func appendShardMap(dst []byte, shards []*Shard) []byte {
	dst, m := value.BeginKey(dst, value.Document, "map")
	for _, s := range shards {
		dst = value.Append(dst, s.ID, value.NewString(s.ConnString()))
	}
	dst = value.End(dst, m)
	dst, m = value.BeginKey(dst, value.Document, "hosts")
	for _, s := range shards {
		_, hosts := SplitHosts(s.ConnString())
		for _, h := range hosts {
			dst = value.Append(dst, h, value.NewString(s.ID))
		}
	}
	dst = value.End(dst, m)
	dst, m = value.BeginKey(dst, value.Document, "connStrings")
	for _, s := range shards {
		dst = value.Append(dst, s.ConnString(), value.NewString(s.ID))
	}
	return value.End(dst, m)
}
