package coordinator

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// forward executes a client's command about one collection under its DDL lock. For a collection without an entry in the catalog it is that
// command on this shard; any other is changed on every shard that owns chunks, and on this one, which has its definition.
type forward struct {
	kind string
	req  *msg.ShardCommand
	at   msg.ForwardFound
}

func (f *forward) ns() string                { return f.req.DB + "." + f.req.Coll }
func (f *forward) name() string              { return f.kind }
func (f *forward) locks() (string, []string) { return f.req.DB, []string{f.ns()} }
func (f *forward) found() msg.Message        { return &f.at }

func (m *Coordinators) create(op *command.Op, req *msg.ShardCreate, dst []byte) ([]byte, error) {
	return m.runOne(op, req, &req.ShardCommand, "createCollection", dst)
}

func (m *Coordinators) convertToCapped(op *command.Op, req *msg.ShardConvertToCapped, dst []byte) ([]byte, error) {
	return m.runOne(op, req, &req.ShardCommand, "convertToCapped", dst)
}

func (m *Coordinators) collMod(op *command.Op, req *msg.ShardCollMod, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (m *Coordinators) dropIndexes(op *command.Op, req *msg.ShardDropIndexes, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

// runOne executes a command that is one unit of work on this shard, whatever the catalog says: no run begins, so nobody joins one.
func (m *Coordinators) runOne(op *command.Op, req msg.Message, c *msg.ShardCommand, kind string, dst []byte) ([]byte, error) {
	f := &forward{kind: kind, req: c}
	op.Stats.NS, op.Stats.Type = f.ns(), "command"
	h, err := m.lock(op, f, lockWait)
	if err != nil {
		return dst, err
	}
	defer m.unlock(h)
	if err := m.checkVersion(op, f.ns()); err != nil { // the database may have moved meanwhile
		return dst, err
	}
	_, e, err := m.entry(op, f.ns())
	if err != nil {
		return dst, err
	}
	if e != nil && kind == "convertToCapped" {
		if e.Unsplittable {
			return dst, command.NotImplemented("convertToCapped of a collection that moveCollection or unshardCollection has placed")
		}
		return dst, mongoerr.New(mongoerr.IllegalOperation, "You can't convertToCapped a sharded collection")
	}
	return m.nested(op, c.Command, e == nil, dst)
}

func (f *forward) check(ctx context.Context, r *run) (local bool, err error) {
	_, e, err := r.m.entry(ctx, f.ns())
	if err != nil || e == nil {
		return err == nil, err
	}
	r.m.State.Catalog.InvalidateCollection(f.ns())
	info, err := r.m.State.Catalog.Collection(ctx, f.ns())
	if err != nil {
		return false, err
	}
	f.at.UUID, f.at.Shards = e.UUID, slices.Clone(info.Shards())
	if e.Unsplittable {
		f.at.Home = info.Home()
	}
	if c := r.m.Engine.Catalog().Lookup(f.ns()); c != nil && c.UUID == catalog.UUID(e.UUID) && !slices.Contains(f.at.Shards, r.m.State.ID) {
		f.at.Shards = append(f.at.Shards, r.m.State.ID)
	}
	return false, nil
}

func (f *forward) phases() []phase {
	return []phase{
		{name: "freezeMigrations", do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, f.ns(), f.at.UUID, false)
		}},
		{name: "updateShards", do: f.send},
		{name: "unfreezeMigrations", final: true, do: func(ctx context.Context, r *run) error {
			return r.allowMigrations(ctx, f.ns(), f.at.UUID, true)
		}},
	}
}

// send has every shard execute the command. An index that it names may be missing on some: they have dropped it when the phase was
// carried out before, or it was created when they owned nothing of the collection.
func (f *forward) send(ctx context.Context, r *run) error {
	var mu sync.Mutex
	var replies []msg.ShardAnswer
	var missing error
	errs := make(chan error, len(f.at.Shards))
	for _, id := range f.at.Shards {
		go func() {
			answer, err := f.sendTo(ctx, r, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case mongoerr.CodeOf(err) == mongoerr.IndexNotFound:
				if missing, err = err, nil; f.at.Home == id {
					err = missing
				}
			case err == nil && (f.at.Home == "" || f.at.Home == id):
				replies = append(replies, answer)
			}
			errs <- err
		}()
	}
	var failed error
	for range f.at.Shards {
		if err := <-errs; err != nil && (failed == nil || passing(failed)) {
			failed = err
		}
	}
	if failed == nil && len(replies) == 0 {
		failed = missing
	}
	slices.SortFunc(replies, func(a, b msg.ShardAnswer) int { return cmp.Compare(a.Shard, b.Shard) })
	f.at.Answers = replies
	return failed
}

// sendTo returns a shard's answer under its host, as routers name shards in replies.
func (f *forward) sendTo(ctx context.Context, r *run, id string) (a msg.ShardAnswer, err error) {
	s, err := r.m.State.Registry.Shard(ctx, id)
	if err != nil {
		return a, err
	}
	if a.Shard = s.Host; a.Shard == "" {
		a.Shard = id
	}
	cmd, mark := value.Begin(nil)
	for k, v := range value.Elements(f.req.Command) {
		cmd = value.Append(cmd, k, v)
	}
	if !r.doc.comment.IsMissing() {
		cmd = value.Append(cmd, "comment", r.doc.comment)
	}
	cmd = value.Append(cmd, "$db", value.NewString(f.req.DB))
	reply, err := cluster.RunWrite(ctx, s.Peer, value.End(cmd, mark))
	if err != nil {
		return a, err
	}
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(reply) {
		if k != "$clusterTime" && k != "operationTime" && k != "$configTime" && k != "$topologyTime" {
			out = value.Append(out, k, v)
		}
	}
	a.Reply = value.End(out, mark)
	return a, nil
}

func (f *forward) undo(ctx context.Context, r *run) error {
	return r.allowMigrations(ctx, f.ns(), f.at.UUID, true)
}

// reply appends each shard's reply under its host, as a router does; for a collection that is not sharded, the reply of its shard.
func (f *forward) reply(dst []byte) []byte {
	if f.at.Home != "" && len(f.at.Answers) == 1 {
		for k, v := range value.Elements(f.at.Answers[0].Reply) {
			if k != "ok" {
				dst = value.Append(dst, k, v)
			}
		}
		return dst
	}
	dst, m := value.BeginKey(dst, value.Document, "raw")
	for _, a := range f.at.Answers {
		dst = value.Append(dst, a.Shard, value.NewDocument(a.Reply))
	}
	return value.End(dst, m)
}
