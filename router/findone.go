package router

import (
	"bytes"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// findOneArgs select a document.
type findOneArgs struct {
	filter                     []byte
	collation, let, hint, sort value.Value
}

// findOne looks for one document that matches on any of the shards, the first in sort order if there is one. shard
// is "" if there is none.
func (r *Router) findOne(op *command.Op, info *cluster.CollectionInfo, shards []string, a findOneArgs) (shard string, id value.Value, err error) {
	b := cluster.Find{
		NS: info.NS, Filter: a.filter, Collation: a.collation.Doc(), Let: a.let.Doc(), Hint: a.hint, Sort: a.sort.Doc(), Limit: 1, SingleBatch: true,
	}.Doc(carried(op))
	replies := r.scatter(op, shards, func(s string) ([]byte, []wire.Sequence) { return versioned(b, info, s), nil })
	if err := firstError(replies); err != nil {
		return "", id, err
	}
	var keys *sortKeys
	if a.sort.T == value.Document && value.Count(a.sort.Doc()) > 0 {
		spec, err := collationFor(a.collation.Doc(), info)
		if err != nil {
			return "", id, err
		}
		if keys, err = newSortKeys(a.sort.Doc(), spec.Collator()); err != nil {
			return "", id, err
		}
	}
	var best []byte
	for i := range replies {
		docs := value.Values(value.Lookup(value.Lookup(replies[i].body, "cursor").Doc(), "firstBatch").Doc())
		if len(docs) == 0 {
			continue
		}
		var key []byte
		if keys != nil {
			if key, err = keys.append(nil, docs[0].Doc()); err != nil {
				return "", id, err
			}
		}
		if shard == "" || keys != nil && bytes.Compare(key, best) < 0 {
			shard, id, best = replies[i].shard, value.Lookup(docs[0].Doc(), "_id"), key
		}
	}
	return shard, id, nil
}

// findAndModify implements the command.
func (r *Router) findAndModify(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	if err := checkWritable(op, ns); err != nil {
		return dst, err
	}
	from := len(dst)
	err = r.atFirst(op, func() error {
		var err error
		dst, err = r.modifyOn(op, ns, dst[:from])
		return err
	})
	return dst, err
}

// modifyOn runs a findAndModify on a namespace.
func (r *Router) modifyOn(op *command.Op, ns string, dst []byte) ([]byte, error) {
	from := len(dst)
	err := r.routed(op, ns, true, func(info *cluster.CollectionInfo) error {
		for {
			var err error
			var searched, again bool
			dst, searched, err = r.findAndModifyOn(op, info, dst[:from])
			d := movedDocOf(err)
			if d == nil {
				return err
			}
			d.searched = searched
			if dst, again, err = r.modifyMoved(op, info, d, dst[:from]); !again {
				return err
			}
			if err := op.CheckNow(); err != nil {
				return err
			}
		}
	})
	return dst, err
}

// findAndModifyOn sends the command to its shard; searched means that the filter did not determine one.
func (r *Router) findAndModifyOn(op *command.Op, info *cluster.CollectionInfo, dst []byte) (out []byte, searched bool, err error) {
	if !info.Sharded() {
		buckets, err := r.Catalog.Buckets(op, info)
		switch {
		case err != nil:
		case buckets != nil:
			dst, err = r.modifySeries(op, buckets, dst)
		default:
			dst, err = r.toHome(op, info, dst)
		}
		return dst, false, err
	}
	q := op.Req.Doc("query")
	collated := collatedBy(info, op.Req.Doc("collation"))
	if key, ok := targeting.ExactKey(info.Map.Key, q, collated); ok {
		s, err := ownerOf(info, key)
		if err == nil {
			dst, err = r.relay(op, s, nil, info.Suffix(s), dst)
		}
		return dst, false, err
	}
	shards, err := target(info, q, collated)
	if err != nil {
		return dst, false, err
	}
	if len(shards) == 1 && !op.Bool("upsert") {
		out, err = r.relay(op, shards[0], nil, info.Suffix(shards[0]), dst)
		return out, false, err
	}
	asked, err := mayHaveExecuted(info, shards, q, op.Bool("upsert"))
	if err != nil {
		return dst, true, err
	}
	if shard, err := r.executedOn(op, asked, op.Req.StatementID(0)); err != nil {
		return dst, true, err
	} else if shard != "" {
		out, err = r.relay(op, shard, nil, info.Suffix(shard), dst)
		return out, true, err
	}
	out, err = r.findAndModifyFound(op, info, shards, q, dst)
	return out, true, err
}

// findAndModifyFound finds the document on one of the shards and changes it there.
func (r *Router) findAndModifyFound(op *command.Op, info *cluster.CollectionInfo, shards []string, q, dst []byte) ([]byte, error) {
	from := len(dst)
	for n := 0; ; n++ {
		shard, id, err := r.findOne(op, info, shards, findOneArgs{
			filter: q, collation: op.Arg("collation"), let: op.Arg("let"), hint: op.Arg("hint"), sort: op.Arg("sort"),
		})
		if err != nil {
			return dst, err
		}
		if shard == "" {
			shard = shards[0]
			if op.Bool("upsert") {
				if shard, err = upsertShard(info, q); err != nil {
					return dst, err
				}
			}
			return r.relay(op, shard, nil, info.Suffix(shard), dst)
		}
		out, err := r.relay(op, shard, narrowed(op.Req.Body, "query", q, id), info.Suffix(shard), dst[:from])
		if err != nil || n == maxSearches || matchedOne(out[from-4:]) {
			return out, err
		}
	}
}

// matchedOne reports whether a findAndModify found its document.
func matchedOne(reply []byte) bool {
	n, _ := value.Lookup(value.Lookup(reply, "lastErrorObject").Doc(), "n").AsInt64()
	return n > 0
}

// bulkWrite runs bulkWrite: it goes to one shard if all its namespaces live there unsharded.
func (r *Router) bulkWrite(op *command.Op, dst []byte) ([]byte, error) {
	b, err := readBulk(r, op)
	if err != nil {
		return dst, err
	}
	from := len(dst)
	first := b.check()
	if first < 0 {
		return b.run(dst) // no operation is sent
	}
	err = r.atFirst(op, func() error {
		return r.routed(op, b.in[first].name, true, func(*cluster.CollectionInfo) error {
			var err error
			again := b
			dst, err = r.bulkWriteOn(op, &again, first, dst[:from])
			return err
		})
	})
	return dst, err
}

// bulkWriteOn runs a bulkWrite of which some operation may be sent; first is the index of such an operation's namespace.
func (r *Router) bulkWriteOn(op *command.Op, b *bulk, first int, dst []byte) ([]byte, error) {
	infos := make([]*cluster.CollectionInfo, len(b.in))
	one := true
	for i, in := range b.in {
		if !in.used {
			continue
		}
		if in.refusal != nil {
			one = false // a shard cannot tell the client's operations from a router's own
			continue
		}
		info, err := r.collectionForWrite(op, in.name)
		if err != nil {
			return dst, err
		}
		buckets, err := r.Catalog.Buckets(op, info)
		if err != nil {
			return dst, err
		}
		infos[i] = info
		one = one && buckets == nil && !info.Sharded() && (infos[first] == nil || info.Home() == infos[first].Home())
	}
	if !one {
		return b.run(dst)
	}
	home := infos[first].Home()
	// Each namespace carries its own versions.
	var arr []byte
	i := 0
	err := op.Req.DocList("nsInfo").Each("bulkWrite.nsInfo", func(_ int, d []byte) error {
		if b.in[i].used {
			d = rebuild(d, nil, infos[i].Suffix(home))
		}
		arr = value.AppendIndex(arr, i, value.NewDocument(d))
		i++
		return nil
	})
	if err != nil {
		return dst, err
	}
	list, mark := value.BeginKey(nil, value.Array, "nsInfo")
	list = value.End(append(list, arr...), mark)
	body := rebuild(op.Req.Body, map[string]bool{"nsInfo": true}, list)
	from := len(dst)
	out, at, err := r.relayWithout(op, home, body, "nsInfo", dst)
	if err != nil {
		return out, err
	}
	switch stopped, err := b.takeOver(at, out[from-4:]); {
	case err != nil:
		return dst, err
	case stopped:
		return b.run(out[:from])
	}
	if n, _ := value.Lookup(out[from-4:], "nErrors").AsInt64(); n > 0 {
		return b.withNames(home, at, out, from)
	}
	r.adopt(op, at, out, from)
	return out, nil
}

// relayAny relays to any shard a command with invalid arguments, so that the shard reports the error.
func (r *Router) relayAny(op *command.Op, dst []byte) ([]byte, error) {
	all, err := r.Registry.All(op)
	if err != nil {
		return dst, err
	}
	if len(all) == 0 {
		return dst, mongoerr.New(mongoerr.ShardNotFound, "No shards found")
	}
	return r.relay(op, all[0].ID, nil, nil, dst)
}

// relayWithout is relay without one of the request's document sequences.
func (r *Router) relayWithout(op *command.Op, shard string, body []byte, seq string, dst []byte) ([]byte, cluster.Peer, error) {
	p, err := r.peer(op, shard)
	if err != nil {
		return dst, nil, err
	}
	t := transactionOf(op)
	m := wire.Message{OpCode: wire.OpMsg, Body: t.attach(op, shard, body)}
	for _, s := range op.Req.Msg.Seqs {
		if s.ID != seq {
			m.Seqs = append(m.Seqs, s)
		}
	}
	mark := len(dst) - 4
	out, at, err := cluster.CallOn(op, p, nil, &m, dst[:mark])
	if err != nil {
		return dst, nil, err
	}
	t.note(shard, out[mark:])
	out, err = r.trimReply(op, shard, out, mark)
	return out, at, err
}
