package router

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// currentOp implements the command: it runs $currentOp on the shards.
func (r *Router) currentOp(op *command.Op, dst []byte) ([]byte, error) {
	return command.CurrentOp(op, dst, func(spec []byte) ([][]byte, error) { return r.shardOps(op, spec) })
}

// localOps shows the router's own operations, cursors and transactions.
func (r *Router) localOps(op *command.Op, spec []byte) [][]byte {
	now := time.Now()
	host := r.Service.Host
	out := command.DescribeOps(op, command.OpsView{Host: host, Now: now, Own: command.OwnOps(op, spec), Cursor: r.appendBusyCursor,
		Truncate: value.Lookup(spec, "truncateOps").Truthy(), Idle: value.Lookup(spec, "idleConnections").Truthy()})
	shown := command.IdleShown(op, spec)
	if value.Lookup(spec, "idleCursors").Truthy() {
		out = append(out, r.cursors.describeIdle(host, shown)...)
	}
	if idle := value.Lookup(spec, "idleSessions"); idle.IsMissing() || idle.Truthy() {
		out = append(out, r.txns.describeIdle(host, now, shown)...)
	}
	return out
}

// described returns the description of a cursor for $currentOp; mu must be held.
func (c *routerCursor) described() []value.Field {
	return command.CursorView{ID: c.id, Created: c.created, Used: c.mu.used, Returned: c.returned.Load(), Batches: c.batches.Load(), NoTimeout: c.noTimeout,
		Tailable: value.Lookup(c.origin, "tailable").Truthy(), AwaitData: value.Lookup(c.origin, "awaitData").Truthy(), Origin: c.origin}.Fields()
}

// describeIdle describes the cursors that no request is using, of the owners for whom shown returns true.
func (t *cursorTable) describeIdle(host string, shown func(owner [32]byte) bool) (out [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.byID {
		c.mu.Lock()
		if !c.mu.busy && shown(c.owner.Served) {
			out = append(out, command.IdleCursor(host, c.ns, []byte(c.lsid), c.described()))
		}
		c.mu.Unlock()
	}
	return out
}

// appendBusyCursor appends the cursor that a getMore is using.
func (r *Router) appendBusyCursor(dst []byte, op *command.Op, id int64) []byte {
	t := &r.cursors
	t.mu.Lock()
	c := t.mu.byID[id]
	t.mu.Unlock()
	if c == nil {
		return dst
	}
	c.mu.Lock()
	f := append(c.described(), value.F("operationUsingCursorId", value.NewInt64(int64(op.ID))))
	c.mu.Unlock()
	return value.Append(dst, "cursor", value.NewDocument(value.Doc(f...)))
}

// describeIdle describes the transactions in which no command is running, including their state on all shards, of the owners for
// whom shown returns true.
func (t *txnTable) describeIdle(host string, now time.Time, shown func(owner [32]byte) bool) (out [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.mu.sessions {
		if !shown(id.UID) {
			continue
		}
		select {
		case <-s.busy:
			if x := s.txn; x != nil && !x.ended && x.commit == nil {
				d, m := command.BeginIdleTxn(host, x.by, x.lsid)
				d = value.Append(d, "active", value.NewBool(false))
				d = value.Append(d, "transaction", value.NewDocument(x.describe(x.view(), x.readTime(), now)))
				out = append(out, value.End(d, m))
			}
			s.busy <- struct{}{}
		default:
		}
	}
	return out
}

// show makes $currentOp show the transaction of a command, which has had the session since a time. The session must be held.
func (t *transaction) show(op *command.Op, since time.Time) {
	view, read := t.view(), t.readTime()
	op.ShowTxn(func(now time.Time) []byte { return t.describe(view.Running(since, now), read, now) })
}

// view returns what describe needs of the transaction; the session must be held.
func (t *transaction) view() command.TxnView {
	return command.TxnView{Number: t.number, ReadConcern: t.asked, Started: t.started, Active: t.active}
}

// readTime returns the time at which the transaction reads on all shards; missing if each shard has its own. The session must be held.
func (t *transaction) readTime() value.Value {
	if t.readConcern == nil || t.readConcern.AtClusterTime == 0 {
		return value.Value{}
	}
	return value.NewTimestampU64(t.readConcern.AtClusterTime)
}

// describe returns a transaction as $currentOp shows it.
func (t *transaction) describe(view command.TxnView, read value.Value, now time.Time) []byte {
	f := view.Fields(now, value.F("globalReadTimestamp", read))
	if read.IsMissing() {
		f = slices.DeleteFunc(f, func(f value.Field) bool { return f.Key == "globalReadTimestamp" })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	parts := t.mu.participants
	list := make([]value.Value, len(parts))
	wrote, leads := int32(0), t.mu.recovery
	for i, p := range parts {
		list[i] = value.NewDocument(value.Doc(value.F("name", value.NewString(p.shard)), value.F("coordinator", value.NewBool(p.shard == leads || leads == "" && i == 0)), value.F("readOnly", value.NewBool(!p.wrote))))
		if p.wrote {
			wrote++
		}
	}
	return value.Doc(append(f, value.F("numParticipants", value.NewInt32(int32(len(parts)))), value.F("participants", value.NewArray(value.ArrayOf(list...))),
		value.F("numReadOnlyParticipants", value.NewInt32(int32(len(parts))-wrote)), value.F("numNonReadOnlyParticipants", value.NewInt32(wrote)))...)
}

// shardOps returns the shards' operations. An operation's id is "shard:id" here, and its client is the router that sent it.
func (r *Router) shardOps(op *command.Op, spec []byte) ([][]byte, error) {
	ids, err := r.allShards(op)
	if err != nil {
		return nil, err
	}
	stage := value.NewDocument(value.Doc(value.F("$currentOp", value.NewDocument(rebuild(spec, map[string]bool{"localOps": true, "targetAllNodes": true}, nil)))))
	ask := &msg.Aggregate{On: msg.Whole(), Pipeline: value.ArrayOf(stage), Cursor: &msg.Cursor{BatchSize: 1 << 20}}
	body := msg.Doc(ask)
	var replies []shardReply
	if value.Lookup(spec, "targetAllNodes").Truthy() {
		nearest := value.Doc(value.F("mode", value.NewString("nearest")))
		body = msg.Doc(ask, value.F("$readPreference", value.NewDocument(nearest)))
		replies, err = r.askMembers(op, ids, func(string) []byte { return body })
	} else {
		replies = r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return body, nil })
		err = firstError(replies)
	}
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for i := range replies {
		for _, v := range value.Values(value.Lookup(value.Lookup(replies[i].body, "cursor").Doc(), "firstBatch").Doc()) {
			out = append(out, fromShard(replies[i].shard, v.Doc()))
		}
	}
	return out, nil
}

// askMembers has every member of the shards run a command, whatever its role.
func (r *Router) askMembers(op *command.Op, ids []string, cmd func(shard string) []byte) (out []shardReply, err error) {
	var hosts []string
	for _, id := range ids {
		s, err := r.Registry.Shard(op, id)
		if err != nil {
			return nil, err
		}
		members := cluster.MembersOf(s.Peer)
		if len(members) == 0 {
			members = []string{""}
		}
		for _, host := range members {
			hosts, out = append(hosts, host), append(out, shardReply{shard: id})
		}
	}
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			if hosts[i] == "" { // a shard of one member
				out[i].body, out[i].err = r.call(op, out[i].shard, cmd(out[i].shard), nil)
				return
			}
			out[i].body, out[i].err = r.runOnMember(op, hosts[i], cmd(out[i].shard))
		})
	}
	wg.Wait()
	return out, firstError(out)
}

// fromShard returns a shard's description of an operation in the form that a router shows.
func fromShard(shard string, doc []byte) []byte {
	d, m := value.Begin(nil)
	d = value.Append(d, "shard", value.NewString(shard))
	for k, e := range value.Elements(doc) {
		switch n, ok := e.AsInt64(); {
		case k == "opid" && ok:
			e = value.NewString(shard + ":" + strconv.FormatInt(n, 10))
		case k == "client":
			k = "client_s"
		}
		d = value.Append(d, k, e)
	}
	return value.End(d, m)
}

// killOp kills an operation of the router by its number, or one of a shard by "shard:number".
func (r *Router) killOp(op *command.Op, dst []byte) ([]byte, error) {
	v := op.Arg("op")
	if v.T != value.String {
		return command.KillOp(op, dst)
	}
	shard, num, ok := strings.Cut(v.Str(), ":")
	id, err := strconv.ParseInt(num, 10, 32)
	if !ok || err != nil {
		return dst, mongoerr.Newf(mongoerr.BadValue, "The op argument to killOp must be of the format shardid:opid but found \"%s\"", v.Str())
	}
	if !op.Allowed("killop", "", "") {
		return dst, op.Refuse()
	}
	_, err = r.call(op, shard, msg.Doc(&msg.KillOp{ID: id}), nil)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "info", value.NewString("attempting to kill op")), nil
}
