package configsvr

import (
	"context"
	"slices"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// A shard that takes no part in a resharding is told of the collection's new placement at its end. One that could not be asked whether it has an empty copy (copies) drops it then
// (Manager.dropSuperseded). The operation does not wait for a shard that does not reply: who has still to be told is stored before it ends, and told by whoever is primary.
//
// Invariant: a shard that has not been told has an entry here, or the operation is in the state "done", whose work is repeated. A shard may be told twice.
//
// Rejected: the list in the operation's own document. That is removed as soon as its caller knows the outcome.

// untoldShards is the collection of those who have still to be told.
const untoldShards = "reshardingUntoldShards"

// untold is a shard that has still to be told of the placement of a collection after a resharding.
type untold struct {
	resharding [16]byte
	ns, shard  string
}

func (u untold) id() value.Value {
	return doc(fld("reshardingUUID", value.NewBinary(4, u.resharding[:])), fld("shard", str(u.shard)))
}

func readUntold(raw []byte) (u untold) {
	id := value.LookupDoc(raw, "_id")
	copy(u.resharding[:], value.Lookup(id, "reshardingUUID").Bytes())
	u.ns, u.shard = value.Lookup(raw, "ns").Str(), value.Lookup(id, "shard").Str()
	return u
}

// tellOthers tells the shards that take no part.
func (r *resharding) tellOthers(ctx context.Context) error {
	all, err := r.m.registry.All(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, copiesWait)
	defer cancel()
	var told sync.WaitGroup
	var mu sync.Mutex
	var late []untold
	for _, s := range all {
		if slices.Contains(r.participants(), s.ID) {
			continue
		}
		told.Go(func() {
			u := untold{r.doc.id, r.doc.ns, s.ID}
			if r.m.tell(bounded, u) != nil {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, u)
			}
		})
	}
	told.Wait()
	for _, u := range late {
		if _, err := r.m.update(ctx, untoldShards, doc(fld("_id", u.id())), doc(fld("_id", u.id()), fld("ns", str(u.ns))), true); err != nil {
			return err
		}
		r.m.tellLater(ctx, u)
	}
	return nil
}

// tell tells a shard of a collection's placement.
func (m *Manager) tell(ctx context.Context, u untold) error {
	_, err := m.onShard(ctx, u.shard, &msg.FlushRoutingTable{NS: u.ns})
	return err
}

// tellLater tells a shard as soon as it replies, unless it leaves the cluster or ctx ends.
func (m *Manager) tellLater(ctx context.Context, u untold) {
	m.resharding.beside(func() {
		retry := func(f func() error) bool {
			for try := 0; f() != nil; try++ {
				if cluster.Backoff(ctx, try) != nil {
					return false
				}
			}
			return ctx.Err() == nil
		}
		tell := func() error {
			err := m.tell(ctx, u)
			if err != nil && m.hasLeft(ctx, u.shard) {
				return nil
			}
			return err
		}
		_ = retry(tell) && retry(func() error { return m.remove(ctx, untoldShards, doc(fld("_id", u.id()))) })
	})
}

// tellUntold tells those shards whom an earlier primary could not tell.
func (m *Manager) tellUntold(ctx context.Context) {
	for try := 0; ; try++ {
		docs, err := m.find(ctx, untoldShards, doc())
		if err == nil {
			for _, d := range docs {
				m.tellLater(ctx, readUntold(d))
			}
			return
		}
		if cluster.Backoff(ctx, try) != nil {
			return
		}
	}
}
