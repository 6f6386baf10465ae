package configsvr

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// runClearJumbo clears the jumbo mark of the chunk that contains a key, or of the one with the given bounds.
func (m *Manager) runClearJumbo(op *command.Op, req *msg.ClearJumboFlag, dst []byte) ([]byte, error) {
	if (req.Find == nil) == (req.Bounds == nil) {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "must specify exactly one of: find or bounds")
	}
	if req.Find != nil {
		info, _, err := m.table(op, req.NS)
		if err != nil {
			return dst, err
		}
		key, ok := targeting.ExactKey(info.Map.Key, req.Find, false)
		if !ok {
			return dst, mongoerr.New(mongoerr.ShardKeyNotFound, "no shard key found in chunk query")
		}
		return dst, m.clearJumbo(op, req.NS, key, nil)
	}
	if len(req.Bounds) != 2 {
		return dst, mongoerr.New(mongoerr.BadValue, "no valid shard key bounds found")
	}
	return dst, m.clearJumbo(op, req.NS, nil, &msg.Range{Min: req.Bounds[0], Max: req.Bounds[1]})
}

func (m *Manager) runBalancerStart(op *command.Op, _ *msg.BalancerStart, dst []byte) ([]byte, error) {
	return dst, m.setBalancer(op, true)
}

// stopWait limits the time that balancerStop waits for the balancer's running migrations, unless maxTimeMS is given.
const stopWait = time.Minute

// runBalancerStop replies once the balancer's running migrations have ended.
func (m *Manager) runBalancerStop(op *command.Op, _ *msg.BalancerStop, dst []byte) ([]byte, error) {
	if err := m.setBalancer(op, false); err != nil {
		return dst, err
	}
	bounded, cancel := context.WithTimeout(op, stopWait)
	defer cancel()
	err := m.balancer.idle(bounded)
	if err != nil && op.Err() == nil {
		err = mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit: the balancer is off, but a migration that it began is still running")
	}
	return dst, err
}

func (m *Manager) runBalancerStatus(op *command.Op, _ *msg.BalancerStatus, dst []byte) ([]byte, error) {
	mode, err := m.balancerMode(op)
	if err != nil {
		return dst, err
	}
	inRound, rounds := m.balancer.status()
	dst = value.Append(dst, "mode", str(mode))
	dst = value.Append(dst, "inBalancerRound", value.NewBool(inRound))
	dst = value.Append(dst, "numBalancerRounds", value.NewInt64(rounds))
	return value.Append(dst, "term", value.NewInt64(m.term(op))), nil
}

// term returns the term of the config server's primary, and so of its balancer.
func (m *Manager) term(ctx context.Context) int64 {
	reply, err := cluster.Run(ctx, m.local, msg.Doc(&msg.SetStatus{}))
	if err != nil {
		return 0
	}
	n, _ := value.Lookup(reply, "term").AsInt64()
	return n
}

// violations are the names with which balancerCollectionStatus reports why a collection is not balanced
// (https://www.mongodb.com/docs/manual/reference/command/balancerCollectionStatus/).
var violations = map[string]string{forDraining: "draining", forZone: "zoneViolation", forBalance: "chunksImbalance", forTest: "chunksImbalance"}

// runBalancerCollectionStatus reports whether the balancer would move any data of a collection. It gives details only for a collection that is being defragmented.
func (m *Manager) runBalancerCollectionStatus(op *command.Op, req *msg.BalancerCollectionStatus, dst []byte) ([]byte, error) {
	info, e, err := m.table(op, req.NS)
	if err != nil {
		return dst, err
	}
	size := value.NewInt64(m.chunkSizeOf(op, e) >> 20)
	if e.Defragment {
		dst = value.Append(dst, "chunkSize", size)
		dst = value.Append(dst, "balancerCompliant", value.NewBool(false))
		dst = value.Append(dst, "firstComplianceViolation", str("defragmentingChunks"))
		return value.Append(dst, "details", m.defragmentStatus(info, e)), nil
	}
	if err := m.registry.Reload(op); err != nil {
		return dst, err
	}
	stats, err := m.dataSizes(op, []*cluster.CollectionEntry{e})
	if err != nil {
		return dst, err
	}
	d, err := m.distribution(op, e, stats)
	if err != nil {
		return dst, err
	}
	if d == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", req.NS)
	}
	why := ""
	if moves := d.plan(make(map[string]bool)); len(moves) > 0 {
		why = violations[moves[0].why]
	}
	if len(d.zoneSplits()) > 0 && why != violations[forDraining] {
		why = violations[forZone]
	}
	dst = value.Append(dst, "chunkSize", size)
	dst = value.Append(dst, "balancerCompliant", value.NewBool(why == ""))
	if why != "" {
		dst = value.Append(dst, "firstComplianceViolation", str(why))
	}
	return dst, nil
}

// chunkSizeOf returns a collection's chunk size, its own or the cluster's.
func (m *Manager) chunkSizeOf(ctx context.Context, e *cluster.CollectionEntry) int64 {
	if e.ChunkBytes > 0 {
		return e.ChunkBytes
	}
	return m.chunkSize(ctx)
}

// runConfigureBalancing changes a collection's balancing settings.
func (m *Manager) runConfigureBalancing(op *command.Op, req *msg.ConfigureBalancing, dst []byte) ([]byte, error) {
	_, e, err := m.table(op, req.NS)
	if err != nil {
		return dst, err
	}
	set, unset, err := balancingChanges(req)
	if err != nil {
		return dst, err
	}
	var change []value.Field
	if len(set) > 0 {
		change = append(change, fld("$set", doc(set...)))
	}
	if len(unset) > 0 {
		change = append(change, fld("$unset", doc(unset...)))
	}
	unlock, err := m.lockTables(op)
	if err != nil {
		return dst, err
	}
	defer unlock()
	n, err := m.update(op, "collections", doc(fld("_id", str(req.NS)), fld("uuid", value.NewBinary(4, e.UUID[:]))), doc(change...), false)
	if err == nil && n == 0 {
		err = mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", req.NS)
	}
	if err == nil {
		m.log(op, "configureCollectionBalancing", req.NS, doc(append(set, unset...)...))
		m.balancer.soon()
		m.defragmenter.soon()
	}
	return dst, err
}

// balancingChanges returns the fields of a collection's entry that are to be set and removed.
func balancingChanges(req *msg.ConfigureBalancing) (set, unset []value.Field, err error) {
	if req.ChunkMB != nil {
		switch mb := *req.ChunkMB; {
		case mb == 0:
			unset = append(unset, fld("maxChunkSizeBytes", str("")))
		case mb < 1 || mb > 1024:
			return nil, nil, mongoerr.Newf(mongoerr.InvalidOptions, "Chunk size '%d' MB out of range [1MB, 1GB]", mb)
		default:
			set = append(set, fld("maxChunkSizeBytes", value.NewInt64(mb<<20)))
		}
	}
	if req.Balance != nil {
		set = append(set, fld("noBalance", value.NewBool(!*req.Balance)))
	}
	if req.AutoMerge != nil {
		set = append(set, fld("enableAutoMerge", value.NewBool(*req.AutoMerge)))
	}
	if req.Defragment != nil {
		if *req.Defragment { // a phase that has begun is kept
			set = append(set, fld("defragmentCollection", value.NewBool(true)))
		} else {
			unset = append(unset, fld("defragmentCollection", str("")), fld("defragmentationPhase", str("")))
		}
	}
	if len(set)+len(unset) == 0 {
		err = mongoerr.New(mongoerr.InvalidOptions, "configureCollectionBalancing needs a setting to change")
	}
	return set, unset, err
}
