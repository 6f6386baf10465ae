package coordinator

import (
	"cmp"
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A dropIndexes ends the builds of the indexes that it names, and drops those that are there. An index of an ended build is not there any more, which is no error. If the command names
// nothing else, no shard has anything to do.

// noteEnded notes which of the indexes that a dropIndexes names were being built. The builds have ended.
func (m *Coordinators) noteEnded(f *forward) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range f.ended {
		if !r.undone() || mongoerr.CodeOf(r.err) != mongoerr.IndexBuildAborted {
			continue
		}
		for _, spec := range value.Values(value.Lookup(r.doc.op.(*forward).req.Command, "indexes").Doc()) {
			f.at.Ended = append(f.at.Ended, value.Lookup(spec.Doc(), "name").Str())
		}
	}
	slices.Sort(f.at.Ended)
	f.at.Ended = slices.Compact(f.at.Ended)
}

// shareEnded passes the builds that a dropIndexes has ended to another one, which is the same command and answers for both.
func (m *Coordinators) shareEnded(o, with operation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := o.(*forward)
	if other, same := with.(*forward); ok && same {
		other.ended = append(other.ended, f.ended...)
	}
}

// listed returns the names in a list of indexes.
func (f *forward) listed() (names []string) {
	if list := value.Lookup(f.req.Command, "index"); list.T == value.Array {
		for _, v := range value.Values(list.Doc()) {
			names = append(names, v.Str())
		}
	}
	return names
}

// onlyEnded reports whether a dropIndexes has ended builds, and names nothing else.
func (f *forward) onlyEnded() bool {
	return f.kind == dropIndexesKind && len(f.at.Ended) > 0 && !slices.ContainsFunc(f.listed(), f.isOther)
}

func (f *forward) isOther(name string) bool { return !slices.Contains(f.at.Ended, name) }

// answerEnded sets the shards' answers to a dropIndexes for which there is nothing left to do.
func (f *forward) answerEnded(ctx context.Context, r *run) error {
	f.at.Nothing = true
	return f.answerAll(ctx, r, func(id string) (int64, error) {
		n, err := f.indexesOn(ctx, r, id)
		return n + int64(len(f.at.Ended)), err
	})
}

// indexesOn returns the number of indexes of the collection on a shard.
func (f *forward) indexesOn(ctx context.Context, r *run, id string) (int64, error) {
	s, err := r.m.State.Registry.Shard(ctx, id)
	if err != nil {
		return 0, err
	}
	list, err := cluster.FindAll(ctx, s.Peer, f.req.DB, msg.Doc(&msg.ListIndexes{DB: f.req.DB, Coll: f.coll()}))
	return int64(len(list)), err
}

// answerAll answers a dropIndexes for all shards that own some of the collection. was returns the number of indexes that one had before.
func (f *forward) answerAll(ctx context.Context, r *run, was func(id string) (int64, error)) error {
	f.at.Answers = nil
	for _, id := range f.at.Shards {
		if id == f.at.Idle {
			continue
		}
		s, err := r.m.State.Registry.Shard(ctx, id)
		if err != nil {
			return err
		}
		n, err := was(id)
		if err != nil {
			return err
		}
		f.at.Answers = append(f.at.Answers, msg.ShardAnswer{Shard: cmp.Or(s.Host, id), Reply: dropped(n)})
	}
	return nil
}

// dropped is a shard's reply to a dropIndexes.
func dropped(was int64) []byte {
	return value.Doc(value.F("nIndexesWas", value.NewInt32(int32(was))), value.F("ok", value.NewDouble(1)))
}

// asBefore returns the answer of a shard that may have executed the command before, as it was then. The DDL lock excludes others that change what the shard had when it was asked (checkEach).
func (f *forward) asBefore(id string, a msg.ShardAnswer, err error) (msg.ShardAnswer, error) {
	switch f.kind {
	case dropIndexesKind:
		return f.droppedBefore(id, a, err)
	case createIndexesKind:
		a.Reply = f.createdBefore(id, a.Reply)
	case collModKind:
		if i := slices.IndexFunc(f.at.Changes, func(c msg.ShardAnswer) bool { return c.Shard == id }); i >= 0 && err == nil {
			a.Reply = changedBefore(a.Reply, f.at.Changes[i].Reply)
		}
	}
	return a, err
}

// droppedBefore is asBefore for a dropIndexes. The shard has no more of the indexes that it had, or fewer of all.
func (f *forward) droppedBefore(id string, a msg.ShardAnswer, err error) (msg.ShardAnswer, error) {
	i := slices.IndexFunc(f.at.Were, func(c msg.ShardCount) bool { return c.Shard == id })
	if i < 0 {
		return a, err
	}
	was := f.at.Were[i].N
	switch {
	case mongoerr.CodeOf(err) == mongoerr.IndexNotFound:
		a.Reply = dropped(was)
		return a, nil
	case err != nil || value.SafeInt64(value.Lookup(a.Reply, "nIndexesWas")) >= was:
		return a, err
	}
	a.Reply = rewritten(a.Reply, value.F("nIndexesWas", value.NewInt32(int32(was))))
	return a, nil
}

// createdBefore is asBefore for a createIndexes: a shard that says that it has all indexes, and did not have some, has created them before.
func (f *forward) createdBefore(id string, reply []byte) []byte {
	i := slices.IndexFunc(f.at.Missing, func(m msg.ShardIndexes) bool { return m.Shard == id })
	if i < 0 || value.Lookup(reply, "note").IsMissing() {
		return reply
	}
	after := value.SafeInt64(value.Lookup(reply, "numIndexesAfter"))
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(reply) {
		switch k {
		case "numIndexesBefore":
			v = value.NewInt32(int32(after) - int32(len(f.at.Missing[i].Names)))
		case "note":
			if k, v = "commitQuorum", value.Lookup(f.req.Command, "commitQuorum"); v.IsMissing() {
				v = value.NewString("votingMembers")
			}
		}
		out = value.Append(out, k, v)
	}
	return value.End(out, mark)
}

// changedBefore is asBefore for a collMod: a later execution finds less to change, or nothing.
func changedBefore(reply, changes []byte) []byte {
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(changes) {
		out = value.Append(out, k, v)
	}
	for k, v := range value.Elements(reply) {
		if value.Lookup(changes, k).IsMissing() {
			out = value.Append(out, k, v)
		}
	}
	return value.End(out, mark)
}

// rewritten returns a document in which a field has another value.
func rewritten(doc []byte, by value.Field) []byte {
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(doc) {
		if k == by.Key {
			v = by.Val
		}
		out = value.Append(out, k, v)
	}
	return value.End(out, mark)
}

// missingAt returns the indexes of a dropIndexes that a shard does not have.
func (f *forward) missingAt(id string) []string {
	for _, at := range f.at.Missing {
		if at.Shard == id && f.kind == dropIndexesKind {
			return at.Names
		}
	}
	return nil
}

// admitsAbsent refuses a dropIndexes that lists an index that no shard has, unless it has ended its build.
func (f *forward) admitsAbsent() error {
	if f.kind != dropIndexesKind {
		return nil
	}
	for _, name := range f.listed() {
		has := func(id string) bool {
			return id != f.at.Idle && (f.at.Home == "" || id == f.at.Home) && !slices.Contains(f.missingAt(id), name)
		}
		if f.isOther(name) && !slices.ContainsFunc(f.at.Shards, has) {
			return mongoerr.Newf(mongoerr.IndexNotFound, "index not found with name [%s]", name)
		}
	}
	return nil
}

// listWithout returns a list of indexes without some, or as it is if there are no others.
func listWithout(list value.Value, without []string) value.Value {
	rest := slices.DeleteFunc(value.Values(list.Doc()), func(v value.Value) bool { return slices.Contains(without, v.Str()) })
	if len(without) == 0 || len(rest) == 0 {
		return list
	}
	return value.NewArray(value.ArrayOf(rest...))
}
