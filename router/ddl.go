package router

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// toPrimaryRead relays a command on one namespace to the primary shard of its database, without creating the database.
func (r *Router) toPrimaryRead(op *command.Op, dst []byte) ([]byte, error) {
	return r.primaryCommand(op, false, dst)
}

// toPrimaryWrite does the same for commands that create their database.
func (r *Router) toPrimaryWrite(op *command.Op, dst []byte) ([]byte, error) {
	return r.primaryCommand(op, true, dst)
}

// unshardedOnly sends convertToCapped, which cannot be run on a sharded collection.
func (r *Router) unshardedOnly(op *command.Op, dst []byte) ([]byte, error) {
	return r.onPrimaryLocked(op, dst, func(c msg.ShardCommand) msg.Message { return &msg.ShardConvertToCapped{ShardCommand: c} })
}

// createUnsplittableSpec returns the row of the test command that creates an unsharded collection with an entry in the catalog.
func (r *Router) createUnsplittableSpec() command.Spec {
	return command.Spec{
		Name: "createUnsplittableCollection", Roles: command.Router, Kind: command.DDL, Namespace: true, WriteConcern: true, TestOnly: true, Run: r.createUnsplittable,
		Fields:  []command.Field{command.Opt("dataShard", command.TString), command.Opt("timeseries", command.TObject), command.Opt("viewOn", command.TAny)},
		Lenient: true, // the others are those of create, which the shard knows
	}
}

func (r *Router) createUnsplittable(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return dst, err
	}
	if cluster.FixedDatabase(op.DB()) {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "%s cannot be tracked", ns)
	}
	if !op.Arg("viewOn").IsMissing() {
		return dst, mongoerr.Newf(mongoerr.InvalidOptions, "%s is to be a view, which cannot be tracked", ns)
	}
	options, mark := value.Begin(nil)
	first := true
	for it := value.Walk(op.Req.Body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if !first && !msg.Generic(k) && string(k) != "dataShard" {
			options = append(options, raw...)
		}
		first = false
	}
	m := &msg.ShardShardCollection{ShardCollection: msg.ShardCollection{
		NS: ns, Key: value.Doc(value.F("_id", value.NewInt32(1))), TimeSeries: op.Req.Doc("timeseries"), Unsplittable: true, DataShard: op.Req.Str("dataShard"),
		Create: value.End(options, mark),
	}}
	return r.track(op, ns, m, dst)
}

// onPrimaryLocked is forwarded for a command that names an existing collection. One that names none gets its error from a shard.
func (r *Router) onPrimaryLocked(op *command.Op, dst []byte, as func(msg.ShardCommand) msg.Message) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	return r.forwarded(op, ns, false, dst, as)
}

// forwarded has the primary shard of a database execute a client's command under the collection's DDL lock.
func (r *Router) forwarded(op *command.Op, ns string, create bool, dst []byte, as func(msg.ShardCommand) msg.Message) ([]byte, error) {
	op.Stats.NS, op.Stats.Type = ns, "command"
	m := as(forwardedCommand(op, ns))
	from := len(dst)
	err := r.routed(op, ns, create, func(info *cluster.CollectionInfo) error {
		var err error
		if info.DB.Version.IsFixed() { // no shard coordinates its DDL; its only sharded collection is config.system.sessions
			if info.Sharded() && !create {
				return mongoerr.Newf(mongoerr.IllegalOperation, "%s cannot be run on %s", op.Req.Spec.Name, ns)
			}
			dst, err = r.relay(op, info.DB.Primary, nil, info.ClientSuffix(info.DB.Primary), dst[:from])
			return err
		}
		dst, err = r.coordinated(op, info, m, dst[:from])
		return err
	})
	r.Catalog.InvalidateCollection(ns)
	return dst, err
}

// forwardedCommand returns a client's command without its generic arguments, except those in keep.
func forwardedCommand(op *command.Op, ns string, keep ...string) msg.ShardCommand {
	db, coll := cluster.SplitNS(ns)
	cmd, mark := value.Begin(nil)
	for it := value.Walk(op.Req.Body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		if !msg.Generic(k) || slices.Contains(keep, string(k)) {
			cmd = append(cmd, raw...)
		}
	}
	return msg.ShardCommand{DB: db, Coll: coll, Command: value.End(cmd, mark)}
}

// cmdNS returns the namespace of a command: its value if that is a name, else that of the database's own
// commands.
func cmdNS(op *command.Op) (string, error) {
	if op.Req.Spec.Namespace {
		coll, err := op.Req.Coll()
		return op.Req.NS(coll), err
	}
	return op.Req.NS("$cmd"), nil
}

func (r *Router) primaryCommand(op *command.Op, write bool, dst []byte) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	op.Stats.NS, op.Stats.Type = ns, "command"
	from := len(dst)
	err = r.routed(op, ns, write, func(info *cluster.CollectionInfo) error {
		var err error
		shard := info.DB.Primary
		var at cluster.Peer
		if dst, at, err = r.relayAt(op, shard, nil, info.Suffix(shard), dst[:from]); err == nil {
			r.adopt(op, at, dst, from)
		}
		return err
	})
	return dst, err
}

// onOwners sends a command to every shard that has the collection and merges their replies.
func (r *Router) onOwners(op *command.Op, write bool, dst []byte, merge func(info *cluster.CollectionInfo, replies []shardReply, dst []byte) ([]byte, error)) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	op.Stats.NS, op.Stats.Type = ns, "command"
	from := len(dst)
	err = r.routed(op, ns, write, func(info *cluster.CollectionInfo) error {
		var err error
		if !info.Sharded() {
			var at cluster.Peer
			if dst, at, err = r.relayAt(op, info.Home(), nil, info.Suffix(info.Home()), dst[:from]); err == nil {
				r.adopt(op, at, dst, from)
			}
			return err
		}
		replies := r.scatter(op, info.Shards(), func(s string) ([]byte, []wire.Sequence) {
			return versioned(op.Req.Body, info, s), op.Req.Msg.Seqs
		})
		replies, err = settled(replies)
		if err != nil {
			return err
		}
		collectWriteConcernErrors(op, replies)
		dst, err = merge(info, replies, dst[:from])
		return err
	})
	return dst, err
}

// settled returns the replies of a command that shards may have executed in an earlier attempt, before another
// shard reported a stale version: an index that some of them have just dropped may be missing there.
func settled(replies []shardReply) ([]shardReply, error) {
	var done []shardReply
	var missing error
	for i := range replies {
		switch err := replies[i].err; {
		case err == nil:
			done = append(done, replies[i])
		case mongoerr.CodeOf(err) == mongoerr.IndexNotFound:
			missing = err
		}
	}
	if len(done) > 0 && missing != nil {
		rest := replies[:0:0]
		for i := range replies {
			if mongoerr.CodeOf(replies[i].err) != mongoerr.IndexNotFound {
				rest = append(rest, replies[i])
			}
		}
		replies = rest
	}
	return replies, firstError(replies)
}

// firstReply returns the first shard's reply, for commands whose replies are the same on all shards.
func firstReply(_ *cluster.CollectionInfo, replies []shardReply, dst []byte) ([]byte, error) {
	return append(dst, rebuildElements(replies[0].body, replyTrailer)...), nil
}

var replyTrailer = map[string]bool{"ok": true, "$clusterTime": true, "operationTime": true, "$configTime": true, "$topologyTime": true, "writeConcernError": true}

// createIndexes on a sharded collection is coordinated, and reports each shard's reply under raw.
func (r *Router) createIndexes(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	if err := r.keepOwn(op, ns); err != nil {
		return dst, err
	}
	if cluster.FixedDatabase(op.DB()) || transactionOf(op) != nil {
		return r.onOwners(op, true, dst, r.rawReplies)
	}
	op.Stats.NS, op.Stats.Type = ns, "command"
	from := len(dst)
	err = r.routed(op, ns, true, func(info *cluster.CollectionInfo) error {
		buckets, err := r.freshBuckets(op, info)
		if err != nil {
			return err
		}
		if buckets != nil {
			info = buckets
		}
		if !info.Sharded() && buckets == nil {
			dst, err = r.toHome(op, info, dst[:from])
			return err
		}
		// Builds wait for the client's own write concern, whose failure is reported and changes nothing.
		dst, err = r.coordinatedWith(op, genericArguments(op), info, &msg.ShardCreateIndexes{ShardCommand: forwardedCommand(op, ns, "writeConcern")}, dst[:from])
		if err == nil {
			r.noteConcerns(op, info, dst[from:])
		}
		return err
	})
	return dst, err
}

// noteConcerns reports the write concern errors in a coordinator's reply that quotes the shards' replies.
func (r *Router) noteConcerns(op *command.Op, info *cluster.CollectionInfo, reply []byte) {
	doc, mark := value.Begin(nil)
	raw := value.LookupDoc(value.End(append(doc, reply...), mark), "raw")
	var replies []shardReply
	for _, id := range info.Shards() {
		replies = append(replies, shardReply{shard: id, body: value.LookupDoc(raw, r.connString(id))})
	}
	collectWriteConcernErrors(op, replies)
}

func (r *Router) dropIndexes(op *command.Op, dst []byte) ([]byte, error) {
	if cluster.FixedDatabase(op.DB()) {
		return r.onOwners(op, false, dst, r.rawReplies)
	}
	return r.onPrimaryLocked(op, dst, func(c msg.ShardCommand) msg.Message { return &msg.ShardDropIndexes{ShardCommand: c} })
}

func (r *Router) collMod(op *command.Op, dst []byte) ([]byte, error) {
	if cluster.FixedDatabase(op.DB()) {
		return r.onOwners(op, false, dst, r.rawReplies)
	}
	return r.onPrimaryLocked(op, dst, func(c msg.ShardCommand) msg.Message { return &msg.ShardCollMod{ShardCommand: c} })
}

func (r *Router) rawReplies(_ *cluster.CollectionInfo, replies []shardReply, dst []byte) ([]byte, error) {
	dst, m := value.BeginKey(dst, value.Document, "raw")
	for i := range replies {
		dst = value.Append(dst, r.connString(replies[i].shard), value.NewDocument(rebuild(replies[i].body, map[string]bool{"$clusterTime": true, "operationTime": true})))
	}
	return value.End(dst, m), nil
}

// connString returns a shard's name in raw replies: set/host:port.
func (r *Router) connString(shard string) string {
	if s, err := r.Registry.Shard(context.Background(), shard); err == nil && s.Host != "" {
		return s.Host
	}
	return shard
}

// listIndexes is answered by one shard that has the collection: all have the same indexes.
func (r *Router) listIndexes(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	from := len(dst)
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		shard := info.Shards()[0]
		var at cluster.Peer
		if dst, at, err = r.relayAt(op, shard, nil, info.Suffix(shard), dst[:from]); err == nil {
			r.adopt(op, at, dst, from)
		}
		return err
	})
	return dst, err
}

// create creates a collection or view on the database's primary shard.
func (r *Router) create(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	if transactionOf(op) != nil {
		dst, err = r.toPrimaryWrite(op, dst)
		r.Catalog.InvalidateCollection(ns)
		return dst, err
	}
	if err := r.keepOwn(op, ns); err != nil {
		return dst, err
	}
	return r.forwarded(op, ns, true, dst, func(c msg.ShardCommand) msg.Message { return &msg.ShardCreate{ShardCommand: c} })
}

// keepOwn refuses to create, as a side effect or on purpose, a collection that the cluster creates itself, with the indexes and the placement that it needs.
func (r *Router) keepOwn(op *command.Op, ns string) error {
	switch ns {
	case "admin.system.users", "admin.system.roles", "admin.system.version", "admin.system.keys", "config.system.sessions":
	default:
		return nil
	}
	if ns == "config.system.sessions" {
		info, err := r.Catalog.Collection(op, ns)
		if err != nil || info.Sharded() {
			return err
		}
	} else {
		db, coll := cluster.SplitNS(ns)
		have, err := cluster.FindAll(op, r.config, db, msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(coll)))}))
		if err != nil || len(have) > 0 {
			return err
		}
	}
	return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot create %s, which the cluster creates itself when it needs it", ns)
}

// coordinated makes the primary shard of a database coordinate a DDL, with the request's generic arguments. If the reply is lost, or the
// shard has no primary, it sends the request again, with the id by which the coordinator recognizes it: the reply is that to the first one.
//
// Its steps wait for majorities, whatever the client asked for, so the client's write concern is replaced by majority (manual: create, drop, renameCollection …).
func (r *Router) coordinated(op *command.Op, info *cluster.CollectionInfo, m msg.Message, dst []byte) ([]byte, error) {
	generic := genericArguments(op, "writeConcern")
	if !value.Lookup(op.Req.Body, "writeConcern").IsMissing() {
		generic = value.Append(generic, "writeConcern", value.NewDocument(atMajority(op.Req.AskedConcern().Timeout)))
	}
	return r.coordinatedWith(op, generic, info, m, dst)
}

// atMajority returns the write concern of a DDL operation. A client's wtimeout limits how long the client waits for nodes that have no majority.
func atMajority(wait time.Duration) []byte {
	wc := []value.Field{value.F("w", value.NewString("majority"))}
	if wait > 0 {
		wc = append(wc, value.F("wtimeout", value.NewInt64(wait.Milliseconds())))
	}
	return value.Doc(wc...)
}

func (r *Router) coordinatedWith(op *command.Op, generic []byte, info *cluster.CollectionInfo, m msg.Message, dst []byte) ([]byte, error) {
	id, from, since := cluster.NewUUID(), len(dst), r.Clock.ClusterTime()
	var changing time.Time // since when the shard's members have been changing their roles
	for again, try := false, 0; ; again = true {
		request := value.Doc(value.F("id", value.NewBinary(4, id[:])), value.F("again", value.NewBool(again)), value.F("since", value.NewTimestampU64(since)))
		body := rebuild(msg.Doc(m), nil, value.Append(slices.Clone(generic), msg.RequestID, value.NewDocument(request)))
		began := time.Now()
		dst, err := r.relay(op, info.DB.Primary, body, cluster.AppendDatabaseVersion(nil, info.DB.Version), dst[:from])
		if err == nil || !cluster.Retryable(err) {
			return dst, err
		}
		if now := time.Now(); changing.IsZero() || now.Sub(began) > time.Second {
			changing = now // until now a primary had the operation under way
		}
		if !isStateChange(mongoerr.CodeOf(err)) || time.Since(changing) > electedWithin {
			try++
		}
		if try > coordinatedAgain {
			return dst, err
		}
		if over := cluster.Sleep(op, 20*time.Millisecond<<(2*try)); over != nil {
			return dst, over
		}
	}
}

// A DDL operation is sent again while the shard elects a primary, for so long, and otherwise a few times. One that takes minutes may meet any number of elections.
const (
	electedWithin    = 15 * time.Second
	coordinatedAgain = 3
)

// refuseUnknown refuses arguments that a command does not have: the message to its coordinator has only known ones.
func refuseUnknown(op *command.Op, known ...string) error {
	first := true
	for k := range value.Elements(op.Req.Body) {
		if !first && !msg.Generic([]byte(k)) && !slices.Contains(known, k) {
			return command.UnknownField(op.Req.Spec.Name + "." + k)
		}
		first = false
	}
	return nil
}

// drop removes a collection. The config server drops its own collections.
func (r *Router) drop(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := cmdNS(op)
	if err != nil {
		return r.relayAny(op, dst)
	}
	op.Stats.NS = ns
	if err := refuseUnknown(op, "collectionUUID"); err != nil {
		return dst, err
	}
	from := len(dst)
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		expected, err := op.Req.UUID("collectionUUID")
		if err != nil {
			return err
		}
		if !info.DB.Version.IsFixed() {
			db, coll := cluster.SplitNS(ns)
			dst, err = r.coordinated(op, info, &msg.ShardDropCollection{DB: db, Coll: coll, UUID: expected}, dst[:from])
			r.Catalog.InvalidateCollection(ns)
			return err
		}
		if !info.Sharded() {
			dst, err = r.toHome(op, info, dst[:from])
			return err
		}
		reply, err := r.onConfig(op, &msg.DropCollection{NS: ns, UUID: expected})
		if err != nil {
			return err
		}
		r.Catalog.InvalidateCollection(ns)
		dst = append(dst[:from], rebuildElements(reply, replyTrailer)...)
		return nil
	})
	return dst, err
}

// onConfig sends an internal command to the config server.
func (r *Router) onConfig(op *command.Op, m msg.Message) ([]byte, error) {
	return r.runOnConfig(op, msg.Doc(m))
}

// runOnConfig runs a command on the config server.
func (r *Router) runOnConfig(op *command.Op, body []byte) ([]byte, error) {
	reply, err := r.askConfig(op, body)
	if err != nil {
		return nil, err
	}
	if t := value.Lookup(reply, "operationTime"); t.T == value.Timestamp {
		op.AdvanceOperationTime(t.TimestampU64())
	}
	return reply, cluster.ReplyError(reply)
}

// askConfig sends the config server a command that may block: without a majority, on it or on a shard, nothing is
// decided. The caller waits no longer than its operation allows; the config server ends the command on its own,
// and waits for it before it closes.
func (r *Router) askConfig(ctx context.Context, body []byte) ([]byte, error) {
	type answer struct {
		reply []byte
		err   error
	}
	base := context.Background()
	if op := command.FromContext(ctx); op != nil {
		base = context.WithValue(base, cluster.SentBy, cmp.Or(op.Service.Host, op.Client.Remote))
		base = context.WithValue(base, cluster.BypassesWriteBlock, op.BypassesWriteBlock())
	}
	own, cancel := context.WithCancelCause(base)
	done := make(chan answer, 1)
	go func() {
		reply, err := r.config.Call(own, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
		done <- answer{reply, err}
	}()
	select {
	case a := <-done:
		cancel(nil)
		return a.reply, a.err
	case <-ctx.Done():
	}
	cancel(ctx.Err())
	select {
	case a := <-done:
		if mongoerr.CodeOf(a.err) == mongoerr.Interrupted || mongoerr.CodeOf(cluster.ReplyError(a.reply)) == mongoerr.Interrupted {
			return nil, ctx.Err() // says what interrupted the command
		}
		return a.reply, a.err
	case <-time.After(configGrace):
		return nil, ctx.Err()
	}
}

// configGrace is the time for which an interrupted command still waits for the config server's reply.
const configGrace = 200 * time.Millisecond

// dropDatabase removes a database everywhere; for one that does not exist there is nothing to do.
func (r *Router) dropDatabase(op *command.Op, dst []byte) ([]byte, error) {
	db := op.DB()
	if db == "config" {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "Cannot drop the config database")
	}
	if db == "admin" {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "Dropping the 'admin' database is prohibited.")
	}
	if v := op.Req.Cmd; !v.T.Numeric() || value.SafeInt64(v) != 1 {
		return r.relayAny(op, dst) // the shard reports the error
	}
	if err := refuseUnknown(op); err != nil {
		return dst, err
	}
	from := len(dst)
	err := r.routed(op, db+".$cmd", false, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = r.coordinated(op, info, &msg.ShardDropDatabase{DB: db}, dst[:from])
		return err
	})
	r.Catalog.PurgeDatabase(db)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return dst[:from], nil
	}
	return dst, err
}

// renameCollection makes the primary shard of the database execute the rename.
func (r *Router) renameCollection(op *command.Op, dst []byte) ([]byte, error) {
	from, to := op.Req.Cmd.Str(), op.Req.Str("to")
	if op.Req.Cmd.T != value.String {
		return r.relayAny(op, dst)
	}
	if err := refuseUnknown(op, "to", "dropTarget", "stayTemp", "collectionUUID"); err != nil {
		return dst, err
	}
	stay := value.Lookup(op.Req.Body, "stayTemp")
	if !stay.IsNullish() && stay.T != value.Boolean {
		return dst, command.WrongType("renameCollection.stayTemp", stay.T, command.TBool)
	}
	start := len(dst)
	sdb, _ := cluster.SplitNS(from)
	if command.CheckRename(from, to) != nil {
		return r.relayAny(op, dst) // the shard reports what is wrong with the names
	}
	if _, err := r.Catalog.Database(op, sdb); mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return r.relayAny(op, dst) // the shard reports that the collection does not exist
	}
	err := r.routed(op, from, false, func(src *cluster.CollectionInfo) error {
		tdb, _ := cluster.SplitNS(to)
		if command.CheckDBName(tdb) == nil && tdb != sdb {
			// If this creates a database, its primary shard is the source's.
			target, err := r.Catalog.Collection(op, to)
			if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
				if err = r.createDatabase(op, tdb, src.DB.Primary); err == nil {
					target, err = r.Catalog.Collection(op, to)
				}
			}
			if err != nil {
				return err
			}
			if target.DB.Primary != src.DB.Primary {
				if err := r.onOneShard(op, sdb, tdb); err != nil {
					return err
				}
				return cluster.StaleDbVersion(sdb, src.DB.Version, nil) // what was cached is out of date
			}
		}
		if src.DB.Version.IsFixed() {
			var err error
			dst, err = r.relay(op, src.DB.Primary, nil, src.Suffix(src.DB.Primary), dst[:start])
			return err
		}
		uuid, err := op.Req.UUID("collectionUUID")
		if err == nil {
			dst, err = r.coordinated(op, src, &msg.ShardRename{NS: from, To: to, DropTarget: op.Arg("dropTarget"), StayTemp: stay.Truthy(), UUID: uuid}, dst[:start])
		}
		return err
	})
	r.Catalog.InvalidateCollection(from)
	r.Catalog.InvalidateCollection(to)
	return dst, err
}

// onOneShard refuses a rename between databases of different primary shards. It reads both again: another router may have moved them.
func (r *Router) onOneShard(op *command.Op, a, b string) error {
	r.Catalog.InvalidateDatabase(a)
	r.Catalog.InvalidateDatabase(b)
	from, err := r.Catalog.Database(op, a)
	if err != nil {
		return err
	}
	to, err := r.Catalog.Database(op, b)
	if err == nil && from.Primary != to.Primary {
		err = mongoerr.New(mongoerr.CommandFailed, "Source and destination collections must be on same shard")
	}
	return err
}

// listDatabases merges the shards' lists of databases.
func (r *Router) listDatabases(op *command.Op, dst []byte) ([]byte, error) {
	shards, err := r.Registry.All(op)
	if err != nil {
		return dst, err
	}
	ids, alsoShard := []string{cluster.ConfigShardID}, false // whether the config server is a shard
	for _, s := range shards {
		if s.ID != cluster.ConfigShardID {
			ids = append(ids, s.ID)
		} else {
			alsoShard = true
		}
	}
	nameOnly := op.Bool("nameOnly")
	replies := r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return op.Req.Body, nil })
	if err := firstError(replies); err != nil {
		return dst, err
	}
	dbs := map[string]*dbSize{}
	for i := range replies {
		onConfig := replies[i].shard == cluster.ConfigShardID
		for _, d := range value.Values(value.Lookup(replies[i].body, "databases").Doc()) {
			name := value.Lookup(d.Doc(), "name").Str()
			if fixed := cluster.FixedDatabase(name); name == "local" || fixed && !onConfig || !fixed && onConfig && !alsoShard {
				continue
			}
			e := dbs[name]
			if e == nil {
				e = &dbSize{name: name, empty: true}
				dbs[name] = e
			}
			size, _ := value.Lookup(d.Doc(), "sizeOnDisk").AsInt64()
			e.add(replies[i].shard, size, value.Lookup(d.Doc(), "empty").Truthy())
		}
	}
	return appendDatabases(dst, dbs, nameOnly), nil
}

// dbSize is a database's size over its shards.
type dbSize struct {
	name  string
	size  int64
	empty bool
	on    []value.Field
}

func (e *dbSize) add(shard string, size int64, empty bool) {
	e.size += size
	e.empty = e.empty && empty
	e.on = append(e.on, value.F(shard, value.NewInt64(size)))
}

func appendDatabases(dst []byte, dbs map[string]*dbSize, nameOnly bool) []byte {
	names := make([]string, 0, len(dbs))
	for n := range dbs {
		names = append(names, n)
	}
	sort.Strings(names)
	total := int64(0)
	dst, m := value.BeginKey(dst, value.Array, "databases")
	for i, n := range names {
		f := []value.Field{value.F("name", value.NewString(n))}
		if e := dbs[n]; !nameOnly {
			total += e.size
			f = append(f, value.F("sizeOnDisk", value.NewInt64(e.size)), value.F("empty", value.NewBool(e.empty)),
				value.F("shards", value.NewDocument(value.Doc(e.on...))))
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(value.Doc(f...)))
	}
	dst = value.End(dst, m)
	if !nameOnly {
		dst = value.Append(dst, "totalSize", value.NewInt64(total))
		dst = value.Append(dst, "totalSizeMb", value.NewInt64(total/(1<<20)))
	}
	return dst
}

// validate reports valid if all shards do.
func (r *Router) validate(op *command.Op, dst []byte) ([]byte, error) {
	all := func(info *cluster.CollectionInfo, replies []shardReply, dst []byte) ([]byte, error) {
		valid := true
		for i := range replies {
			valid = valid && value.Lookup(replies[i].body, "valid").Truthy()
		}
		dst, _ = r.rawReplies(info, replies, dst)
		return value.Append(dst, "valid", value.NewBool(valid)), nil
	}
	return r.onOwnersOrBuckets(op, all, dst)
}
