package router

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// commitType is one way of committing a transaction.
type commitType int

const (
	noShards commitType = iota
	singleShard
	singleWriteShard
	readOnly
	twoPhaseCommit
	recoverWithToken
	commitTypes
)

var commitNames = [commitTypes]string{"noShards", "singleShard", "singleWriteShard", "readOnly", "twoPhaseCommit", "recoverWithToken"}

// txnStats is the section transactions of a router's serverStatus.
type txnStats struct {
	open, active, started, committed, aborted atomic.Int64
	contacted, targeted, atCommit             atomic.Int64
	commits                                   [commitTypes]struct{ initiated, successful, micros atomic.Int64 }
	causes                                    struct {
		sync.Mutex
		n map[string]int64
	}
}

// txnPhase is the phase under which the statistics count a transaction. It belongs to the holder of the session.
type txnPhase uint8

const (
	txnUncounted txnPhase = iota // begun through another router
	txnOpen
	txnCommitting
	txnDone
)

func (s *txnStats) begin(t *transaction) {
	t.phase = txnOpen
	s.started.Add(1)
	s.open.Add(1)
}

// abort counts the end of a transaction that is not committed.
func (s *txnStats) abort(t *transaction, cause string) {
	if t.phase == txnUncounted || t.phase == txnDone {
		return
	}
	if t.phase == txnOpen {
		s.open.Add(-1)
	}
	t.phase = txnDone
	s.aborted.Add(1)
	s.causes.Lock()
	defer s.causes.Unlock()
	if s.causes.n == nil {
		s.causes.n = map[string]int64{}
	}
	s.causes.n[cause]++
}

// abortCause names what ended a transaction: the error of one of its commands.
func abortCause(err error) string {
	if err == nil {
		return "abort"
	}
	return mongoerr.CodeOf(err).Name()
}

// typeOf returns how a transaction with these participants commits.
func typeOf(parts []*participant) commitType {
	writers := 0
	for _, p := range parts {
		if p.wrote {
			writers++
		}
	}
	switch {
	case len(parts) == 0:
		return noShards
	case len(parts) == 1:
		return singleShard
	case writers == 0:
		return readOnly
	case writers == 1:
		return singleWriteShard
	}
	return twoPhaseCommit
}

// commit runs one attempt to commit a transaction and counts it.
func (s *txnStats) commit(op *command.Op, t *transaction, concern []byte) error {
	kind, c := recoverWithToken, &s.commits[recoverWithToken]
	if t.phase != txnUncounted {
		parts := t.parts()
		kind = typeOf(parts)
		if c = &s.commits[kind]; t.phase == txnOpen {
			t.phase = txnCommitting
			s.open.Add(-1)
			s.atCommit.Add(int64(len(parts)))
			c.initiated.Add(1)
		}
	} else {
		c.initiated.Add(1)
	}
	start := time.Now()
	err := t.commit(op, concern)
	switch {
	case err == nil && t.phase != txnDone:
		t.phase = txnDone
		s.committed.Add(1)
		c.successful.Add(1)
		c.micros.Add(time.Since(start).Microseconds())
	case mongoerr.CodeOf(err) == mongoerr.NoSuchTransaction:
		s.abort(t, abortCause(err))
	}
	return err
}

func (s *txnStats) doc() []byte {
	i64 := func(name string, n int64) value.Field { return value.F(name, value.NewInt64(n)) }
	open, active := s.open.Load(), s.active.Load()
	var causes, types []value.Field
	s.causes.Lock()
	for name, n := range s.causes.n {
		causes = append(causes, i64(name, n))
	}
	s.causes.Unlock()
	for i, name := range commitNames {
		c := &s.commits[i]
		types = append(types, value.F(name, value.NewDocument(value.Doc(i64("initiated", c.initiated.Load()), i64("successful", c.successful.Load()),
			i64("successfulDurationMicros", c.micros.Load())))))
	}
	return value.Doc(i64("currentOpen", open), i64("currentActive", min(active, open)), i64("currentInactive", max(open-active, 0)),
		i64("totalStarted", s.started.Load()), i64("totalCommitted", s.committed.Load()), i64("totalAborted", s.aborted.Load()),
		value.F("abortCause", value.NewDocument(value.Doc(causes...))), i64("totalContactedParticipants", s.contacted.Load()),
		i64("totalParticipantsAtCommit", s.atCommit.Load()), i64("totalRequestsTargeted", s.targeted.Load()),
		value.F("commitTypes", value.NewDocument(value.Doc(types...))))
}

// shardingStatus returns the section shardingStatistics of a router's serverStatus.
func (r *Router) shardingStatus() []byte {
	return value.Doc(value.F("numHostsTargeted", value.NewDocument(r.targets.doc())), value.F("catalogCache", value.NewDocument(r.Catalog.Stats())))
}

// targetStats is shardingStatistics.numHostsTargeted: it counts commands by the number of shards that they were sent to.
type targetStats [len(targetedCommands)]struct{ all, many, one, unsharded atomic.Int64 }

var targetedCommands = [...]string{"find", "insert", "update", "delete", "aggregate"}

// note counts a command, or a statement of one, that goes to n shards.
func (s *targetStats) note(name string, info *cluster.CollectionInfo, n int) {
	for i := range targetedCommands {
		if targetedCommands[i] != name {
			continue
		}
		switch c := &s[i]; {
		case !info.Sharded():
			c.unsharded.Add(1)
		case n == 1:
			c.one.Add(1)
		case n == len(info.Shards()):
			c.all.Add(1)
		default:
			c.many.Add(1)
		}
	}
}

func (s *targetStats) doc() []byte {
	var hosts []value.Field
	for i, name := range targetedCommands {
		c := &s[i]
		hosts = append(hosts, value.F(name, value.NewDocument(value.Doc(value.F("allShards", value.NewInt64(c.all.Load())), value.F("manyShards", value.NewInt64(c.many.Load())),
			value.F("oneShard", value.NewInt64(c.one.Load())), value.F("unsharded", value.NewInt64(c.unsharded.Load()))))))
	}
	return value.Doc(hosts...)
}
