package chaos

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stepLimit is the maximum duration of a step.
const stepLimit = 30 * time.Second

// Step is an action of chaos: one that was executed, or one from a log to be executed again.
type Step struct {
	At   time.Duration // since the run began
	Kind Kind
	Do   []byte // the command, or how many clients' commands are disturbed and how
	On   string // the shard that the command is sent to; "" for the router
	Took time.Duration
	Err  error
}

// Doc returns the document of a step for the log and for shoalChaos.
func (s *Step) Doc() []byte {
	f := []value.Field{
		value.F("atMS", value.NewInt64(s.At.Milliseconds())), value.F("kind", value.NewString(string(s.Kind))), value.F("do", value.NewDocument(s.Do)),
	}
	if s.On != "" {
		f = append(f, value.F("on", value.NewString(s.On)))
	}
	f = append(f, value.F("tookMS", value.NewInt64(s.Took.Milliseconds())))
	if s.Err != nil {
		f = append(f, value.F("error", value.NewString(s.Err.Error())))
	}
	return value.Doc(f...)
}

// ParseStep parses a document that Doc returned. It ignores the outcome, which may differ when the step is repeated.
func ParseStep(doc []byte) (*Step, error) {
	at, ok := value.Lookup(doc, "atMS").AsInt64()
	kind, do, on := value.Lookup(doc, "kind"), value.Lookup(doc, "do"), value.Lookup(doc, "on")
	if !ok || at < 0 || kind.T != value.String || do.T != value.Document || !on.IsMissing() && on.T != value.String {
		return nil, mongoerr.Newf(mongoerr.BadValue, "invalid step: atMS, kind and do are required, on is optional: %s", value.ShowDoc(doc))
	}
	s := &Step{At: time.Duration(at) * time.Millisecond, Kind: Kind(kind.Str()), Do: bytes.Clone(do.Doc()), On: on.Str()}
	return s, s.check()
}

// commands has the command that a step of each kind may send. Steps may come from a file, which must not be able to run
// others.
var commands = map[Kind]string{
	Split: "split", Move: "moveRange", Merge: "mergeChunks", StepDown: "replSetStepDown", MoveCollection: "moveCollection", MovePrimary: "movePrimary",
}

func (s *Step) check() error {
	first := ""
	for k := range value.Elements(s.Do) {
		first = k
		break
	}
	switch name, known := commands[s.Kind]; {
	case s.Kind == Delay || s.Kind == Cut || s.Kind == CutAfter:
		_, err := orderOf(s.Kind, s.Do)
		return err
	case !known || first != name:
		return mongoerr.Newf(mongoerr.BadValue, "invalid command for a step of kind '%s': %s", s.Kind, value.ShowDoc(s.Do))
	case (s.Kind == StepDown) != (s.On != ""):
		return mongoerr.New(mongoerr.BadValue, "a step of kind stepDown, and no other, must have 'on', the name of a shard")
	}
	return nil
}

// target is the cluster that steps act on.
type target struct {
	router   cluster.Peer
	registry *cluster.Registry
	disturb  *Disturber
}

// run executes a step.
func (t *target) run(ctx context.Context, s *Step) error {
	if err := s.check(); err != nil {
		return err
	}
	switch s.Kind {
	case Delay, Cut, CutAfter:
		o, err := orderOf(s.Kind, s.Do)
		if err == nil {
			t.disturb.give(o)
		}
		return err
	}
	peer := t.router
	if s.On != "" {
		shard, err := t.registry.Shard(ctx, s.On)
		if err != nil {
			return err
		}
		peer = shard.Peer
	}
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	_, err := cluster.Run(ctx, peer, withDB(s.Do))
	return err
}

func withDB(cmd []byte) []byte {
	out, mark := value.Begin(nil)
	for k, v := range value.Elements(cmd) {
		out = value.Append(out, k, v)
	}
	return value.End(value.Append(out, "$db", value.NewString("admin")), mark)
}

// choose turns a drawn step into a concrete one for the current cluster; it returns nil if no chunk or shard is eligible.
func (t *target) choose(ctx context.Context, d *draw) (*Step, error) {
	s := &Step{Kind: d.kind}
	switch d.kind {
	case Delay, Cut, CutAfter:
		// Only one connection breaks at a time: drivers retry once, and an application that relies on that must not see an
		// error.
		o := order{kind: d.kind, left: 1}
		if o.kind == Delay {
			o.left = 1 + d.pick(0, maxDisturbed)
			o.delay = time.Duration(1+d.pick(1, 300)) * time.Millisecond
		}
		s.Do = o.doc()
		return s, nil
	case StepDown:
		shards, err := t.shards(ctx)
		if err != nil || len(shards) == 0 {
			return nil, err
		}
		s.On = shards[d.pick(0, len(shards))]
		s.Do = value.Doc(value.F("replSetStepDown", value.NewInt32(2)), value.F("secondaryCatchUpPeriodSecs", value.NewInt32(1)), value.F("force", value.NewBool(true)))
		return s, nil
	case MoveCollection, MovePrimary:
		return t.choosePlace(ctx, d)
	}
	ns, chunks, err := t.chunks(ctx, d)
	if err != nil || len(chunks) == 0 {
		return nil, err
	}
	i := d.pick(1, len(chunks))
	switch d.kind {
	case Split:
		s.Do = value.Doc(value.F("split", value.NewString(ns)), value.F("bounds", value.NewArray(value.ArrayOf(chunks[i].min, chunks[i].max))))
	case Move:
		shards, err := t.shards(ctx)
		if err != nil {
			return nil, err
		}
		shards = slices.DeleteFunc(shards, func(id string) bool { return id == chunks[i].shard })
		if len(shards) == 0 {
			return nil, nil
		}
		s.Do = value.Doc(value.F("moveRange", value.NewString(ns)), value.F("min", chunks[i].min), value.F("max", chunks[i].max),
			value.F("toShard", value.NewString(shards[d.pick(2, len(shards))])))
	case Merge:
		for range chunks { // the next pair of adjacent chunks from there
			if j := i + 1; j < len(chunks) && chunks[i].shard == chunks[j].shard {
				s.Do = value.Doc(value.F("mergeChunks", value.NewString(ns)), value.F("bounds", value.NewArray(value.ArrayOf(chunks[i].min, chunks[j].max))))
				return s, nil
			}
			i = (i + 1) % len(chunks)
		}
		return nil, nil
	}
	return s, nil
}

// choosePlace returns a step that moves an unsharded collection, or a database's primary shard, to another shard.
func (t *target) choosePlace(ctx context.Context, d *draw) (*Step, error) {
	shards, err := t.shards(ctx)
	if err != nil || len(shards) < 2 {
		return nil, err
	}
	dbs, err := t.find(ctx, "databases", value.Doc(), "_id")
	if err != nil || len(dbs) == 0 {
		return nil, err
	}
	db := dbs[d.pick(0, len(dbs))]
	name, home := value.Lookup(db, "_id").Str(), value.Lookup(db, "primary").Str()
	to := func() value.Value {
		others := slices.DeleteFunc(slices.Clone(shards), func(id string) bool { return id == home })
		return value.NewString(others[d.pick(2, len(others))])
	}
	if d.kind == MovePrimary {
		return &Step{Kind: d.kind, Do: value.Doc(value.F("movePrimary", value.NewString(name)), value.F("to", to()))}, nil
	}
	colls, err := t.unsharded(ctx, name)
	if err != nil || len(colls) == 0 {
		return nil, err
	}
	c := colls[d.pick(1, len(colls))]
	if c.shard != "" {
		home = c.shard
	}
	return &Step{Kind: d.kind, Do: value.Doc(value.F("moveCollection", value.NewString(c.ns)), value.F("toShard", to()))}, nil
}

// placed is an unsharded collection. shard is the one that it was moved to; "" for the database's primary shard.
type placed struct{ ns, shard string }

// unsharded returns the unsharded collections of a database, in order of name.
func (t *target) unsharded(ctx context.Context, db string) (out []placed, err error) {
	plain := value.Doc(value.F("type", value.NewString("collection")), value.F("name", value.NewDocument(value.Doc(value.F("$not", value.NewRegex("^system\\.", ""))))),
		value.F("options.capped", value.NewDocument(value.Doc(value.F("$ne", value.NewBool(true)))))) // capped collections move with their database only
	docs, err := cluster.FindAll(ctx, t.router, db, msg.Doc(&msg.ListCollections{DB: db, Filter: plain}))
	if err != nil {
		return nil, err
	}
	for _, c := range docs {
		p := placed{ns: db + "." + value.Lookup(c, "name").Str()}
		entries, err := t.find(ctx, "collections", value.Doc(value.F("_id", value.NewString(p.ns))), "_id")
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			if !value.Lookup(entries[0], "unsplittable").Truthy() {
				continue
			}
			chunks, err := t.find(ctx, "chunks", value.Doc(value.F("uuid", value.Lookup(entries[0], "uuid"))), "min")
			if err != nil || len(chunks) == 0 {
				return nil, err
			}
			p.shard = value.Lookup(chunks[0], "shard").Str()
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b placed) int { return strings.Compare(a.ns, b.ns) })
	return out, nil
}

// shards returns the names of the shards that are not draining, in order.
func (t *target) shards(ctx context.Context) ([]string, error) {
	if err := t.registry.Reload(ctx); err != nil {
		return nil, err
	}
	all, err := t.registry.All(ctx)
	return cluster.Receiving(all, ""), err
}

type chunk struct {
	min, max value.Value
	shard    string
}

// chunks chooses one of the users' sharded collections and returns its chunks.
func (t *target) chunks(ctx context.Context, d *draw) (ns string, out []chunk, err error) {
	colls, err := t.find(ctx, "collections", value.Doc(), "_id")
	if err != nil {
		return "", nil, err
	}
	colls = slices.DeleteFunc(colls, func(c []byte) bool {
		id := value.Lookup(c, "_id").Str()
		return strings.HasPrefix(id, "config.") || value.Lookup(c, "unsplittable").Truthy() || strings.Contains(id, ".system.resharding.")
	})
	if len(colls) == 0 {
		return "", nil, nil
	}
	c := colls[d.pick(0, len(colls))]
	docs, err := t.find(ctx, "chunks", value.Doc(value.F("uuid", value.Lookup(c, "uuid"))), "min")
	for _, e := range docs {
		out = append(out, chunk{value.Lookup(e, "min"), value.Lookup(e, "max"), value.Lookup(e, "shard").Str()})
	}
	return value.Lookup(c, "_id").Str(), out, err
}

func (t *target) find(ctx context.Context, coll string, filter []byte, order string) ([][]byte, error) {
	return cluster.Find{NS: "config." + coll, Filter: filter, Sort: value.Doc(value.F(order, value.NewInt32(1)))}.All(ctx, t.router)
}
