package configsvr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// addShard adds a replica set to the cluster under a name; adding an existing shard again, unchanged, is not an error. It holds no lock while it speaks with
// the set, which may be frozen: what it has found is compared again when the shard's entry is written (listShard).
func (m *Manager) addShard(ctx context.Context, conn, name string) (string, error) {
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
	all, err := m.registry.All(ctx)
	if err != nil {
		return "", err
	}
	if s, err := sameShard(all, set, hosts, name); err != nil {
		return "", err
	} else if s != nil {
		if err := m.sendParams(ctx, s.Peer, &msg.Join{Shard: s.ID, ClusterID: m.clusterID, ConfigDB: m.host()}); err != nil {
			return "", err
		}
		return s.ID, m.bringSettings(ctx, s.Peer)
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
	return name, m.join(ctx, &newShard{id: name, conn: conn, version: configVersion(hello), peer: peer})
}

// join makes a set that can be a shard one.
func (m *Manager) join(ctx context.Context, s *newShard) error {
	peer, join := s.peer, &msg.Join{Shard: s.id, ClusterID: m.clusterID, ConfigDB: m.host()}
	return m.inSteps(ctx, "addShard",
		step{"checkDatabases", func() error { return m.checkNewDatabases(ctx, s) }},
		step{"join", func() error {
			_, err := m.joinWithParams(ctx, peer, join)
			return err
		}},
		step{"sendSettings", func() error { return m.bringSettings(ctx, peer) }},
		step{"commit", func() error {
			err := m.listShard(ctx, s)
			if refused(err) {
				m.unblock(ctx, peer)
			}
			return err
		}},
		step{"sendParameters", func() error {
			if err := m.sendParams(ctx, peer, join); err != nil {
				return err
			}
			return m.bringSettings(ctx, peer)
		}},
		step{"endSections", func() error { return endLeftSections(ctx, peer) }},
	)
}

// endLeftSections has a new shard end the critical sections of DDL that went on without it, if it was in the cluster before. It is listed: a run that ends from now on tells it. A shard
// that cannot do it now, or is of an earlier version, ends them by itself after some time; it has been added.
func endLeftSections(ctx context.Context, peer cluster.Peer) error {
	if _, err := cluster.RunWrite(ctx, peer, msg.Doc(&msg.EndLeftSections{})); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
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

// bringSettings makes a new shard store the cluster's settings that are not parameters, once before it is listed, since its clients would find users' writes let
// through, and once more after that, like sendParams: until they have not changed since they were sent.
func (m *Manager) bringSettings(ctx context.Context, peer cluster.Peer) error {
	var sent []byte
	for {
		want, err := settingsAt(ctx, m.local)
		if err != nil || sent != nil && bytes.Equal(sent, want.all()) {
			return err
		}
		has, err := settingsAt(ctx, peer)
		if err != nil {
			return err
		}
		if err = sendEach(ctx, peer, want.differences(has)); err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
			return err
		}
		if sent = want.all(); err != nil { // it asks what the settings are, which have changed meanwhile
			if now, nerr := settingsAt(ctx, m.local); nerr != nil || bytes.Equal(now.all(), sent) {
				return errors.Join(err, nerr)
			}
		}
	}
}

func sendEach(ctx context.Context, peer cluster.Peer, cmds []msg.Message) error {
	for _, cmd := range cmds {
		if _, err := cluster.RunWrite(ctx, peer, msg.Doc(cmd)); err != nil {
			return err
		}
	}
	return nil
}

// refused reports whether listShard has refused a shard, so that it is not in the list.
func refused(err error) bool {
	code := mongoerr.CodeOf(err)
	return code == mongoerr.OperationFailed || code == mongoerr.IllegalOperation || code == mongoerr.DatabaseDifferCase
}

// unblock lets users write to a server that has been refused as a shard. Its owner has to drop a database there, and no command to the cluster reaches it.
func (m *Manager) unblock(ctx context.Context, peer cluster.Peer) {
	has, err := settingsAt(ctx, peer)
	if err != nil {
		return
	}
	_ = sendEach(ctx, peer, new(clusterSettings).blockOf(has)) // the error is that of the refusal
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

// newShard is a shard that is not in the list yet.
type newShard struct {
	id, conn string
	version  int64 // of its set's configuration
	peer     cluster.Peer
}

// checkNewDatabases returns an error if a new shard has a database whose name the cluster knows. listShard decides.
func (m *Manager) checkNewDatabases(ctx context.Context, s *newShard) error {
	names, err := s.databases(ctx)
	if err == nil {
		_, err = m.unregistered(ctx, s.id, names)
	}
	return err
}

// databases lists the databases that a new shard brings. One that has only what the shard's profiler has recorded, as after the shard was drained, is none.
func (s *newShard) databases(ctx context.Context) (names []string, err error) {
	reply, err := cluster.Run(ctx, s.peer, msg.Doc(&msg.ListDatabases{NameOnly: true}))
	if err != nil {
		return nil, err
	}
	for _, d := range value.Values(value.Lookup(reply, "databases").Doc()) {
		name := value.Lookup(d.Doc(), "name").Str()
		if cluster.FixedDatabase(name) || name == "local" {
			continue
		}
		colls, err := cluster.FindAll(ctx, s.peer, name, msg.Doc(&msg.ListCollections{DB: name, Filter: value.Doc(fld("name", doc(fld("$ne", str("system.profile")))))}))
		if err != nil {
			return nil, err
		}
		if len(colls) > 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// unregistered returns those of a new shard's databases that have no entry yet; one that the cluster has elsewhere, or under a name that differs only in case, is
// an error.
func (m *Manager) unregistered(ctx context.Context, shard string, names []string) (left []string, err error) {
	docs, err := m.findOnly(ctx, "databases", doc(), "primary")
	if err != nil {
		return nil, err
	}
	known := make(map[string][]byte, len(docs))
	for _, d := range docs {
		known[foldCase(value.Lookup(d, "_id").Str())] = d
	}
	for _, name := range names {
		d, ok := known[foldCase(name)]
		if !ok {
			left = append(left, name)
			continue
		}
		primary, have := value.Lookup(d, "primary").Str(), value.Lookup(d, "_id").Str()
		switch {
		case have != name:
			return nil, errDifferCase(have, name)
		case primary != shard:
			return nil, mongoerr.Newf(mongoerr.OperationFailed, "can't add shard '%s' because a local database '%s' exists in another %s", shard, name, primary)
		}
	}
	return left, nil
}

// listShard writes the entries of a new shard and of its databases together: no database is registered with a shard that is not in the list, and none is in use
// before it is registered. It lists the databases once more, since one may have been created after the first check.
func (m *Manager) listShard(ctx context.Context, s *newShard) error {
	names, err := s.databases(ctx)
	if err != nil {
		return err
	}
	unlock, err := m.lockDatabase(ctx, names...)
	if err != nil {
		return err
	}
	defer unlock()
	all, free, err := m.lockedList(ctx)
	if err != nil {
		return err
	}
	defer free()
	set, hosts := cluster.SplitHosts(s.conn)
	if same, err := sameShard(all, set, hosts, s.id); same != nil || err != nil {
		return err // another request has added it
	}
	if names, err = m.unregistered(ctx, s.id, names); err != nil {
		return err
	}
	return m.insertShard(ctx, s, names, all)
}

// insertShard writes the entries of a new shard and of its databases. The list of shards, which has all the others, must be locked.
func (m *Manager) insertShard(ctx context.Context, s *newShard, dbs []string, others []*cluster.Shard) error {
	ts := m.tick()
	entry := value.Doc(fld("_id", str(s.id)), fld("host", str(s.conn)), fld("state", value.NewInt32(1)),
		fld("topologyTime", value.NewTimestampU64(ts)), fld("replSetConfigVersion", value.NewInt64(s.version)))
	w := &msg.WriteTogether{NS: "config.shards", Changes: msg.Changes{Put: [][]byte{entry}}}
	placed := []placing{membersAt(ts, append(slices.Clone(others), &cluster.Shard{ID: s.id}))}
	for _, name := range dbs {
		w.AlsoNS, w.Also.Put = "config.databases", append(w.Also.Put, m.newDatabase(name, s.id))
		placed = append(placed, placing{nss: name, shards: []string{s.id}})
	}
	if err := m.writePlaced(ctx, w, placed...); err != nil {
		return err
	}
	m.clock.AdvanceTopology(ts)
	m.sizes.set(nil, nil)
	m.log(ctx, "addShard", "", doc(fld("name", str(s.id)), fld("host", str(s.conn))))
	defer m.balancer.soon() // it knows the shard then
	return m.registry.Reload(ctx)
}

// sameShard looks for a shard that shares the name, the set or a host. It returns the one that a request to add this shard would add once more.
func sameShard(all []*cluster.Shard, set string, hosts []string, name string) (*cluster.Shard, error) {
	for _, s := range all {
		same := s.SetName == set && set != ""
		for _, h := range hosts {
			for _, o := range s.Hosts {
				same = same || h == o
			}
		}
		switch {
		case same && (name == "" || name == s.ID) && s.SetName == set:
			return s, nil
		case same:
			return nil, mongoerr.Newf(mongoerr.IllegalOperation, "A shard named %s containing the replica set '%s' already exists", s.ID, s.SetName)
		case s.ID == name:
			return nil, mongoerr.Newf(mongoerr.IllegalOperation, "A shard named %s already exists", name)
		}
	}
	return nil, nil
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

// removeShard starts, continues or completes the removal of a shard, and returns its state. With starts, a request that is repeated does not go beyond the start:
// its client has asked for no more, and an empty shard would be removed at once.
func (m *Manager) removeShard(ctx context.Context, name string, starts bool) ([]value.Field, error) {
	if err := m.registry.Reload(ctx); err != nil {
		return nil, err
	}
	s, err := m.registry.Shard(ctx, name)
	if mongoerr.CodeOf(err) == mongoerr.ShardNotFound || err == nil && s.Doc == nil { // a dedicated config server has no entry
		return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s does not exist", name)
	}
	if err != nil {
		return nil, err
	}
	all, err := m.registry.All(ctx)
	if err != nil {
		return nil, err
	}
	if err := notLast(all, s.ID); err != nil {
		return nil, err
	}
	switch {
	case s.Draining && starts:
		return m.drainReport(ctx, s.ID, drainingStarted, "started")
	case s.Draining:
		return m.continueRemoval(ctx, s.ID)
	}
	err = m.inSteps(ctx, removalOf(s.ID),
		step{"startDraining", func() error { return m.startDraining(ctx, s.ID) }},
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

// notLast returns an error if no other shard can take the data of one that is to be removed.
func notLast(all []*cluster.Shard, id string) error {
	for _, o := range all {
		if o.ID != id && !o.Draining {
			return nil
		}
	}
	return mongoerr.New(mongoerr.IllegalOperation, "Operation not allowed because it would remove the last shard")
}

// startDraining marks a shard as draining: no database is created there from then on.
func (m *Manager) startDraining(ctx context.Context, id string) error {
	unlock, err := m.shards.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	all, free, err := m.lockedList(ctx)
	if err != nil {
		return err
	}
	defer free()
	s := shardByID(all, id)
	if s == nil {
		return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s does not exist", id)
	}
	if err := notLast(all, id); err != nil {
		return err
	}
	err = m.writePlaced(ctx, &msg.WriteTogether{NS: "config.shards", Changes: msg.Changes{Put: [][]byte{value.Doc(withField(s.Doc, "draining", value.NewBool(true))...)}}})
	if err == nil {
		m.members.silent.note(id, true, m.now())
		m.balancer.soon()
	}
	return err
}

// removalOf returns the name of the operation that removes a shard.
func removalOf(id string) string {
	if id == cluster.ConfigShardID {
		return "transitionToDedicatedConfigServer"
	}
	return "removeShard"
}

// continueRemoval removes a draining shard if nothing is left on it, and reports what is left otherwise.
func (m *Manager) continueRemoval(ctx context.Context, id string) (report []value.Field, err error) {
	if report, err = m.unfinished(ctx, id); report != nil || err != nil { // without a lock: most requests end here
		return report, err
	}
	if report, err = m.awaitDecisions(ctx, id); report != nil || err != nil {
		return report, err
	}
	err = m.inSteps(ctx, removalOf(id), step{"commit", func() error {
		report, err = m.commitRemoval(ctx, id)
		return err
	}})
	if report != nil || err != nil {
		return report, err
	}
	return []value.Field{
			fld("msg", str("removeshard completed successfully")), fld("state", str("completed")), fld("shard", str(id)),
		}, m.inSteps(ctx, removalOf(id), step{"reportRemoval", func() error {
			m.log(ctx, "removeShard", "", doc(fld("shard", str(id))))
			return m.registry.Reload(ctx)
		}})
}

// unfinished returns the reply to the removal of a shard that still has data; nil for one that has none.
func (m *Manager) unfinished(ctx context.Context, id string) ([]value.Field, error) {
	has, err := m.holds(ctx, id)
	if err != nil {
		return nil, err
	}
	if !has.nothing() {
		return m.drainReport(ctx, id, "draining ongoing", "ongoing")
	}
	if id == cluster.ConfigShardID {
		return m.pendingDeletions(ctx)
	}
	return nil, nil
}

// silentFor is for how long a draining shard must not have answered before it is removed all the same.
const silentFor = time.Minute

// silentAsked is how often such a shard is asked again before: it may have answered others, and have been silent twice.
const silentAsked = 2

// silentShards knows since when draining shards that were asked have not answered. Another primary begins anew.
type silentShards struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note records whether a shard has answered, and returns for how long it has not.
func (s *silentShards) note(id string, answered bool, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered {
		delete(s.since, id)
		return 0
	}
	if s.since == nil {
		s.since = make(map[string]time.Time)
	}
	if s.since[id].IsZero() {
		s.since[id] = now
	}
	return now.Sub(s.since[id])
}

func (s *silentShards) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.since)
}

// awaitDecisions returns the reply to the removal of a shard that coordinates a transaction whose decision not all participants have executed; nil for one that does not. A participant that has
// not, and no longer finds the shard, aborts. A shard that does not answer may elect a primary that knows of such a transaction; one that has not answered for silentFor has failed for good, and
// is removed.
//
// Invariant: a shard that owned nothing before it was asked begins no commit as coordinator afterwards. A coordinator's shard has written in the transaction, which keeps what it has written to
// on the shard, by its locks, until it is over, and the coordinator's document is stored before it is.
func (m *Manager) awaitDecisions(ctx context.Context, id string) ([]value.Field, error) {
	s, err := m.registry.Shard(ctx, id)
	if err != nil || id == cluster.ConfigShardID {
		return nil, nil
	}
	for again := 0; ; again++ {
		asked := m.now()
		docs, err := m.decisionsOf(ctx, s)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		silent := m.members.silent.note(id, err == nil, asked)
		switch {
		case err == nil && len(docs) == 0:
			return nil, nil
		case silent < silentFor:
			return m.drainReport(ctx, id, "draining ongoing", "ongoing")
		case again == silentAsked: // nobody may have asked in between
			return nil, nil
		}
		if err := cluster.Sleep(ctx, askWait); err != nil {
			return nil, err
		}
	}
}

// decisionsOf returns a decision that a shard has still to tell a participant, if there is one.
func (m *Manager) decisionsOf(ctx context.Context, s *cluster.Shard) ([][]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	return cluster.FindLinearizable(bounded, s.Peer, cluster.Find{NS: "config.transaction_coordinators", Limit: 1})
}

// commitRemoval removes a shard's entry, unless it has data: then it returns the reply. Nothing is placed on the shard meanwhile.
func (m *Manager) commitRemoval(ctx context.Context, id string) (report []value.Field, err error) {
	unlock, err := m.shards.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if report, err := m.unfinished(ctx, id); report != nil || err != nil {
		return report, err
	}
	if id == cluster.ConfigShardID {
		return nil, m.forgetConfigShard(ctx, id)
	}
	return nil, m.forgetShard(ctx, id)
}

// forgetShard removes a shard's entry. The time of the removal is written to another shard's entry with it: a
// config server that starts later finds the topology time in the remaining entries. The shard's lock must be held.
func (m *Manager) forgetShard(ctx context.Context, id string) error {
	all, unlock, err := m.lockedList(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s := shardByID(all, id)
	if s == nil || !s.Draining { // another request has removed it, and it may have been added again since
		return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s has been removed", id)
	}
	ts := m.tick()
	w := &msg.WriteTogether{NS: "config.shards", Changes: msg.Changes{Delete: []value.Value{str(id)}}}
	for _, o := range all {
		if o.ID != id {
			w.Changes.Put = [][]byte{value.Doc(withField(o.Doc, "topologyTime", value.NewTimestampU64(ts))...)}
			break
		}
	}
	left := slices.DeleteFunc(slices.Clone(all), func(o *cluster.Shard) bool { return o.ID == id })
	if err := m.writePlaced(ctx, w, membersAt(ts, left)); err != nil {
		return err
	}
	m.clock.AdvanceTopology(ts)
	return nil
}
