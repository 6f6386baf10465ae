package shardnode

import (
	"bytes"
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/replset"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ReplOptions has what the process provides to a member of a set.
type ReplOptions = replset.Options

// SendRaft sends a payload to another member of a set by ask, and returns the payload of the reply.
func SendRaft(payload []byte, ask func(cmd []byte) ([]byte, error)) ([]byte, error) {
	return replset.SendRaft(payload, ask)
}

// joinSet makes the node's membership of its set, and registers the commands of replica sets.
func (n *Node) joinSet(name string, topo *command.Topology, member *replication.Member, o ReplOptions) *replset.Membership {
	n.Repl = replset.New(memberNode{n}, replset.Config{
		Name: name, Host: n.Host, ConfigServer: n.ConfigServer, Engine: n.Engine, Member: member, Topology: topo, Service: n.Service,
		Services: n.Services, Params: n.Params, Points: n.Points, Logger: n.Logger, Now: n.now, NewID: cluster.NewObjectID,
	}, o)
	n.Service.Table.Add(n.Repl.Specs()...)
	return n.Repl
}

// memberNode implements what the membership of a set needs from the node.
type memberNode struct{ n *Node }

func (m memberNode) EnsureSystem(ctx context.Context) error { return m.n.ensureSystem(ctx) }

func (m memberNode) ReadDoc(ns string, id value.Value) ([]byte, error) {
	return m.n.Docs.Get(ns, id)
}

func (m memberNode) WriteDoc(ctx context.Context, ns string, doc []byte) error {
	return m.n.Docs.WriteWith(ctx, replication.WriteConcern{W: 1, J: true}, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := statedoc.CollectionFor(s, u, ns)
		if err != nil {
			return err
		}
		return statedoc.PutIn(s, u, c, doc)
	})
}

func (m memberNode) Warn(msg string, err error) { m.n.warn(msg, err) }

func (m memberNode) Fatal(err error) {
	if m.n.Fatal != nil {
		m.n.Fatal(err)
	}
}

// noteSpec returns the command with which other nodes make this one write an oplog entry at or after a time.
func (n *Node) noteSpec() command.Spec {
	s := command.Internal(n.runOplogNote)
	s.Internal, s.WriteConcern = false, true // clients may send it, too
	s.Roles, s.ArgTypes = command.Shard|command.Config, command.TAny
	return s
}

// lone reports whether the node is a standalone server.
func (n *Node) lone() bool { return n.Repl == nil || n.Repl.Name == "" }

// runOplogNote writes a noop entry.
func (n *Node) runOplogNote(op *command.Op, m *msg.AppendOplogNote, dst []byte) ([]byte, error) {
	if err := n.Repl.NeedConfig(); err != nil {
		return dst, err
	}
	w, err := n.writes.Begin(op)
	if err != nil {
		return dst, err
	}
	if m.MaxClusterTime != 0 {
		if uint64(n.Engine.Visible()) >= m.MaxClusterTime {
			return dst, mongoerr.New(mongoerr.StaleClusterTime, "Requested maxClusterTime is older than the last write")
		}
		if s, ok := n.Set.(clockedSet); ok {
			if err := s.clock.CheckRequested("maxClusterTime", m.MaxClusterTime); err != nil {
				return dst, err
			}
		}
		n.Engine.AdvanceClock(storage.Timestamp(m.MaxClusterTime))
	}
	u := w.Unit(nil)
	defer u.Rollback()
	u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: bytes.Clone(m.Data)})
	return dst, w.Commit(u, w.Concern)
}
