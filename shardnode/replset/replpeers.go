package replset

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// raftSpec returns the command with which members send raft messages to each other: {_replSetRaft: payload}.
func (r *Membership) raftSpec() command.Spec {
	s := command.Internal(r.runRaft)
	s.Roles = command.Shard | command.Config
	return s
}

// runRaft passes a message to the node's raft. A node that has no configuration yet starts raft first: the primary of a
// set of its name is adding it.
func (r *Membership) runRaft(op *command.Op, m *msg.RaftStep, dst []byte) ([]byte, error) {
	if err := r.needSet(); err != nil {
		return dst, err
	}
	raft := r.Raft()
	if raft == nil {
		var err error
		if raft, err = r.joinRaft(); err != nil {
			return dst, err
		}
	}
	reply, err := raft.Handle(op, m.Payload)
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &msg.RaftStepReply{Payload: reply}), nil
}

func (r *Membership) joinRaft() (*replication.Raft, error) {
	r.change.Lock()
	defer r.change.Unlock()
	if raft := r.Raft(); raft != nil {
		return raft, nil
	}
	if r.Initiated() {
		return nil, mongoerr.Newf(mongoerr.AlreadyInitialized, "%s is the only member of replica set %s", r.conf.Host, r.Name)
	}
	if r.closing.Load() {
		return nil, mongoerr.New(mongoerr.ShutdownInProgress, "the node is shutting down")
	}
	if err := r.startRaft(); err != nil {
		return nil, err
	}
	return r.Raft(), nil
}

// SendRaft sends a payload to another member of a set by ask, and returns the payload of the reply.
func SendRaft(payload []byte, ask func(cmd []byte) ([]byte, error)) ([]byte, error) {
	body, err := ask(msg.Doc(&msg.RaftStep{Payload: payload}))
	if err != nil {
		return nil, err
	}
	var reply msg.RaftStepReply
	err = msg.Parse(body, &reply)
	return reply.Payload, err
}

func setNameMismatch(theirs, ours string) error {
	return mongoerr.Newf(mongoerr.InconsistentReplicaSetNames, "Our set name of %s does not match the set name %s reported by remote node", ours, theirs)
}

// heartbeatSpec returns the command with which replSetInitiate and replSetReconfig check a member before they add
// it.
func (r *Membership) heartbeatSpec() command.Spec {
	s := command.Internal(r.runHeartbeat)
	s.Roles = command.Shard | command.Config
	return s
}

func (r *Membership) runHeartbeat(_ *command.Op, m *msg.Heartbeat, dst []byte) ([]byte, error) {
	if err := r.needSet(); err != nil {
		return dst, err
	}
	if m.Set != r.Name {
		return dst, setNameMismatch(m.Set, r.Name)
	}
	c := r.Config()
	if c != nil && m.CheckEmpty {
		return dst, mongoerr.Newf(mongoerr.AlreadyInitialized, "member is already in a replica set: %s", r.Name)
	}
	st := r.Status()
	dst = value.Append(dst, "state", value.NewInt32(int32(st.Role)))
	dst = value.Append(dst, "set", value.NewString(r.Name))
	dst = value.Append(dst, "term", value.NewInt64(st.Term))
	if c == nil {
		return value.Append(dst, "v", value.NewInt64(-2)), nil
	}
	dst = value.Append(dst, "v", value.NewInt64(c.Version))
	dst = value.Append(dst, "configTerm", value.NewInt64(c.Term))
	dst = value.Append(dst, "primaryId", value.NewInt32(int32(st.Leader)))
	dst = appendOpTime(dst, "opTime", st.Applied.TS, st.Applied.Term)
	return appendOpTime(dst, "durableOpTime", st.Durable.TS, st.Durable.Term), nil
}

// askTimeout is the time after which a member that has not replied counts as down.
const askTimeout = 5 * time.Second

// askMembers checks that the members that a configuration adds to the set are running and do not belong to another set.
// If old is nil, all but this node are new, and each has to answer; otherwise a majority of all voters has to be
// available.
func (r *Membership) askMembers(op *command.Op, what string, c, old *replication.SetConfig) error {
	type answer struct {
		host string
		err  error
	}
	var asked int
	answers := make(chan answer, len(c.Members))
	for i := range c.Members {
		m := &c.Members[i]
		if len(c.Members) == 1 || r.isSelf(m.Host) || old != nil && old.ByHost(m.Host) != nil {
			continue
		}
		if r.opts.Ask == nil {
			return command.NotImplemented("%s: this node has no connections to other members: %s", what, m.Host)
		}
		asked++
		go func() {
			ctx, cancel := context.WithTimeout(op, askTimeout)
			defer cancel()
			_, err := r.opts.Ask(ctx, m.Host, msg.Doc(&msg.Heartbeat{Set: c.Name, CheckEmpty: true}))
			answers <- answer{m.Host, err}
		}()
	}
	var failed []string
	for range asked {
		if a := <-answers; a.err != nil {
			if code := mongoerr.CodeOf(a.err); code == mongoerr.InconsistentReplicaSetNames || code == mongoerr.AlreadyInitialized {
				return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "%s quorum check failed: %s: %s", what, a.host, mongoerr.From(a.err).Message)
			}
			failed = append(failed, fmt.Sprintf("%s failed with %s", a.host, mongoerr.From(a.err).Message))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return mongoerr.Newf(mongoerr.NodeNotFound, "%s quorum check failed because not all proposed set members responded affirmatively: %s",
		what, strings.Join(failed, ", "))
}

// electionTimeout limits the time that a command for the primary waits for an election.
const electionTimeout = 20 * time.Second

// AskPrimary sends a command to the set's primary. It waits for the end of an election if no primary is known, or if the
// member it asked has refused the command because it is no longer primary. A command that may have run is not sent again.
func (r *Membership) AskPrimary(ctx context.Context, cmd []byte) ([]byte, error) {
	if r.state.Load().config == nil || r.opts.Ask == nil {
		return nil, mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
	}
	until := time.Now().Add(electionTimeout)
	for try := 0; ; try++ {
		reply, err := r.askLeader(ctx, cmd)
		if !noPrimary(err) || time.Now().After(until) {
			return reply, err
		}
		if werr := cluster.Backoff(ctx, try); werr != nil {
			return nil, werr
		}
	}
}

// noPrimary reports whether a member refused a command because it is not primary.
func noPrimary(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary:
		return true
	}
	return false
}

func (r *Membership) askLeader(ctx context.Context, cmd []byte) ([]byte, error) {
	s := r.state.Load()
	m := s.config.Member(s.leader)
	if m == nil {
		return nil, mongoerr.New(mongoerr.NotWritablePrimary, "not primary, and no primary is known")
	}
	return r.opts.Ask(ctx, m.Host, cmd)
}

// AskForNoop requests a no-op write at ts or later from the primary. If the primary cannot be reached, the reader waits for the next
// write.
func (r *Membership) AskForNoop(ctx context.Context, ts storage.Timestamp) {
	s := r.state.Load()
	if s.config == nil || r.opts.Ask == nil {
		return
	}
	m := s.config.Member(s.leader)
	if m == nil {
		return
	}
	data := value.Doc(value.F("msg", value.NewString("noop write for afterClusterTime read concern")))
	_, _ = r.opts.Ask(ctx, m.Host, msg.Doc(&msg.AppendOplogNote{Data: data, MaxClusterTime: uint64(ts)},
		value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewInt32(1)))))))
}
