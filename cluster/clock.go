package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Timestamps are uint64: seconds in the high half, an increment in the low one.

// Timestamp joins seconds and increment.
func Timestamp(sec, inc uint32) uint64 { return uint64(sec)<<32 | uint64(inc) }

// VectorTime is one reading of all components.
type VectorTime struct{ Cluster, Config, Topology uint64 }

// VectorClock holds the three logical times of a node. Ticking is for data nodes; routers only advance.
//
// Which messages carry which time: $clusterTime is in every request and reply; $configTime and $topologyTime are
// in those between nodes. Without the first, causal reads break; without the second, a node may read an older
// routing table than one that it already knows of; without the third, it may not notice that shards were added or
// removed.
type VectorClock struct {
	cluster, config, topology atomic.Uint64
	maxDriftSecs              atomic.Int64
	wall                      func() time.Time
	keys                      atomic.Pointer[KeyRing]
	signed                    atomic.Pointer[signature]
	sources                   atomic.Pointer[[]func() uint64] // sources of the config time
	moved                     struct {
		sync.Mutex
		topology chan struct{} // closed when the topology time advances; nil while nobody waits for that
	}
}

// DefaultMaxDriftSecs is maxAcceptableLogicalClockDriftSecs: one year.
const DefaultMaxDriftSecs = 31536000

// NewVectorClock makes a clock on a wall clock (nil: the machine's).
func NewVectorClock(wall func() time.Time) *VectorClock {
	if wall == nil {
		wall = time.Now
	}
	c := &VectorClock{wall: wall}
	c.maxDriftSecs.Store(DefaultMaxDriftSecs)
	return c
}

// UseKeys sets the keys that sign and verify times; before it is called, times are sent with an empty signature.
func (c *VectorClock) UseKeys(k *KeyRing) { c.keys.Store(k) }

// Keys returns the ring in use, nil before UseKeys.
func (c *VectorClock) Keys() *KeyRing { return c.keys.Load() }

// SetMaxDrift changes how far a received time may be ahead of the wall clock.
func (c *VectorClock) SetMaxDrift(secs int64) { c.maxDriftSecs.Store(secs) }

// FromConfigServer makes this the clock of a config server: source returns the config time, the newest time that a
// majority of the set has. Several members of the set may share a clock.
func (c *VectorClock) FromConfigServer(source func() uint64) {
	for {
		old := c.sources.Load()
		next := []func() uint64{source}
		if old != nil {
			next = append(slices.Clone(*old), source)
		}
		if c.sources.CompareAndSwap(old, &next) {
			return
		}
	}
}

// Now reads all components such that Cluster >= Config >= Topology.
//
// The invariant holds although no lock covers the three: a component is raised only after those above it
// (AdvanceTopology, AdvanceConfig), and read only before them. Hazard: if a node passed on a topology time above its
// config time, others would look for a new shard in a catalog that need not have it yet, and take the result for the
// state at that time. Rejected: a mutex around the three. Every request and every reply reads the clock.
func (c *VectorClock) Now() VectorTime {
	// Reading upwards preserves the order: each later read can only return a larger component. A topology time
	// read here was written by a catalog change that the config time read next also covers.
	t := c.topology.Load()
	if from := c.sources.Load(); from != nil {
		for _, source := range *from {
			c.AdvanceConfig(source())
		}
	}
	f := c.config.Load()
	return VectorTime{Topology: t, Config: f, Cluster: c.cluster.Load()}
}

// ClusterTime returns only the cluster time.
func (c *VectorClock) ClusterTime() uint64 { return c.cluster.Load() }

// Topology returns only the topology time.
func (c *VectorClock) Topology() uint64 { return c.topology.Load() }

// Tick reserves n consecutive cluster times, as an oplog needs for n entries, and returns the first.
func (c *VectorClock) Tick(n uint32) uint64 {
	if n == 0 {
		n = 1
	}
	for {
		old := c.cluster.Load()
		first := old + 1
		if now := uint64(c.wall().Unix()); now > old>>32 {
			first = now<<32 | 1
		} else if uint64(uint32(old))+uint64(n) > 1<<31-1 {
			first = (old>>32+1)<<32 | 1 // the increment must stay a positive int32 for all drivers
		}
		if c.cluster.CompareAndSwap(old, first+uint64(n)-1) {
			return first
		}
	}
}

// AdvanceCluster advances the cluster time to a value from a trusted source (recovery, another node's reply).
func (c *VectorClock) AdvanceCluster(t uint64) { advance(&c.cluster, t) }

// AdvanceConfig and AdvanceTopology do the same for the others, keeping the order between them.
func (c *VectorClock) AdvanceConfig(t uint64) {
	advance(&c.cluster, t)
	advance(&c.config, t)
}

func (c *VectorClock) AdvanceTopology(t uint64) {
	c.AdvanceConfig(t)
	if !advance(&c.topology, t) {
		return
	}
	c.moved.Lock()
	defer c.moved.Unlock()
	if c.moved.topology != nil {
		close(c.moved.topology)
		c.moved.topology = nil
	}
}

// TopologyMoved returns a channel that is closed when the topology time next advances. It has to be called before the time
// is read.
func (c *VectorClock) TopologyMoved() <-chan struct{} {
	c.moved.Lock()
	defer c.moved.Unlock()
	if c.moved.topology == nil {
		c.moved.topology = make(chan struct{})
	}
	return c.moved.topology
}

// advance raises a to t, and reports whether it was lower.
func advance(a *atomic.Uint64, t uint64) bool {
	for {
		old := a.Load()
		if t <= old {
			return false
		}
		if a.CompareAndSwap(old, t) {
			return true
		}
	}
}

// GossipIn adopts the times of a request or reply. clusterTime is the $clusterTime document, nil if there was
// none. trusted is true for other nodes of the cluster, whose times need no signature.
//
// Invariant: the clock never runs backwards, and never further ahead of the wall clock than the accepted drift. Hazard:
// a time near the end of the range would permanently exhaust the oplog's timestamps on every node that it reaches. A
// client's time is therefore accepted only with a signature of the cluster, and no time beyond the drift. Rejected:
// checking every signature. A time that the clock has already passed changes nothing, and all but the first of many
// clients that send the same time are in that case.
func (c *VectorClock) GossipIn(ctx context.Context, clusterTime []byte, trusted bool) error {
	if clusterTime == nil {
		return nil
	}
	t := value.Lookup(clusterTime, "clusterTime")
	if t.T != value.Timestamp {
		if t.IsMissing() {
			return mongoerr.New(mongoerr.NoSuchKey, "Missing expected field \"clusterTime\"")
		}
		return mongoerr.Newf(mongoerr.TypeMismatch, "\"clusterTime\" had the wrong type. Expected timestamp, found %s", t.T.Name())
	}
	when := t.TimestampU64()
	if when <= c.cluster.Load() {
		return nil // nothing to adopt, so nothing to check: the common case costs one comparison
	}
	if !trusted {
		if err := c.verify(ctx, when, value.Lookup(clusterTime, "signature")); err != nil {
			return err
		}
	}
	if limit := c.wall().Unix() + c.maxDriftSecs.Load(); int64(when>>32) > limit {
		return mongoerr.Newf(mongoerr.ClusterTimeFailsRateLimiter,
			"New cluster time, %d, is too far from this node's wall clock time, %d.", when>>32, c.wall().Unix())
	}
	c.AdvanceCluster(when)
	return nil
}

// GossipInPlain adopts $configTime and $topologyTime of a message between nodes. Times too far in the future are ignored.
func (c *VectorClock) GossipInPlain(config, topology uint64) {
	limit := uint64(c.wall().Unix()+c.maxDriftSecs.Load()) << 32
	if config > limit || topology > limit {
		return
	}
	c.AdvanceConfig(config)
	c.AdvanceTopology(topology)
}

// AppendClusterTime adds a signed $clusterTime element.
func (c *VectorClock) AppendClusterTime(dst []byte) []byte {
	return c.appendSigned(dst, c.cluster.Load())
}

// AppendSignedTime is AppendClusterTime for clients, which pass the time on to other nodes: nothing is appended as
// long as there is no key to sign it with, since those nodes would refuse it.
func (c *VectorClock) AppendSignedTime(dst []byte) []byte {
	t := c.cluster.Load()
	if c.keys.Load() != nil && c.signature(t) == &unsigned {
		return dst
	}
	return c.appendSigned(dst, t)
}

// AppendPlain adds $configTime and $topologyTime, for messages between nodes; nothing in a set that belongs to no cluster.
func (c *VectorClock) AppendPlain(dst []byte) []byte {
	now := c.Now()
	if now.Config == 0 {
		return dst
	}
	dst = value.Append(dst, "$configTime", value.NewTimestampU64(now.Config))
	return value.Append(dst, "$topologyTime", value.NewTimestampU64(now.Topology))
}

// plainTail is the output of AppendPlain at the end of a reply, with zero times.
var plainTail = append(value.Append(value.Append(nil, "$configTime", value.NewTimestampU64(0)), "$topologyTime", value.NewTimestampU64(0)), 0)

// TakePlain adopts the times at the end of a reply, and returns the reply without them: they must not be passed
// on. It modifies the reply in place.
func (c *VectorClock) TakePlain(reply []byte) []byte {
	at := len(reply) - len(plainTail)
	if at < 4 {
		return reply
	}
	// Each element is its type and name, then eight bytes of time.
	const config, topology, second = 13, 36, 21
	tail := reply[at:]
	if !bytes.Equal(tail[:config], plainTail[:config]) || !bytes.Equal(tail[second:topology], plainTail[second:topology]) {
		return reply
	}
	c.GossipInPlain(binary.LittleEndian.Uint64(tail[config:]), binary.LittleEndian.Uint64(tail[topology:]))
	reply = append(reply[:at], 0)
	binary.LittleEndian.PutUint32(reply, uint32(len(reply)))
	return reply
}

func (c *VectorClock) appendSigned(dst []byte, t uint64) []byte {
	sig := c.signature(t)
	dst, outer := value.BeginKey(dst, value.Document, "$clusterTime")
	dst = value.Append(dst, "clusterTime", value.NewTimestampU64(t))
	dst, inner := value.BeginKey(dst, value.Document, "signature")
	dst = value.Append(dst, "hash", value.NewBinary(0, sig.hash[:]))
	dst = value.Append(dst, "keyId", value.NewInt64(sig.keyID))
	dst = value.End(dst, inner)
	return value.End(dst, outer)
}

// keyLookupTimeout bounds how long a request with an unknown signing key waits for the keys to be read.
const keyLookupTimeout = 10 * time.Second

// Advance is GossipIn for the command pipeline.
func (c *VectorClock) Advance(clusterTime []byte, trusted bool) error {
	if t := value.Lookup(clusterTime, "clusterTime"); t.T == value.Timestamp && t.TimestampU64() <= c.cluster.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), keyLookupTimeout)
	defer cancel()
	return c.GossipIn(ctx, clusterTime, trusted)
}

// CheckRequested returns an error if a request asks a node to wait for a time (afterClusterTime, atClusterTime, maxClusterTime)
// that no operation can have had yet. what is the option's name in the error.
//
// Invariant: a read moves the clock no further than the next write would. Hazard: such a time has no signature, and a node
// that wrote a no-op at it could run out of timestamps for later writes. A time within the current second is accepted although
// this node may not know it: until there are signing keys, replies have no $clusterTime that a client could pass on.
func (c *VectorClock) CheckRequested(what string, t uint64) error {
	now := c.cluster.Load()
	if t <= now {
		return nil
	}
	const most = 1 << 24 // more than the operations of a second
	if int64(t>>32) <= c.wall().Unix() && uint32(t) < most {
		return nil
	}
	return mongoerr.Newf(mongoerr.InvalidOptions, "%s value must not be greater than the current clusterTime. Requested clusterTime: { ts: %s }; current clusterTime: { ts: %s }",
		what, TimestampString(t), TimestampString(now))
}

// AppendTimes adds $clusterTime and operationTime to a reply; an opTime of 0 means the clock's own time.
func (c *VectorClock) AppendTimes(dst []byte, opTime uint64) []byte {
	now := c.cluster.Load()
	if opTime == 0 {
		opTime = now
	}
	dst = c.appendSigned(dst, max(now, opTime))
	return value.Append(dst, "operationTime", value.NewTimestampU64(opTime))
}

// TimestampString prints a time as the shell does.
func TimestampString(t uint64) string { return fmt.Sprintf("Timestamp(%d, %d)", t>>32, uint32(t)) }
