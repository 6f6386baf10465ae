package configsvr

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// addShard adds a replica set to the cluster under a name; adding an existing shard again, unchanged, is not an error.
func (m *Manager) addShard(ctx context.Context, conn, name string) (string, error) {
	m.shards.Lock()
	defer m.shards.Unlock()
	set, hosts := cluster.SplitHosts(conn)
	if len(hosts) == 0 {
		return "", mongoerr.Newf(mongoerr.FailedToParse, "no hosts in the connection string %q", conn)
	}
	if err := m.registry.Reload(ctx); err != nil {
		return "", err
	}
	if name == cluster.ConfigShardID {
		return "", mongoerr.Newf(mongoerr.IllegalOperation, "A shard cannot be named %q: it is the name of the config server, which transitionFromDedicatedConfigServer makes a shard", name)
	}
	if have, ok, err := m.sameShard(ctx, conn, set, hosts, name); ok || err != nil {
		return have, err
	}
	if err := m.inspectMembers(ctx, hosts, conn, set); err != nil {
		return "", err
	}
	peer, err := m.registry.Dial(set, hosts)
	if err != nil {
		return "", err
	}
	defer cluster.Release(peer)
	hello, err := cluster.Run(ctx, peer, helloCommand)
	if set != "" && mongoerr.CodeOf(err) == mongoerr.FailedToSatisfyReadPreference {
		return "", err
	}
	if err != nil {
		return "", mongoerr.From(err).Prefix("Cannot add shard " + conn + ": ")
	}
	if conn, err = m.wholeSet(ctx, hello, conn, set, hosts); err != nil {
		return "", err
	}
	if name == "" {
		if name = value.Lookup(hello, "setName").Str(); name == "" {
			if name, err = m.freeShardName(ctx); err != nil {
				return "", err
			}
		}
	}
	join := &msg.Join{Shard: name, ClusterID: m.clusterID, ConfigDB: m.host()}
	return name, m.inSteps(ctx, "addShard",
		step{"registerDatabases", func() error { return m.checkNewDatabases(ctx, peer, name) }},
		step{"join", func() error {
			_, err := m.joinWithParams(ctx, peer, join)
			return err
		}},
		step{"commit", func() error { return m.insertShard(ctx, name, conn, configVersion(hello)) }},
		step{"sendParameters", func() error { return m.sendParams(ctx, peer, join) }},
	)
}

// sendParams sends the cluster parameters to a new shard until it has the current ones. A router that sets a parameter while a shard is added may not
// know the shard: it writes to the config server first, and lists the shards afterwards. If sending fails, the shard has been added nevertheless, and
// adding it again repeats the sending.
func (m *Manager) sendParams(ctx context.Context, peer cluster.Peer, join *msg.Join) error {
	for {
		if sent, err := m.joinWithParams(ctx, peer, join); err != nil || !sent {
			return err
		}
	}
}

// joinWithParams makes a server join the cluster with the current cluster parameters, unless these were sent before.
func (m *Manager) joinWithParams(ctx context.Context, peer cluster.Peer, join *msg.Join) (sent bool, err error) {
	params, err := m.find(ctx, "clusterParameters", doc())
	if err != nil {
		return false, err
	}
	if join.Params != nil && slices.EqualFunc(params, join.Params, bytes.Equal) {
		return false, nil
	}
	if join.Params = params; params == nil {
		join.Params = [][]byte{}
	}
	_, err = cluster.Run(ctx, peer, msg.Doc(join))
	return true, err
}

var helloCommand = msg.Doc(new(msg.Hello))

// inspectMembers examines the members of a new shard, before its set is monitored: one that can be reached has to be what the connection string
// says. They are asked at once, as those that are down are waited for.
func (m *Manager) inspectMembers(ctx context.Context, hosts []string, conn, set string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies := make(chan error, len(hosts))
	for _, h := range hosts {
		go func() { replies <- m.inspectMember(ctx, h, conn, set) }()
	}
	var refused, unreachable error
	for range hosts {
		err := <-replies
		switch {
		case err == nil:
			return nil
		case mongoerr.CodeOf(err) == mongoerr.FailedToSatisfyReadPreference:
			unreachable = err
		case refused == nil:
			refused = err
		}
	}
	switch {
	case refused != nil:
		return refused
	case set == "":
		return mongoerr.From(unreachable).Prefix("Cannot add shard " + conn + ": ")
	}
	return cluster.NoHostMatches(nil, set)
}

// inspectMember asks one member of a new shard what it is.
func (m *Manager) inspectMember(ctx context.Context, host, conn, set string) error {
	p, err := m.registry.Dial("", []string{host})
	if err != nil {
		return err
	}
	defer cluster.Release(p)
	hello, err := cluster.Run(ctx, p, helloCommand)
	switch {
	case mongoerr.CodeOf(err) == mongoerr.FailedToSatisfyReadPreference:
		return err
	case err != nil:
		return mongoerr.From(err).Prefix("Cannot add shard " + conn + ": ")
	}
	return checkNewShard(hello, conn, set)
}

// wholeSet returns the connection string of a set as its primary lists it. Every host given must be a member.
func (m *Manager) wholeSet(ctx context.Context, hello []byte, conn, set string, hosts []string) (string, error) {
	if set == "" {
		return conn, nil
	}
	var members []string
	for _, list := range []string{"hosts", "passives"} {
		for _, h := range value.Values(value.Lookup(hello, list).Doc()) {
			members = append(members, h.Str())
		}
	}
	for _, h := range hosts {
		if !slices.Contains(members, h) && !slices.Contains(members, m.listedAs(ctx, h, set)) {
			return "", mongoerr.Newf(mongoerr.OperationFailed, "in seed list %s, host %s does not belong to replica set %s; found %s", conn, h, set, value.ShowDoc(hello))
		}
	}
	return set + "/" + strings.Join(members, ","), nil
}

// listedAs returns the address under which the member at host is listed in its set's configuration: a host may
// have several names (127.0.0.1 and localhost), and the member itself reports which one it uses.
func (m *Manager) listedAs(ctx context.Context, host, set string) string {
	p, err := m.registry.Dial("", []string{host})
	if err != nil {
		return ""
	}
	defer cluster.Release(p)
	hello, err := cluster.Run(ctx, p, helloCommand)
	if err != nil || value.Lookup(hello, "setName").Str() != set {
		return ""
	}
	return value.Lookup(hello, "me").Str()
}

// configVersion returns the version of a set's configuration from its hello, -1 for a server that is not in a set.
func configVersion(hello []byte) int64 {
	if v, ok := value.Lookup(hello, "setVersion").AsInt64(); ok {
		return v
	}
	return -1
}

func (m *Manager) insertShard(ctx context.Context, name, conn string, version int64) error {
	ts := m.tick()
	err := m.insert(ctx, "shards", doc(fld("_id", str(name)), fld("host", str(conn)), fld("state", value.NewInt32(1)),
		fld("topologyTime", value.NewTimestampU64(ts)), fld("replSetConfigVersion", value.NewInt64(version))))
	if err != nil {
		return err
	}
	m.clock.AdvanceTopology(ts)
	m.sizes.mu.Lock()
	m.sizes.bytes = nil
	m.sizes.mu.Unlock()
	m.log(ctx, "addShard", "", doc(fld("name", str(name)), fld("host", str(conn))))
	return m.registry.Reload(ctx)
}

// sameShard looks for an existing shard that shares the name, the set or a host.
func (m *Manager) sameShard(ctx context.Context, conn, set string, hosts []string, name string) (string, bool, error) {
	all, err := m.registry.All(ctx)
	if err != nil {
		return "", false, err
	}
	for _, s := range all {
		same := s.SetName == set && set != ""
		for _, h := range hosts {
			for _, o := range s.Hosts {
				same = same || h == o
			}
		}
		switch {
		case same && (name == "" || name == s.ID) && s.SetName == set:
			return s.ID, true, m.sendParams(ctx, s.Peer, &msg.Join{Shard: s.ID, ClusterID: m.clusterID, ConfigDB: m.host()})
		case same:
			return "", false, mongoerr.Newf(mongoerr.IllegalOperation, "A shard named %s containing the replica set '%s' already exists", s.ID, s.SetName)
		case s.ID == name:
			return "", false, mongoerr.Newf(mongoerr.IllegalOperation, "A shard named %s already exists", name)
		}
	}
	return "", false, nil
}

// checkNewShard returns an error for a server that cannot be a shard.
func checkNewShard(hello []byte, conn, set string) error {
	if value.Lookup(hello, "msg").Str() == "isdbgrid" {
		return mongoerr.Newf(mongoerr.IllegalOperation, "%s is a mongos; cannot add a mongos as a shard", conn)
	}
	name := value.Lookup(hello, "setName").Str()
	switch {
	case !value.Lookup(hello, "configsvr").IsMissing():
		return mongoerr.Newf(mongoerr.OperationFailed, "Cannot add %s as a shard since it is a config server", conn)
	case set == "" && name != "":
		return mongoerr.Newf(mongoerr.OperationFailed, "host is part of set %s; use replica set url format <setname>/<server1>,<server2>, ...", name)
	case set != "" && name == "":
		return mongoerr.Newf(mongoerr.OperationFailed, "host did not return a set name; is the replica set still initializing? %s", conn)
	case set != name:
		return mongoerr.Newf(mongoerr.OperationFailed, "the provided connection string (%s) does not match the actual set name %s", conn, name)
	}
	return nil
}

func (m *Manager) freeShardName(ctx context.Context) (string, error) {
	all, err := m.registry.All(ctx)
	if err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		name := fmt.Sprintf("shard%04d", n)
		taken := false
		for _, s := range all {
			taken = taken || s.ID == name
		}
		if !taken {
			return name, nil
		}
	}
}

// checkNewDatabases returns an error if the new shard has a database that the cluster has already, and registers the
// shard's databases otherwise.
func (m *Manager) checkNewDatabases(ctx context.Context, p cluster.Peer, shard string) error {
	reply, err := cluster.Run(ctx, p, msg.Doc(&msg.ListDatabases{NameOnly: true}))
	if err != nil {
		return err
	}
	w := &msg.WriteTogether{NS: "config.databases"}
	var placed []placing
	for _, d := range value.Values(value.Lookup(reply, "databases").Doc()) {
		name := value.Lookup(d.Doc(), "name").Str()
		if cluster.FixedDatabase(name) || name == "local" {
			continue
		}
		have, err := m.database(ctx, name)
		if err == nil && have.Primary != shard {
			return mongoerr.Newf(mongoerr.OperationFailed, "can't add shard '%s' because a local database '%s' exists in another %s", shard, name, have.Primary)
		}
		if err == nil {
			continue
		}
		if mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
			return err
		}
		v := cluster.DatabaseVersion{UUID: cluster.NewUUID(), Timestamp: m.tick(), LastMod: 1}
		w.Changes.Put = append(w.Changes.Put, value.Doc(fld("_id", str(name)), fld("primary", str(shard)), fld("version", value.NewDocument(v.Doc()))))
		placed = append(placed, placing{nss: name, shards: []string{shard}})
	}
	if len(placed) == 0 {
		return nil
	}
	return m.writePlaced(ctx, w, placed...)
}

// removeShard starts, continues or completes the removal of a shard, and returns its state. With starts, a request that is repeated does not go beyond the start:
// its client has asked for no more, and an empty shard would be removed at once.
func (m *Manager) removeShard(ctx context.Context, name string, starts bool) ([]value.Field, error) {
	m.shards.Lock()
	defer m.shards.Unlock()
	if err := m.registry.Reload(ctx); err != nil {
		return nil, err
	}
	s, err := m.registry.Shard(ctx, name)
	if err != nil || s.Doc == nil { // a dedicated config server has no entry
		return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s does not exist", name)
	}
	all, err := m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	left := 0
	for _, o := range all {
		if o.ID != s.ID && !o.Draining {
			left++
		}
	}
	if left == 0 {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "Operation not allowed because it would remove the last shard")
	}
	switch {
	case s.Draining && starts:
		return m.drainReport(ctx, s.ID, drainingStarted, "started")
	case s.Draining:
		return m.continueRemoval(ctx, s.ID)
	}
	err = m.inSteps(ctx, removalOf(s.ID),
		step{"startDraining", func() error {
			_, err := m.update(ctx, "shards", doc(fld("_id", str(s.ID))), doc(fld("$set", doc(fld("draining", value.NewBool(true))))), false)
			return err
		}},
		step{"reportDraining", func() error {
			m.log(ctx, "removeShard.start", "", doc(fld("shard", str(s.ID))))
			return m.registry.Reload(ctx)
		}},
	)
	if err != nil {
		return nil, err
	}
	return m.drainReport(ctx, s.ID, drainingStarted, "started")
}

const drainingStarted = "draining started successfully"

// removalOf returns the name of the operation that removes a shard.
func removalOf(id string) string {
	if id == cluster.ConfigShardID {
		return "transitionToDedicatedConfigServer"
	}
	return "removeShard"
}

func (m *Manager) continueRemoval(ctx context.Context, id string) ([]value.Field, error) {
	m.shards.placing.Lock()
	defer m.shards.placing.Unlock()
	has, err := m.holds(ctx, id)
	if err != nil {
		return nil, err
	}
	if !has.nothing() {
		return m.drainReport(ctx, id, "draining ongoing", "ongoing")
	}
	forget := m.forgetShard
	if id == cluster.ConfigShardID {
		left, err := m.pendingDeletions(ctx)
		if left != nil || err != nil {
			return left, err
		}
		forget = m.forgetConfigShard
	}
	return []value.Field{
			fld("msg", str("removeshard completed successfully")), fld("state", str("completed")), fld("shard", str(id)),
		}, m.inSteps(ctx, removalOf(id),
			step{"commit", func() error { return forget(ctx, id) }},
			step{"reportRemoval", func() error {
				m.log(ctx, "removeShard", "", doc(fld("shard", str(id))))
				return m.registry.Reload(ctx)
			}},
		)
}

// forgetShard removes a shard's entry. The time of the removal is written to another shard's entry with it: a
// config server that starts later finds the topology time in the remaining entries.
func (m *Manager) forgetShard(ctx context.Context, id string) error {
	docs, err := m.first(ctx, 1, "shards", doc(fld("_id", doc(fld("$ne", str(id))))), fld("_id", value.NewInt32(1)))
	if err != nil {
		return err
	}
	ts := m.tick()
	w := &msg.WriteTogether{NS: "config.shards", Changes: msg.Changes{Delete: []value.Value{str(id)}}}
	for _, d := range docs {
		w.Changes.Put = append(w.Changes.Put, value.Doc(withField(d, "topologyTime", value.NewTimestampU64(ts))...))
	}
	if _, err := cluster.Run(ctx, m.local, msg.Doc(w)); err != nil {
		return err
	}
	m.clock.AdvanceTopology(ts)
	return nil
}
