package router_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// powered is a cluster whose nodes lose their power: what a node has not synced is gone then, and nothing that it was about to send or to answer leaves it any more.
type powered struct {
	*testCluster
	mu     sync.Mutex
	nodes  map[string]*poweredNode
	closed sync.WaitGroup
}

// poweredNode is a node with its disk.
type poweredNode struct {
	disk *vfs.MemFS
	fast atomic.Int64               // by which its clock differs from the others', in nanoseconds
	last atomic.Pointer[poweredRun] // since the last start
	now  atomic.Pointer[poweredRun] // what others reach; nil while the node has no power or is not yet what it was, as a server listens last

	meets   atomic.Pointer[func(command string) error] // is called before what others send, and may fail it; nil for none
	replies sync.Map                                   // how many replies it has sent (an *atomic.Int64), by their commands
}

// poweredRun is a node from one start to the next loss.
type poweredRun struct {
	server *shardnode.Server
	lost   atomic.Bool
}

var errNoPower = mongoerr.New(mongoerr.HostUnreachable, "the node has no power")

// poweredPeer reaches a node, whenever it has power.
type poweredPeer struct{ node *poweredNode }

func (p poweredPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	run := p.node.now.Load()
	if run == nil || run.lost.Load() {
		return dst, errNoPower
	}
	if meets := p.node.meets.Load(); meets != nil {
		if err := (*meets)(string(m.CommandName())); err != nil {
			return dst, err
		}
	}
	defer p.node.replied(string(m.CommandName())).Add(1)
	return run.during(func() ([]byte, error) { return run.server.Peer().Call(ctx, m, dst) })
}

// replied counts the replies to a command.
func (n *poweredNode) replied(command string) *atomic.Int64 {
	count, _ := n.replies.LoadOrStore(command, new(atomic.Int64))
	return count.(*atomic.Int64)
}

// during returns what f returns, unless the power is lost before or meanwhile.
func (r *poweredRun) during(f func() ([]byte, error)) ([]byte, error) {
	if r.lost.Load() {
		return nil, errNoPower
	}
	reply, err := f()
	if r.lost.Load() {
		return nil, errNoPower
	}
	return reply, err
}

func newPoweredCluster(t *testing.T, shards int) *powered {
	t.Helper()
	p := &powered{nodes: map[string]*poweredNode{}}
	t.Cleanup(p.closed.Wait)
	p.testCluster = newHookedCluster(t, shards, clusterHooks{
		store: func(set string, o *storage.Options) {
			o.Memory, o.Dir, o.FS, o.MinFreeDisk = false, "db", p.node(set).disk, 1
			o.JournalInterval = time.Hour // what nobody waits for is synced by the next write that somebody waits for
			o.Clock = func() time.Time { return time.Now().Add(time.Duration(p.node(set).fast.Load())) }
		},
		peer: func(set string, s *shardnode.Server) cluster.Peer {
			n, run := p.node(set), &poweredRun{server: s}
			n.last.Store(run)
			n.now.Store(run)
			return poweredPeer{n}
		},
		out: func(set string) func(cluster.Peer) cluster.Peer {
			run := p.node(set).last.Load()
			return func(to cluster.Peer) cluster.Peer {
				return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
					return run.during(func() ([]byte, error) { return to.Call(ctx, m, dst) })
				})
			}
		},
	})
	return p
}

func (p *powered) node(set string) *poweredNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[set]
	if n == nil {
		n = &poweredNode{disk: vfs.NewCrashableMem()}
		p.nodes[set] = n
	}
	return n
}

// lose cuts the power of nodes at the same moment.
func (p *powered) lose(sets ...string) {
	p.t.Helper()
	for _, set := range sets {
		p.node(set).now.Load().lost.Store(true)
	}
	for _, set := range sets {
		n := p.node(set)
		n.disk = n.disk.CrashClone(vfs.CrashCloneCfg{})
		s := n.now.Swap(nil).server
		p.closed.Go(p.ends[s]) // it has no effect on anything
	}
}

// start starts nodes that lost their power, the config server first.
func (p *powered) start(sets ...string) {
	p.t.Helper()
	slices.Sort(sets)
	for _, set := range sets {
		delete(p.server, set)
		s := p.opened(shardnode.Config{SetName: set, Host: set + ":27018", Config: set == "config"})
		n, run := p.node(set), &poweredRun{server: s}
		n.last.Store(run)
		if set == "config" {
			n.now.Store(run) // its first steps as primary call itself
			p.conf = s
			p.manage(s)
			continue
		}
		join := p.joining(set)
		s.OnJoin(join)
		id, ok, err := s.Identity()
		if err != nil || !ok {
			p.t.Fatalf("%s is no shard any more: %v", set, err)
		}
		state, err := join(id)
		if err != nil {
			p.t.Fatal(err)
		}
		s.Node.BecomeShard(state)
		n.now.Store(run)
	}
}

// poweredDDL is a command whose nodes lose their power at its phases.
type poweredDDL struct {
	db, cmd string
	phases  []string
	again   mongoerr.Code  // of the same command once it has been done
	done    map[string]int // how many documents the collections have then, of those that had 10
}

func poweredDDLs() []poweredDDL {
	all := func(kv ...any) map[string]int {
		m := map[string]int{"c": 10, "d": 0, "moved": 10, "plain": 10, "home": 10}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1].(int)
		}
		return m
	}
	changes := []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations"}
	states := []string{"initializing", "preparing-to-donate", "cloning", "applying", "blocking-writes", "committing", "done"} // of a resharding, on the config server
	return []poweredDDL{
		{"db", `{"drop": "c"}`, []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection"}, 0, all("c", 0)},
		{"admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`, []string{"blockCrudAndRename", "renameMetadata", "unblockCRUD"}, mongoerr.NamespaceNotFound, all("c", 0, "d", 10)},
		{"db", `{"convertToCapped": "moved", "size": 100000}`, []string{"acquireCriticalSection", "copyCollection", "convertCollection", "releaseCriticalSection"}, 0, all()},
		{"admin", `{"shardCollection": "db.plain", "key": {"k": 1}}`, []string{"enterWriteCriticalSection", "createCollection", "enterCriticalSection", "commit", "exitCriticalSection"}, 0, all()},
		{"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": "hashed", "from": 1}}`, []string{"freezeMigrations", "blockCrud", "remoteIndexValidation", "commit", "releaseCritSec", "resumeMigrations"}, 0, all()},
		{"db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`, changes, 0, all()},
		{"db", `{"createIndexes": "c", "indexes": [{"key": {"from": 1}, "name": "from"}]}`, changes, 0, all()},
		{"db", `{"dropIndexes": "c", "index": "kf"}`, changes, mongoerr.IndexNotFound, all()},
		{"admin", `{"moveCollection": "db.plain", "toShard": "shard0"}`, states, 0, all()},
		{"admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`, states, 0, all()},
		{"admin", `{"unshardCollection": "db.c", "toShard": "shard1"}`, states, mongoerr.NamespaceNotSharded, all()},
		{"admin", `{"untrackUnshardedCollection": "db.home"}`, []string{"enterCriticalSection", "commit", "exitCriticalSection"}, 0, all()},
		{"admin", `{"movePrimary": "db", "to": "shard1"}`, []string{"clone", "blockWrites", "enterCriticalSection", "commit", "clean", "exitCriticalSection"}, 0, all()},
		{"db", `{"dropDatabase": 1}`, []string{"freezeCollections", "enterCriticalSection", "dropDatabase", "releaseCriticalSection"}, 0, all("c", 0, "moved", 0, "plain", 0, "home", 0)},
		{"db", `{"create": "fresh", "capped": true, "size": 4096}`, nil, 0, all()},
		{"db", `{"drop": "plain"}`, nil, 0, all("plain", 0)},
	}
}

// shardBeside makes a collection that is written to beside the commands.
func (p *powered) shardBeside() {
	p.t.Helper()
	p.run("admin", `{"enableSharding": "beside", "primaryShard": "shard0"}`)
	p.run("admin", `{"shardCollection": "beside.c", "key": {"_id": "hashed"}}`)
}

// prepare makes what the commands change, on three shards of which the last one is primary.
func (p *powered) prepare() {
	p.t.Helper()
	p.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	p.shardedAs("c", 1, 10)
	p.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed", "from": 1}, "name": "kf"}]}`)
	for _, plain := range []string{"moved", "plain", "home"} {
		p.insertKeys(plain, 1, 10)
	}
	p.run("db", `{"createIndexes": "plain", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
	p.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	for _, to := range []string{"shard1", "shard2"} {
		p.run("admin", fmt.Sprintf(`{"moveCollection": "db.home", "toShard": %q}`, to))
	}
}

// losses are the nodes that lose their power together: the coordinator's, a participant, the config server, all.
var losses = [][]string{{"shard2"}, {"shard0"}, {"config"}, {"config", "shard0", "shard1", "shard2"}}

// Nodes lose their power, and with it what they have not synced, at each phase of a DDL and right after it was answered: the coordinator's shard, a participant, the config
// server, or all of them. When the power is back the operation is completed or undone, the same command again is answered as if nothing had happened, the catalog agrees
// with the shards, and what was acknowledged is there. Each phase has one of the losses in turn, all with SHOAL_PROPERTY_ROUNDS.
func TestPowerLossDuringDDL(t *testing.T) {
	t.Parallel()
	for i, d := range poweredDDLs() {
		t.Run(fmt.Sprint(strings.Split(d.cmd, `"`)[1], i), func(t *testing.T) {
			t.Parallel()
			p, wrote := newPoweredCluster(t, 3), 0
			p.shardBeside()
			for j, phase := range append(d.phases, "") {
				lost := losses
				if os.Getenv("SHOAL_PROPERTY_ROUNDS") == "" {
					lost = losses[(i+j)%4 : (i+j)%4+1]
				}
				for _, sets := range lost {
					p.disturbed(&d, phase, &wrote, func(release func()) {
						p.lose(sets...)
						release()
						p.start(sets...)
					})
					if t.Failed() {
						t.Fatalf("%s, %v lost power at %q", d.cmd, sets, phase)
					}
				}
			}
		})
	}
}

// The clocks of nodes jump forward and back at each phase of a DDL: the coordinator's shard's, a participant's, the config server's, or all of them, by minutes and by days. The operation is
// completed or undone, and what was acknowledged is there, all as above.
func TestClocksJumpDuringDDL(t *testing.T) {
	t.Parallel()
	jumps := []time.Duration{2 * time.Hour, -time.Hour, 48 * time.Hour, -90 * time.Second, 40 * time.Minute}
	for i, d := range poweredDDLs() {
		t.Run(fmt.Sprint(strings.Split(d.cmd, `"`)[1], i), func(t *testing.T) {
			t.Parallel()
			p, wrote := newPoweredCluster(t, 3), 0
			p.shardBeside()
			for j, phase := range d.phases {
				sets, by := losses[(i+j)%4], jumps[(i+j)%5]
				p.disturbed(&d, phase, &wrote, func(release func()) {
					for _, set := range sets {
						p.node(set).fast.Add(int64(by))
					}
					release()
				})
				if t.Failed() {
					t.Fatalf("%s, the clocks of %v jumped by %v at %q", d.cmd, sets, by, phase)
				}
			}
			fastest := int64(0)
			for _, set := range []string{"config", "shard0", "shard1", "shard2"} {
				fastest = max(fastest, p.node(set).fast.Load())
			}
			at := p.run("beside", `{"insert": "c", "documents": [{"_id": -1}]}`)["operationTime"].(bson.Timestamp)
			if ahead := time.Until(time.Unix(int64(at.T), 0)); ahead < time.Duration(fastest)-time.Hour {
				t.Errorf("the cluster is ahead by %v, its fastest clock by %v", ahead, time.Duration(fastest))
			}
		})
	}
}

// disturbed lets something happen when a command is at a phase, where release lets it go on; without one, when it was answered.
func (p *powered) disturbed(d *poweredDDL, phase string, wrote *int, happens func(release func())) {
	t := p.t
	t.Helper()
	p.prepare()
	release := func() {}
	answer := make(chan bson.M, 1)
	send := func() { answer <- p.raw(d.db, d.cmd) }
	if phase == "" {
		send()
	} else {
		at := []string{"shard2", hangBeforePhase, "phase"}
		if slices.Contains(d.phases, "cloning") {
			at = []string{"config", "reshardingPauseCoordinatorAtState", "state"}
			p.config.Points = p.points["config"]
		}
		var reached func()
		reached, release = p.hangOn(at[0], at[1], at[2], phase)
		go send()
		reached()
	}
	p.run("beside", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}, {"_id": %d}], "writeConcern": {"w": "majority"}}`, *wrote, *wrote+1))
	*wrote += 2
	happens(release)
	select {
	case m := <-answer:
		if m["ok"] != 1.0 {
			t.Logf("%s at %q: answered %v", d.cmd, phase, m)
		}
	case <-time.After(time.Minute):
		t.Fatalf("nobody answers %s at %q", d.cmd, phase)
	}
	p.leftOver()
	p.until("no resharding is left", func() bool { return len(p.all("config", `{"find": "reshardingOperations"}`)) == 0 })
	p.expect(p.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	for coll := range d.done {
		if n := p.counted(coll, 1); n != 0 && n != 10 {
			t.Errorf("%s has %d documents", coll, n)
		}
	}
	if m := p.raw(d.db, d.cmd); m["ok"] != 1.0 && m["code"] != int32(d.again) {
		t.Errorf("again: %v", m)
	}
	for coll, want := range d.done {
		if n := p.counted(coll, 1); n != want {
			t.Errorf("%s has %d documents, want %d", coll, n, want)
		}
	}
	p.expect(p.run("beside", `{"count": "c"}`)["n"], fmt.Sprint(*wrote))
	for coll := range d.done { // every name may be written to
		p.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1000, "k": 1000}], "maxTimeMS": 100000}`, coll))
	}
	p.expect(p.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	p.run("db", `{"dropDatabase": 1}`)
}

// A donor of a resharding loses its power, and with it writes that nobody has waited for; some are from before the clone, and of the others the recipient has been told. What clients
// read on the donor afterwards is what they read once the resharding has ended, and a statement that is lost is executed when it is sent again. What was lost used to be there again:
// a document that was deleted was gone, although clients had read it since.
func TestPowerLossOfADonor(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ asked, node, pause, state string }{
		{"", "shard0", "reshardingPauseRecipientAtState", "applying"},
		{"Changes", "config", "reshardingPauseCoordinatorAtState", "blocking-writes"},
		{"Sessions", "config", "reshardingPauseCoordinatorAtState", "blocking-writes"},
	} {
		t.Run(x.state+x.asked, func(t *testing.T) {
			t.Parallel()
			p := newPoweredCluster(t, 2)
			p.config.Points = p.points["config"]
			reached, release := p.hangOn(x.node, x.pause, "state", x.state)
			p.donorLoses(reached, release, x.asked)
		})
	}
}

// donorLoses has a donor lose its power when the recipient has cloned its documents and, if asked is not empty, has asked for what was written since.
func (p *powered) donorLoses(reached, release func(), asked string) {
	t := p.t
	t.Helper()
	p.halved("c")
	p.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1, "v": 1}, {"_id": 2, "k": 2, "v": 1}, {"_id": 3, "k": 3, "v": 1}], "writeConcern": {"w": "majority"}}`)
	other := p.through()
	const unsynced = `, "writeConcern": {"w": 1, "j": false}}`
	const statement = `{"insert": "c", "documents": [{"_id": 4, "k": 4, "v": 1}], "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}`
	var early sync.Once
	meets := func(command string) (err error) {
		if command == "_shardsvrCreateCollectionParticipant" { // the donors are asked for the time of the clone once more
			early.Do(func() {
				other.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 1, "k": 1}, "limit": 1}]`+unsynced)
				err = mongoerr.New(mongoerr.HostUnreachable, "not now")
			})
		}
		return err
	}
	p.node("shard0").meets.Store(&meets)
	answer := make(chan bson.M, 1)
	go func() {
		answer <- p.raw("admin", `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard0"}]}`)
	}()
	reached()
	other.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 2, "k": 2}, "limit": 1}]`+unsynced)
	other.run("db", `{"update": "c", "updates": [{"q": {"_id": 3, "k": 3}, "u": {"$set": {"v": 2}}}]`+unsynced)
	other.run("db", statement+unsynced)
	n := p.node("shard1").replied("_shardsvrReshardingFetch" + asked)
	from := n.Load()
	p.until("the recipient has asked for "+asked, func() bool { return asked == "" || n.Load() > from+1 })
	p.lose("shard1")
	p.start("shard1")
	const all = `{"find": "c", "filter": {"v": {"$exists": true}}, "sort": {"_id": 1}, "projection": {"k": 0}, "readConcern": {"level": "majority"}}`
	before := show(other.all("db", all))
	release()
	if m := <-answer; m["ok"] != 1.0 {
		t.Error(m)
	}
	p.expect(other.all("db", all), before)
	other.run("db", statement+`}`)
	p.expect(other.run("db", `{"count": "c", "query": {"_id": 4}}`)["n"], `1`)
	p.leftOver()
}
