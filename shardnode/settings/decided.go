package settings

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The config server decides on the feature compatibility version of a cluster and on what its users may not do, stores it, and then has each shard store it. Cluster parameters have a time, by
// which a shard knows which one is newer (Settings.Adopt).

// Cluster is the cluster that a shard belongs to.
type Cluster interface {
	// Decided reads documents of the config server as a majority of its set has them.
	Decided(ctx context.Context, f cluster.Find) ([][]byte, error)
	// Lists reports whether the shard is in the list of shards.
	Lists(ctx context.Context) (bool, error)
}

// order keeps the changes of settings that the config server decides on in an order.
type order struct {
	sync.Mutex
	changes atomic.Int64 // how many were made by this node, or read because another member has made them
}

// asDecided changes a setting, which change stores. On a shard it is changed only to what the config server has, in the document that f finds: same compares them. asked is false on a node
// on which nobody was asked, since it decides itself.
//
// Invariant: what a shard stores is what the config server had at some time after the shard had stored what it had before. Hazard: a message of a primary of the config server that was deposed may
// arrive when its successor has completed the operation, and others after it; it would set the setting back on this shard alone. Rejected: to ask under the lock, while the config server
// may be frozen.
func (st *Settings) asDecided(op *command.Op, f cluster.Find, same func(doc []byte) bool, change func(asked bool) error) error {
	for {
		seen := st.order.changes.Load()
		asked, err := st.checkDecided(op, f, same)
		if err != nil {
			return err
		}
		if err, again := st.inOrder(seen, func() error { return change(asked) }); !again {
			return err
		}
	}
}

// inOrder changes a setting unless one has been changed since the config server was asked: then it has to be asked again.
func (st *Settings) inOrder(seen int64, change func() error) (err error, again bool) {
	st.order.Lock()
	defer st.order.Unlock()
	if st.order.changes.Load() != seen {
		return nil, true
	}
	st.order.changes.Add(1)
	return change(), false
}

// checkDecided returns an error unless the config server of the cluster of which this node is a shard has a setting. A set that is not, or not yet, in the list of shards may have other settings: it
// is a shard by its own word, and is told what it may let through if it was refused.
func (st *Settings) checkDecided(op *command.Op, f cluster.Find, same func(doc []byte) bool) (asked bool, err error) {
	c := st.Cluster()
	if c == nil {
		return false, nil
	}
	docs, err := c.Decided(op, f)
	if err != nil {
		return true, err
	}
	var doc []byte
	if len(docs) > 0 {
		doc = docs[0]
	}
	if same(doc) {
		return true, nil
	}
	listed, err := c.Lists(op)
	if err == nil && listed {
		err = mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s: the config server does not have this setting, or has another one by now", op.Req.Spec.Name)
	}
	return true, err
}
