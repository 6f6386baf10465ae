package router

import (
	"slices"
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func sortByIndex(up []value.Value) {
	sort.Slice(up, func(i, j int) bool {
		return value.Lookup(up[i].Doc(), "index").Int32() < value.Lookup(up[j].Doc(), "index").Int32()
	})
}

// aim targets one statement.
func (b *writeBatch) aim(info *cluster.CollectionInfo, i int) (aim, error) {
	st := b.items[i]
	if b.series != nil {
		return b.aimSeries(info, st)
	}
	if !info.Sharded() {
		return aim{shards: []string{info.Home()}, doc: st}, nil
	}
	switch b.list {
	case "documents":
		return aimInsert(info, st)
	case "deletes":
		multi := true
		if n, ok := value.Lookup(st, "limit").AsInt64(); ok && n == 1 {
			multi = false
		}
		return aimFilter(info, st, multi, false)
	}
	return aimFilter(info, st, value.Lookup(st, "multi").Truthy(), value.Lookup(st, "upsert").Truthy())
}

// aimInsert returns the shard that owns a new document, which gets its _id here if the client sent none.
func aimInsert(info *cluster.CollectionInfo, doc []byte) (aim, error) {
	if value.Lookup(doc, "_id").IsMissing() {
		doc = withID(doc)
	}
	var room [4]value.Value
	key, err := info.Map.Key.FromDocument(doc, room[:0])
	if err != nil {
		return aim{}, err
	}
	shard, err := ownerOf(info, key)
	return aim{shards: []string{shard}, doc: doc}, err
}

func withID(doc []byte) []byte {
	dst, mark := value.Begin(make([]byte, 0, len(doc)+17))
	dst = value.Append(dst, "_id", value.NewObjectID(cluster.NewObjectID()))
	return value.End(append(dst, doc[4:len(doc)-1]...), mark)
}

// aimFilter targets an update or delete by its filter.
func aimFilter(info *cluster.CollectionInfo, st []byte, multi, upsert bool) (aim, error) {
	q := value.Lookup(st, "q").Doc()
	collated := collatedBy(info, value.Lookup(st, "collation").Doc())
	if key, ok := targeting.ExactKey(info.Map.Key, q, collated); ok {
		shard, err := ownerOf(info, key)
		return aim{shards: []string{shard}, doc: st}, err
	}
	shards, err := target(info, q, collated)
	if err != nil {
		return aim{}, err
	}
	switch {
	case multi && upsert:
		return aim{}, mongoerr.New(mongoerr.ShardKeyNotFound, "Failed to target upsert by query :: could not extract exact shard key")
	case len(shards) == 1 && !upsert:
		return aim{shards: shards, doc: st}, nil
	case multi:
		return aim{shards: shards, doc: st}, nil
	}
	return aim{shards: shards, search: true, doc: st}, nil
}

// sendWide sends a statement that concerns several shards, or one shard that has yet to be found.
func (b *writeBatch) sendWide(info *cluster.CollectionInfo, i int, a aim) error {
	if a.search && b.series != nil {
		return b.sendInTurn(info, i, a)
	}
	if a.search {
		return b.sendFound(info, i, a)
	}
	shards, written := b.undone(info, i, a.shards)
	b.sentTo(shards...)
	replies := b.r.scatter(b.op, shards, func(s string) ([]byte, []wire.Sequence) {
		return b.command(info, []int{i}, info.Suffix(s), written[s]), []wire.Sequence{{ID: b.list, Docs: a.doc}}
	})
	for j := range replies {
		stale := b.stale
		b.stale = nil
		if err := b.settle(&replies[j], []int{i}); err != nil {
			return err
		}
		if b.stale != nil { // the shard has executed nothing
			continue
		}
		b.stale = stale
		if info.Sharded() {
			b.done[i] = append(b.done[i], part{info.Map, replies[j].shard})
		}
	}
	if b.errs[i] != nil {
		b.pending = slices.DeleteFunc(b.pending, func(p int) bool { return p == i })
	}
	return nil
}

// maxSearches bounds how often a document that moves away between being found and being written is looked for again.
const maxSearches = 20

// sendFound writes one document whose shard the filter does not determine: it finds a match first, then writes exactly
// that document. With no match anywhere, one shard gets the statement as it is: to insert the upsert, or to check its
// syntax.
func (b *writeBatch) sendFound(info *cluster.CollectionInfo, i int, a aim) error {
	b.searching = true
	defer func() { b.searching = false }()
	st := b.items[i]
	q := value.Lookup(st, "q").Doc()
	upsert := value.Lookup(st, "upsert").Truthy()
	asked, err := mayHaveExecuted(info, a.shards, q, upsert)
	if err != nil {
		return b.settle(&shardReply{err: err}, []int{i})
	}
	if shard, err := b.r.executedOn(b.op, asked, b.stmtID(i)); err != nil {
		return b.settle(&shardReply{err: err}, []int{i})
	} else if shard != "" {
		return b.sendGroup(info, shard, []int{i}, st)
	}
	for n := 0; ; n++ {
		shard, id, err := b.r.findOne(b.op, info, a.shards, findOneArgs{
			filter: q, collation: value.Lookup(st, "collation"), let: value.Lookup(b.op.Req.Body, "let"), hint: value.Lookup(st, "hint"),
			sort: value.Lookup(st, "sort"),
		})
		if err != nil {
			return b.settle(&shardReply{err: err}, []int{i})
		}
		if shard == "" {
			shard = a.shards[0]
			if upsert {
				if shard, err = upsertShard(info, q); err != nil {
					return b.settle(&shardReply{err: err}, []int{i})
				}
			}
			return b.sendGroup(info, shard, []int{i}, st)
		}
		before := b.n
		if err := b.sendGroup(info, shard, []int{i}, narrowed(st, "q", q, id)); err != nil {
			return err
		}
		if b.n > before || b.errs[i] != nil || b.stale != nil || b.moving != nil || n == maxSearches {
			return nil
		}
	}
}

// mayHaveExecuted returns the shards that may have executed a statement whose filter determines none of them. An upsert may have inserted its document
// on a shard that owns none of the keys that the filter matches: {k: {$gt: 5}} inserts a document without k.
func mayHaveExecuted(info *cluster.CollectionInfo, shards []string, q []byte, upsert bool) ([]string, error) {
	if !upsert {
		return shards, nil
	}
	shard, err := upsertShard(info, q)
	if err != nil || slices.Contains(shards, shard) {
		return shards, err
	}
	return append(slices.Clone(shards), shard), nil
}

// upsertShard returns the shard that owns the document that an upsert by q would insert: key fields that q does not pin count as null.
func upsertShard(info *cluster.CollectionInfo, q []byte) (string, error) {
	var key []value.Value
	for i := range info.Map.Key.Parts {
		s := targeting.Spans(q, info.Map.Key.Parts[i].Path, false)
		v := value.NewNull()
		if len(s) == 1 && s[0].Point() {
			v = s[0].Lo
		}
		key = append(key, v)
	}
	info.Map.Key.HashParts(key)
	return ownerOf(info, key)
}

// narrowed returns a statement with its filter and-ed with one document's _id, and without upsert and sort.
func narrowed(st []byte, field string, q []byte, id value.Value) []byte {
	both := value.ArrayOf(value.NewDocument(q), value.NewDocument(value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$eq", id)))))))
	if q == nil {
		both = value.ArrayOf(value.NewDocument(value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$eq", id)))))))
	}
	f := value.Append(nil, field, value.NewDocument(value.Doc(value.F("$and", value.NewArray(both)))))
	return rebuild(st, map[string]bool{field: true, "upsert": true, "sort": true}, f)
}
