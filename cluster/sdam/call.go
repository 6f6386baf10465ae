package sdam

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxRetries limits how often a call that may have run is sent again after a failure of its member.
const maxRetries = 3

// Call implements cluster.Peer by calling the primary.
func (s *Set) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	out, _, err := s.CallOn(ctx, nil, m, dst)
	return out, err
}

// CallOn implements cluster.SetPeer.
func (s *Set) CallOn(ctx context.Context, p *cluster.ReadPreference, m *wire.Message, dst []byte) ([]byte, cluster.Peer, error) {
	var tries attempts
	for {
		srv, err := s.selectServer(ctx, p, tries.failed)
		if err != nil {
			if tries.last != nil && mongoerr.CodeOf(err) == mongoerr.FailedToSatisfyReadPreference {
				err = tries.last
			}
			return dst, nil, err
		}
		msg := m
		if p.OrPrimary() != cluster.ReadPrimary {
			msg = withPreference(m, p)
		}
		out, sent, slow, err := s.call(ctx, p, tries.run, srv, msg, dst)
		if slow {
			if !repeatable(m) || !tries.mayRun() {
				return dst, nil, err
			}
			tries.failed, tries.last = srv, err
			continue
		}
		var reply []byte
		if err == nil {
			reply = out[len(dst):]
			if err = memberError(reply); err == nil {
				return out, srv.member, nil
			}
		}
		if ctx.Err() != nil || mongoerr.CodeOf(err) == mongoerr.PooledConnectionAcquisitionExceededTimeLimit {
			return answer(ctx, out, reply, dst, err) // the caller's time is over, or no connection became free: this says nothing about the member
		}
		s.failed(srv, reply, err)
		again := false
		if reply == nil && !sent || reply != nil && refused(reply, err) {
			again = tries.untouched(ctx, s.timing().Select)
		} else {
			again = repeatable(m) && tries.mayRun()
		}
		if !again {
			return answer(ctx, out, reply, dst, err)
		}
		tries.failed, tries.last = srv, err
	}
}

// attempts counts how often one call failed.
type attempts struct {
	run    int // attempts that may have run
	none   int // attempts that did not run
	since  time.Time
	failed *Server // the member of the last attempt
	last   error   // its error, which is more useful than the one that no member can be selected
}

// mayRun counts an attempt that may have run and reports whether another is due.
func (a *attempts) mayRun() bool {
	a.run++
	return a.run <= maxRetries
}

// untouched counts an attempt that had no effect and reports whether to try again, for as long as a call waits for
// a primary. A member that steps down may refuse calls before it tells its monitor, so these attempts follow each
// other at growing intervals.
func (a *attempts) untouched(ctx context.Context, limit time.Duration) bool {
	if a.none++; a.none == 1 {
		a.since = time.Now()
		return true
	}
	return time.Since(a.since) < limit && cluster.Backoff(ctx, a.none-2) == nil
}

// call sends to one member. slow means that it took longer than the preference's TryNext: another member may be
// faster, and the outcome here is unknown.
func (s *Set) call(ctx context.Context, p *cluster.ReadPreference, try int, srv *Server, m *wire.Message, dst []byte) (out []byte, sent, slow bool, err error) {
	if p == nil || p.TryNext == 0 {
		out, sent, err = s.net.Call(ctx, srv.Host, m, dst)
		return out, sent, false, err
	}
	limit := p.TryNext << try
	limited, cancel := context.WithTimeoutCause(ctx, limit, mongoerr.Newf(mongoerr.NetworkTimeout, "%s did not answer within %v", srv.Host, limit))
	defer cancel()
	out, sent, err = s.net.Call(limited, srv.Host, m, dst)
	if limited.Err() != nil && ctx.Err() == nil && (err != nil || !lookup(out[len(dst):], "ok").Truthy()) {
		return dst, sent, true, context.Cause(limited)
	}
	return out, sent, false, err
}

// answer returns a failed call's reply if there is one, else its error. If the caller's time is over, that is why the call failed, not that a member could not be reached
// or was not primary in the last attempt: a router would make HostUnreachable of it.
func answer(ctx context.Context, out, reply, dst []byte, err error) ([]byte, cluster.Peer, error) {
	switch over := ctx.Err() != nil; {
	case over && (reply == nil && cluster.Retryable(err) || reply != nil && refused(reply, err)):
		return dst, nil, contextError(ctx)
	case reply != nil:
		return out, nil, nil
	}
	return dst, nil, err
}

// Call sends to this member whatever its role is now, as a cursor needs.
func (m *member) Call(ctx context.Context, msg *wire.Message, dst []byte) ([]byte, error) {
	out, _, err := m.set.net.Call(ctx, m.host, msg, dst)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// Host returns the member's address.
func (m *member) Host() string { return m.host }

// memberError returns the error of a reply that shows that its member is not, or no longer, the right one to call.
func memberError(reply []byte) error {
	failed := true
	var code value.Value
	for it := value.Walk(reply); ; {
		k, v, more := it.Next()
		if !more {
			break
		}
		switch string(k) {
		case "ok":
			failed = !v.Truthy()
		case "code":
			code = v
		case "writeConcernError":
			// The write has been made, and its client must learn whether a majority has it: another member may know.
			if e := stateError(value.Lookup(v.Doc(), "code"), "the write concern was not awaited to its end"); e != nil {
				return e
			}
		}
	}
	if failed && stateError(code, "") != nil {
		return cluster.ReplyError(reply)
	}
	return nil
}

// stateError returns an error if code reports a change of the member's state.
func stateError(code value.Value, text string) error {
	if c, _ := code.AsInt64(); mongoerr.Code(c).In(mongoerr.CategoryNotPrimary | mongoerr.CategoryShutdown) {
		return mongoerr.New(mongoerr.Code(c), text)
	}
	return nil
}

func lookup(doc []byte, key string) value.Value { return value.Lookup(doc, key) }

// refused reports whether a reply, whose error is err, says that the member did not start the command.
func refused(reply []byte, err error) bool {
	if lookup(reply, "ok").Truthy() {
		return false // the write concern failed
	}
	switch mongoerr.CodeOf(err) {
	case mongoerr.NotWritablePrimary, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary:
		return true
	}
	return false
}

// withPreference returns a copy of a message with the sender's read preference, unless it has one: a
// secondary refuses messages without one.
func withPreference(m *wire.Message, p *cluster.ReadPreference) *wire.Message {
	if !lookup(m.Body, "$readPreference").IsMissing() {
		return m
	}
	out := *m
	b := append(make([]byte, 0, len(m.Body)+64), m.Body[:len(m.Body)-1]...)
	b = value.Append(b, "$readPreference", value.NewDocument(p.Doc()))
	out.Body = value.End(b, 0)
	return &out
}

// idempotent are the commands that have the same effect whether they run once or twice: reads, and catalog
// commands that succeed if their effect is already in place. Not among them are getMore, whose cursor only one
// member has; renameCollection and dropIndexes, which find nothing the second time; drop and dropDatabase, which may find what another client has created since; and the steps of migrations,
// which their senders repeat.
var idempotent = words(`
	find aggregate count distinct listCollections listIndexes listDatabases collStats dbStats dataSize explain dbHash
	hello isMaster ping getParameter serverStatus buildInfo killCursors getClusterParameter validate getDefaultRWConcern filemd5
	planCacheListFilters getShardVersion getDatabaseVersion splitVector top validateDBMetadata connectionStatus
	create createIndexes collMod
	setClusterParameter setDefaultRWConcern setFeatureCompatibilityVersion setUserWriteBlockMode
	_configsvrCommitChunkMigration _configsvrBalancerStatus _configsvrEnsureChunkVersionIsGreaterThan _configsvrCreateDatabase
	_configsvrShardCollection _configsvrDropCollection _configsvrRenameCollectionMetadata _configsvrRemoveDatabase _configsvrAddShard _configsvrAddShardToZone
	_configsvrRemoveShardFromZone _configsvrUpdateZoneKeyRange _configsvrBalancerStart _configsvrBalancerStop
	_configsvrBalancerCollectionStatus _configsvrClearJumboFlag _configsvrTransitionFromDedicatedConfigServer _shardsvrSetClusterParameter _shardsvrSetUserWriteBlockMode _shardsvrCheckMetadataConsistencyParticipant
	_configsvrPauseMigrations _configsvrResumeMigrations
	_flushRoutingTableCacheUpdates _flushRoutingTableCacheUpdatesWithWriteConcern _flushDatabaseCacheUpdatesWithWriteConcern _shardsvrCreateCollectionParticipant
	_shardsvrDropCollectionParticipant _shardsvrDropDatabaseParticipant _shardsvrParticipantBlock _shardsvrEndLeftCriticalSections
	_shardsvrMovePrimaryStore _shardsvrMovePrimaryForget _shardsvrAdoptSessions _configsvrCommitMovePrimary
	_shardsvrRenameCollectionParticipant _configsvrRemoveCollection _configsvrReplaceUnsplittableCollection _shardsvrConvertToCappedParticipant _configsvrSetAllowMigrations _holdsCriticalSection`)

// decisions end a transaction for good: asking again returns its outcome.
var decisions = words("commitTransaction abortTransaction coordinateCommitTransaction")

func words(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(text) {
		set[w] = true
	}
	return set
}

// repeatable reports whether a command may be sent again although it may have run: reads, retryable writes, and
// commands between nodes that are designed for it. A request for a DDL coordinator is sent again by its router, which marks it,
// and a command that a coordinator's run sends to a shard by the run, which has to know whether the shard may have executed it.
func repeatable(m *wire.Message) bool {
	name := string(m.CommandName())
	if !lookup(m.Body, "autocommit").IsMissing() {
		return decisions[name] // a statement of a transaction is not repeated: its client starts the transaction again
	}
	if !lookup(m.Body, "txnNumber").IsMissing() {
		return true
	}
	if !lookup(m.Body, msg.RequestID).IsMissing() || !lookup(m.Body, msg.RunArgument).IsMissing() {
		return false
	}
	return idempotent[name] && !(name == "aggregate" && writes(m.Body))
}

// writes reports whether a pipeline ends in $out or $merge.
func writes(body []byte) bool {
	last := value.Value{}
	for it := value.Walk(lookup(body, "pipeline").Doc()); ; {
		_, v, ok := it.Next()
		if !ok {
			break
		}
		last = v
	}
	it := value.Walk(last.Doc())
	k, _, _ := it.Next()
	return string(k) == "$out" || string(k) == "$merge"
}

// contextError returns why a context ended.
func contextError(ctx context.Context) error {
	var own *mongoerr.Error
	if errors.As(context.Cause(ctx), &own) {
		return own
	}
	if errors.As(ctx.Err(), &own) {
		return own
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
	}
	return mongoerr.New(mongoerr.Interrupted, "operation was interrupted")
}
