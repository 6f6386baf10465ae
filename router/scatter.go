package router

import (
	"strings"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardReply is one shard's reply.
type shardReply struct {
	shard string
	at    cluster.Peer // the member that replied
	body  []byte       // the whole reply document
	err   error        // no reply, or a reply with ok: 0
}

// call sends one command to one shard.
func (r *Router) call(op *command.Op, shard string, body []byte, seqs []wire.Sequence) ([]byte, error) {
	reply, _, err := r.callAt(op, shard, body, seqs)
	return reply, err
}

// callAt is call that also returns the member that replied.
func (r *Router) callAt(op *command.Op, shard string, body []byte, seqs []wire.Sequence) ([]byte, cluster.Peer, error) {
	p, err := r.peer(op, shard)
	if err != nil {
		return nil, nil, err
	}
	t := transactionOf(op)
	if ask := op.AskQueryMetrics(body); ask != nil {
		body = rebuild(body, nil, ask)
	}
	m := wire.Message{OpCode: wire.OpMsg, Body: t.attach(op, shard, body), Seqs: seqs}
	reply, at, err := cluster.CallOn(op, p, readsFrom(op), &m, nil)
	if err != nil {
		return nil, nil, err
	}
	t.note(shard, reply)
	op.TakeQueryMetrics(reply, false)
	if t := value.Lookup(reply, "operationTime"); t.T == value.Timestamp {
		op.AdvanceOperationTime(t.TimestampU64())
	}
	return reply, at, cluster.ReplyError(reply)
}

// scatter sends to each shard the command that build returns for it, all at once, and waits for all replies.
func (r *Router) scatter(op *command.Op, shards []string, build func(shard string) ([]byte, []wire.Sequence)) []shardReply {
	out := make([]shardReply, len(shards))
	one := func(i int) {
		body, seqs := build(shards[i])
		reply, at, err := r.callAt(op, shards[i], body, seqs)
		out[i] = shardReply{shard: shards[i], at: at, body: reply, err: err}
	}
	var wg sync.WaitGroup
	for i := 1; i < len(shards); i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			one(i)
		}()
	}
	if len(shards) > 0 {
		one(0)
	}
	wg.Wait()
	return out
}

// firstError picks the error to report of several shards': a stale one first, since it makes the others moot.
func firstError(replies []shardReply) error {
	var first error
	for i := range replies {
		err := replies[i].err
		if err == nil {
			continue
		}
		if isStale(err) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func isStale(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.StaleConfig, mongoerr.StaleDbVersion, mongoerr.StaleEpoch, mongoerr.CannotImplicitlyCreateCollection, mongoerr.ShardNotFound,
		mongoerr.ShardInvalidatedForTargeting:
		return true
	}
	return false
}

// rebuild copies a command without the fields in drop, and appends suffix.
func rebuild(body []byte, drop map[string]bool, suffix ...[]byte) []byte {
	dst, mark := value.Begin(make([]byte, 0, len(body)+128))
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if !drop[string(k)] {
			dst = append(dst, raw...)
		}
	}
	for _, s := range suffix {
		dst = append(dst, s...)
	}
	return value.End(dst, mark)
}

// versioned returns a copy of a command with one shard's version elements.
func versioned(body []byte, info *cluster.CollectionInfo, shard string) []byte {
	suffix := info.Suffix(shard)
	dst := make([]byte, 0, len(body)+len(suffix))
	dst = append(append(dst, body[:len(body)-1]...), suffix...)
	return value.End(dst, 0)
}

// collectWriteConcernErrors adds the shards' write concern errors to the reply.
func collectWriteConcernErrors(op *command.Op, replies []shardReply) {
	var w wcErrors
	for i := range replies {
		if replies[i].body != nil {
			w.note(replies[i].shard, replies[i].body)
		}
	}
	w.report(op)
}

// wcErrors are the writeConcernErrors of the shards that a command went to.
type wcErrors []shardWCError

type shardWCError struct {
	shard string
	doc   []byte
	err   *mongoerr.Error
}

// note records the writeConcernError of a shard's reply.
func (w *wcErrors) note(shard string, reply []byte) {
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		*w = append(*w, shardWCError{shard, append([]byte(nil), value.Lookup(reply, "writeConcernError").Doc()...), e})
	}
}

// report adds them to the reply as the real router does: a single error with its shard, several as one error that quotes them all.
func (w wcErrors) report(op *command.Op) {
	switch len(w) {
	case 0:
	case 1:
		op.SetWriteConcernError(atShard(w[0].err, w[0].shard))
	default:
		quoted := make([]string, len(w))
		for i := range w {
			quoted[i] = value.ShowDoc(w[i].doc) + " at " + w[i].shard
		}
		op.SetWriteConcernError(mongoerr.New(mongoerr.WriteConcernTimeout, "multiple errors reported : "+strings.Join(quoted, " :: and :: ")))
	}
}

// atShard returns a shard's writeConcernError in the form that the router reports it.
func atShard(e *mongoerr.Error, shard string) *mongoerr.Error {
	out := *e
	if info := value.Lookup(e.Details, "errInfo"); info.T == value.Document {
		out.Message += "; Error details: " + value.Show(info)
	}
	out.Message += " at " + shard
	return &out
}
