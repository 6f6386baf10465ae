package configsvr

import (
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// refusals are the settings of the cluster that shards refuse for good: they differ from the other nodes until they accept them, and no client is told. Each is logged once, however often it is
// sent, until the shard has accepted it.
type refusals struct {
	log func(shard, setting string, err error) // nil for no log; set before the manager runs

	mu struct {
		sync.Mutex
		logged map[refusal]bool
	}
}

// refusal is a setting that a shard refuses.
type refusal struct{ shard, setting string }

// OnRefusal has a function called for each setting of the cluster that a shard refuses for good. It is called before the manager runs.
func (m *Manager) OnRefusal(log func(shard, setting string, err error)) { m.settings.refused.log = log }

// note notes how a shard has answered a command that sets what the config server has. A shard that could not be reached has refused nothing.
func (x *refusals) note(shard string, cmd []byte, err error) {
	if err != nil && cluster.Transient(err) {
		return
	}
	which := refusal{shard, settingIn(cmd)}
	x.mu.Lock()
	logged := x.mu.logged[which]
	switch {
	case err == nil:
		delete(x.mu.logged, which)
	case x.mu.logged == nil:
		x.mu.logged = make(map[refusal]bool)
		fallthrough
	default:
		x.mu.logged[which] = true
	}
	x.mu.Unlock()
	if err != nil && !logged && x.log != nil {
		x.log(shard, which.setting, err)
	}
}

// settingIn returns what a command sets: the name of a cluster parameter, or else that of the command.
func settingIn(cmd []byte) string {
	it := value.Walk(cmd)
	name, v, _ := it.Next()
	if v.T != value.Document {
		return string(name)
	}
	if id := value.Lookup(v.Doc(), "_id"); id.T == value.String {
		return id.Str()
	}
	return nameIn(v.Doc())
}
