package cluster

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ConfigServer is the config server's set as routers and shards see it. Commands go to its primary; the sharding
// catalog is read from the nearest member, in a state that is not older than the clock's config time. A routing
// table is therefore never older than what its reader already knows of, and reads do not wait for elections.
//
// A shard must not read an older table than its predecessors did, even in a process that has just started or
// become primary and knows no time yet: its first read goes to the primary, linearizably, and yields the config
// time.
type ConfigServer struct {
	SetPeer
	clock           *VectorClock
	wanted, settled atomic.Int64 // how often a new config time was requested, and was obtained
}

// NewConfigServer returns the ConfigServer for p, the config server's set. With first, the first read goes to the
// primary.
func NewConfigServer(p SetPeer, clock *VectorClock, first bool) *ConfigServer {
	c := &ConfigServer{SetPeer: p, clock: clock}
	if first {
		c.wanted.Store(1)
	}
	return c
}

// Recheck makes the next read go to the primary, like the first one: other nodes may know of changes that this
// node does not.
func (c *ConfigServer) Recheck() {
	if c.wanted.Load() > 0 {
		c.wanted.Add(1)
	}
}

// ConnString returns the set's connection string as its primary lists it; empty before one was seen.
func (c *ConfigServer) ConnString() string {
	if f, ok := c.SetPeer.(follower); ok {
		return f.ConnString()
	}
	return ""
}

// Hosts returns the addresses at which members may be reached, and Seed adds to them.
func (c *ConfigServer) Hosts() []string {
	if f, ok := c.SetPeer.(follower); ok {
		return f.Hosts()
	}
	return nil
}

// Seed implements part of the peer interface that a Registry requires.
func (c *ConfigServer) Seed(hosts []string) {
	if f, ok := c.SetPeer.(follower); ok {
		f.Seed(hosts)
	}
}

// soonest tries another member if one is slow: it may be paused.
var soonest = &ReadPreference{Mode: ReadNearest, TryNext: time.Second}

const (
	configTries        = 3                // a read that loses its member midway starts again
	configBatchTimeout = 10 * time.Second // for a further batch, which only the member with the cursor has
)

// FindConfig is FindAll on the sharding catalog. The config server itself reads its own.
func FindConfig(ctx context.Context, p Peer, cmd []byte) ([][]byte, error) {
	c, ok := p.(*ConfigServer)
	if !ok {
		return FindAll(ctx, p, "config", cmd)
	}
	// All operations that need the same table wait for this one read.
	return c.again(AtOnce(ctx), func(ctx context.Context) ([][]byte, error) { return c.find(ctx, cmd) })
}

// again repeats a read that loses its member midway.
func (c *ConfigServer) again(ctx context.Context, read func(context.Context) ([][]byte, error)) ([][]byte, error) {
	for try := 1; ; try++ {
		docs, err := read(ctx)
		if err == nil || ctx.Err() != nil || try == configTries || !Retryable(err) && mongoerr.CodeOf(err) != mongoerr.CursorNotFound {
			return docs, err
		}
	}
}

// findPlacement reads documents of the sharding catalog that have to be at least as new as every placement that this process knows of. A deposed
// primary of the config server that is not aware of it yet would return the previous table, and a shard that has given a range away would accept
// writes to it again.
func findPlacement(ctx context.Context, p Peer, f Find) ([][]byte, error) {
	c, ok := p.(*ConfigServer)
	if !ok {
		return FindLinearizable(ctx, p, f)
	}
	return FindConfig(ctx, c, f.Doc()) // the peer tracks the config time, so any member that has reached it can be read
}

func (c *ConfigServer) find(ctx context.Context, cmd []byte) ([][]byte, error) {
	pref, wanted := soonest, c.wanted.Load()
	concern := []value.Field{value.F("level", value.NewString("majority"))}
	if c.settled.Load() < wanted {
		pref, concern[0].Val = nil, value.NewString("linearizable")
	} else if t := c.clock.Now().Config; t != 0 {
		concern = append(concern, value.F("afterClusterTime", value.NewTimestampU64(t)))
	}
	docs, err := c.fetch(ctx, pref, withConcern(cmd, concern...))
	if err == nil && pref == nil {
		c.settled.Store(wanted)
	}
	return docs, err
}

// findConfigAt reads documents of the sharding catalog as they were at a cluster time, from any member: what has a majority does not change.
func findConfigAt(ctx context.Context, p Peer, f Find, at uint64) ([][]byte, error) {
	cmd := withConcern(f.Doc(), value.F("level", value.NewString("snapshot")), value.F("atClusterTime", value.NewTimestampU64(at)))
	c, ok := p.(*ConfigServer)
	if !ok {
		return FindAll(ctx, p, "config", cmd)
	}
	return c.again(AtOnce(ctx), func(ctx context.Context) ([][]byte, error) { return c.fetch(ctx, soonest, cmd) })
}

func withConcern(cmd []byte, concern ...value.Field) []byte {
	return value.End(value.Append(append([]byte(nil), cmd[:len(cmd)-1]...), "readConcern", value.NewDocument(value.Doc(concern...))), 0)
}

// fetch runs a find and fetches all of its cursor.
func (c *ConfigServer) fetch(ctx context.Context, pref *ReadPreference, cmd []byte) ([][]byte, error) {
	var at Peer // the member that has the cursor
	return fetchAll("config", cmd, func(cmd []byte) (reply []byte, err error) {
		m := &wire.Message{OpCode: wire.OpMsg, Body: cmd}
		if at == nil {
			reply, at, err = c.CallOn(ctx, pref, m, nil)
		} else {
			late := mongoerr.New(mongoerr.NetworkTimeout, "a member of the config server makes no progress with the request")
			limited, cancel := context.WithTimeoutCause(ctx, configBatchTimeout, late)
			defer cancel()
			reply, err = at.Call(limited, m, nil)
		}
		if err != nil {
			return nil, err
		}
		return reply, ReplyError(reply)
	})
}
