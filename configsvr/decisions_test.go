package configsvr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// takers notes which of several goroutines has got its locks, in the order in which they have got them.
type takers struct {
	t     *testing.T
	order []string
}

func (k *takers) take(what string, take func() (func(), error)) (free func()) {
	freed := make(chan struct{})
	go func() {
		unlock, err := take()
		if err != nil {
			k.order = append(k.order, what+" gives up")
			return
		}
		k.order = append(k.order, what)
		<-freed
		unlock()
		unlock()
	}()
	synctest.Wait()
	return func() {
		close(freed)
		synctest.Wait()
	}
}

func (k *takers) got(want string) {
	k.t.Helper()
	if got := strings.Join(k.order, ", "); got != want {
		k.t.Errorf("got %s, not %s", got, want)
	}
}

// A lock that is shared keeps out who wants it alone, who keeps out those who come to share it later; several names are taken at once, or none; and a wait ends
// with its operation, and lets go on those who have waited for it.
func TestNameLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l nameLocks
		k := &takers{t: t}
		share := func(what, name string) func() {
			return k.take(what, func() (func(), error) { return l.share(t.Context(), name) })
		}
		short, cancel := context.WithCancel(t.Context())
		first, second := share("first", "a"), share("second", "a")
		both := k.take("both", func() (func(), error) { return l.lock(t.Context(), "b", "a") })
		brief := k.take("brief", func() (func(), error) { return l.lock(short, "a") })
		b := k.take("b", func() (func(), error) { return l.lock(t.Context(), "b") }) // which both does not hold while it waits
		late := share("late", "a")
		cancel()
		synctest.Wait()
		for _, free := range []func(){first, second, b, both, late, brief} {
			free()
		}
		k.got("first, second, b, brief gives up, late, both")
		k.order = nil
		short, cancel = context.WithCancel(t.Context())
		first = share("first", "a")
		brief = k.take("brief", func() (func(), error) { return l.lock(short, "a") })
		late = share("late", "a")
		k.got("first")
		cancel()
		synctest.Wait()
		k.got("first, brief gives up, late")
		for _, free := range []func(){first, late, brief} {
			free()
		}
		if len(l.held) != 0 {
			t.Errorf("%d are left", len(l.held))
		}
	})
}

// A shard that was removed and added again while the removal of the first was decided stays.
func TestOnlyDrainingShardsAreForgotten(t *testing.T) {
	s := &catalogStore{} // with a shard, and one that is draining
	m := managerOf(s, frozen)
	for _, id := range []string{"a", "c"} {
		if err := m.forgetShard(t.Context(), id); mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := m.forgetShard(t.Context(), "b"); err != nil || s.ids("shards") != "a" {
		t.Errorf("left are %s: %v", s.ids("shards"), err)
	}
}

// Names that differ only in case are the same name, by the rules of strings.EqualFold.
func TestFoldCase(t *testing.T) {
	names := []string{"db", "DB", "Db", "straße", "STRASSE", "kelvin", "\u212aelvin", "Σ", "ς", "σ", "ſ", "s", "S", "İ", "i", "I"}
	for _, x := range names {
		for _, y := range names {
			if (foldCase(x) == foldCase(y)) != strings.EqualFold(x, y) {
				t.Errorf("%s and %s: folded %v, equal %v", x, y, foldCase(x) == foldCase(y), strings.EqualFold(x, y))
			}
		}
	}
}

// catalogStore is the store of a config server: config.shards, databases and chunks. It answers finds with all documents, unless one has the requested _id.
type catalogStore struct {
	docs map[string][][]byte
	gate chan struct{}     // a write waits for it; nil for none
	read func(coll string) // is called once a find has its documents; nil for none
}

func (s *catalogStore) call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	switch string(m.CommandName()) {
	case "find":
		coll := value.Lookup(m.Body, "find").Str()
		out := s.docs[coll]
		if id := value.Lookup(value.LookupDoc(m.Body, "filter"), "_id"); id.T == value.String {
			out = slices.DeleteFunc(slices.Clone(out), func(d []byte) bool { return value.Lookup(d, "_id").Str() != id.Str() })
		}
		batch := make([]value.Value, len(out))
		for i, d := range out {
			batch[i] = value.NewDocument(d)
		}
		if s.read != nil {
			s.read(coll)
		}
		return append(dst, value.Doc(fld("cursor", doc(fld("id", value.NewInt64(0)), fld("ns", str("config."+coll)), fld("firstBatch", arr(batch...)))), fld("ok", value.NewDouble(1)))...), nil
	case "_writeTogether":
		if s.gate != nil {
			select {
			case <-s.gate:
			case <-ctx.Done():
				return dst, ctx.Err()
			}
		}
		var w msg.WriteTogether
		if err := msg.Parse(m.Body, &w); err != nil {
			return dst, err
		}
		s.change(w.NS, &w.Changes)
		if w.AlsoNS != "" {
			s.change(w.AlsoNS, &w.Also)
		}
	}
	return append(dst, value.Doc(fld("n", value.NewInt32(1)), fld("ok", value.NewDouble(1)))...), nil
}

func (s *catalogStore) change(ns string, c *msg.Changes) {
	_, coll := cluster.SplitNS(ns)
	gone := func(d []byte) bool {
		id := value.Lookup(d, "_id").Str()
		return slices.ContainsFunc(c.Delete, func(v value.Value) bool { return v.Str() == id }) || slices.ContainsFunc(c.Put, func(p []byte) bool { return value.Lookup(p, "_id").Str() == id })
	}
	s.docs[coll] = slices.DeleteFunc(slices.Clone(s.docs[coll]), gone)
	for _, d := range c.Put {
		s.docs[coll] = append(s.docs[coll], slices.Clone(d))
	}
}

func (s *catalogStore) ids(coll string) string {
	var out []string
	for _, d := range s.docs[coll] {
		out = append(out, value.Lookup(d, "_id").Str())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// managerOf returns a manager of a cluster with the shards a and, draining, b, which reply as given.
func managerOf(s *catalogStore, shard func(context.Context, *wire.Message, []byte) ([]byte, error)) *Manager {
	return managerOfEach(s, func(string) cluster.LocalPeer { return shard })
}

// managerOfEach is managerOf for shards that reply in different ways.
func managerOfEach(s *catalogStore, shard func(set string) cluster.LocalPeer) *Manager {
	entry := func(id string, more ...value.Field) []byte {
		return value.Doc(append([]value.Field{fld("_id", str(id)), fld("host", str(id+"/"+id+":1"))}, more...)...)
	}
	s.docs = map[string][][]byte{"shards": {entry("a"), entry("b", fld("draining", value.NewBool(true)))}}
	local, clock := cluster.LocalPeer(s.call), cluster.NewVectorClock(time.Now)
	registry := cluster.NewRegistry(local, clock, func(set string, _ []string) (cluster.Peer, error) { return shard(set), nil })
	return New(local, registry, clock, func() string { return "c/c:1" })
}

func frozen(ctx context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
	<-ctx.Done()
	return dst, ctx.Err()
}

// A removal and a write that places something on the shard exclude each other from the check to the write, whichever comes first.
func TestPlacingAndRemovalExcludeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &catalogStore{gate: make(chan struct{})}
		m := managerOf(s, frozen)
		var placed, removed error
		put := func() {
			placed = m.place(t.Context(), []string{"b"}, func([]*cluster.Shard) error {
				chunk := value.Doc(fld("_id", str("chunk")), fld("uuid", value.NewBinary(4, make([]byte, 16))), fld("shard", str("b")))
				return m.writePlaced(t.Context(), &msg.WriteTogether{NS: "config.chunks", Changes: msg.Changes{Put: [][]byte{chunk}}})
			})
		}
		remove := func() {
			report, err := m.commitRemoval(t.Context(), "b")
			if removed = err; err == nil && report != nil {
				removed = mongoerr.New(mongoerr.IllegalOperation, "it has data")
			}
		}
		inOrder := func(first, second func()) {
			t.Helper()
			ended := false
			go first()
			synctest.Wait() // it has checked, and writes
			go func() { second(); ended = true }()
			synctest.Wait()
			if ended {
				t.Error("the second one does not wait for the first")
			}
			s.gate <- struct{}{}
			synctest.Wait()
			select {
			case s.gate <- struct{}{}:
				t.Error("the second one writes, too")
			default:
			}
			synctest.Wait()
		}
		inOrder(put, remove)
		if placed != nil || mongoerr.CodeOf(removed) != mongoerr.IllegalOperation || s.ids("shards") != "a b" {
			t.Errorf("placed %v, removed %v, shards %s", placed, removed, s.ids("shards"))
		}
		s.docs["chunks"] = nil
		inOrder(remove, put)
		if removed != nil || mongoerr.CodeOf(placed) != mongoerr.ShardNotFound || s.ids("shards") != "a" || s.ids("chunks") != "" {
			t.Errorf("removed %v, placed %v, shards %s, chunks %s", removed, placed, s.ids("shards"), s.ids("chunks"))
		}
	})
}

// One of several requests for names that differ only in case writes its entry, and the others see it: databases that are created, and those that a new shard brings.
func TestOneOfSeveralNamesIsWritten(t *testing.T) {
	for _, firstIsShard := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &catalogStore{gate: make(chan struct{})}
			m := managerOf(s, frozen)
			x := &newShard{id: "x", conn: "x/x:1", peer: cluster.LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
				return append(dst, value.Doc(fld("databases", arr(doc(fld("name", str("other"))), doc(fld("name", str("name"))))),
					fld("cursor", doc(fld("id", value.NewInt64(0)), fld("ns", str("any.$cmd.listCollections")), fld("firstBatch", arr(doc(fld("name", str("c"))))))), fld("ok", value.NewDouble(1)))...), nil
			})}
			var errs []error
			create := func(name string) {
				_, err := m.createDatabase(t.Context(), name, "a")
				errs = append(errs, err)
			}
			add := func() { errs = append(errs, m.listShard(t.Context(), x)) }
			if firstIsShard {
				go add()
			} else {
				go create("Name")
			}
			synctest.Wait()
			go create("NAME")
			go create("naMe")
			if !firstIsShard {
				go add()
			}
			synctest.Wait()
			for range 4 { // as many as would be written
				select {
				case s.gate <- struct{}{}:
				default:
				}
				synctest.Wait()
			}
			wrong := 0
			for _, err := range errs {
				if mongoerr.CodeOf(err) == mongoerr.DatabaseDifferCase {
					wrong++
				}
			}
			dbs, shards := s.ids("databases"), s.ids("shards")
			if wrong != len(errs)-1 || firstIsShard && (dbs != "name other" || shards != "a b x") || !firstIsShard && (dbs != "Name" || shards != "a b") {
				t.Errorf("%v; databases %s, shards %s", errs, dbs, shards)
			}
		})
	}
}

// A database that another request creates between two reads of config.databases is found. Its name was taken for one that differs in case, and of several clients
// that wrote first to a database, some got that error.
func TestDatabaseIsCreatedBetweenReads(t *testing.T) {
	s := &catalogStore{}
	m := managerOf(s, frozen)
	reads := 0
	s.read = func(coll string) {
		if coll != "databases" {
			return
		}
		if reads++; reads == 1 {
			s.change("config.databases", &msg.Changes{Put: [][]byte{m.newDatabase("name", "a")}})
		}
	}
	for db, want := range map[string]mongoerr.Code{"name": 0, "Name": mongoerr.DatabaseDifferCase} {
		s.docs["databases"], reads = nil, 0
		have, err := m.createDatabase(t.Context(), db, "a")
		if mongoerr.CodeOf(err) != want || want == 0 && (have.Name != db || have.Primary != "a") || s.ids("databases") != "name" {
			t.Errorf("%s: %v, %v; databases %s", db, have, err, s.ids("databases"))
		}
	}
}

// A draining shard that does not answer is no obstacle to the choice of a shard, which it cannot be. New databases waited for its size until it was removed.
func TestDrainingShardIsNotAskedForItsSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := managerOfEach(&catalogStore{}, func(set string) cluster.LocalPeer {
			if set == "b" {
				return frozen
			}
			return func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
				return append(dst, value.Doc(fld("totalSize", value.NewInt64(1)), fld("ok", value.NewDouble(1)))...), nil
			}
		})
		brief, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		have, err := m.createDatabase(brief, "name", "")
		if err != nil || have.Primary != "a" {
			t.Errorf("%v, %v", have, err)
		}
	})
}

// A shard that has reported its size for one database and freezes then is not chosen for the next one, although sizes are kept for a while. Once no shard that has reported one
// answers, all are asked again.
func TestShardFreezesAfterItsSizeWasReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped string
		store := &catalogStore{}
		m := managerOfEach(store, func(set string) cluster.LocalPeer {
			return func(ctx context.Context, req *wire.Message, dst []byte) ([]byte, error) {
				if set == stopped {
					return frozen(ctx, req, dst)
				}
				return append(dst, value.Doc(fld("totalSize", value.NewInt64(1)), fld("ok", value.NewDouble(1)))...), nil
			}
		})
		for i, id := range []string{"a", "b"} {
			store.docs["shards"][i] = value.Doc(fld("_id", str(id)), fld("host", str(id+"/"+id+":1")))
		}
		on := func(name string) string {
			t.Helper()
			brief, end := context.WithTimeout(t.Context(), time.Minute)
			defer end()
			have, err := m.createDatabase(brief, name, "")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return have.Primary
		}
		on("one")
		for i, id := range []string{"b", "a", "b"} { // b has fewer databases
			stopped = id
			if name := fmt.Sprintf("two%d", i); on(name) == id {
				t.Errorf("database %s has the frozen shard %s as its primary shard", name, id)
			}
		}
	})
}

// While shards that are asked for their sizes or databases are frozen, everything else goes on, and whoever waits for them waits at most until its operation ends.
func TestFrozenShardsAreAskedWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := managerOf(&catalogStore{}, frozen)
		brief, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		var waited []error
		for _, name := range []string{"one", "two"} {
			go func() {
				_, err := m.createDatabase(brief, name, "")
				waited = append(waited, err)
			}()
		}
		go func() {
			waited = append(waited, m.listShard(brief, &newShard{id: "x", conn: "x/x:1", peer: cluster.LocalPeer(frozen)}))
		}()
		synctest.Wait()
		if _, err := m.createDatabase(t.Context(), "one", "a"); err != nil { // the bubble fails if one of these waits
			t.Error(err)
		}
		if _, err := m.commitRemoval(t.Context(), "b"); err != nil {
			t.Error(err)
		}
		for _, lock := range []func(context.Context) (func(), error){m.lockTables, m.lockList, m.lockHistory} {
			unlock, err := lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			unlock()
		}
		if len(waited) > 0 {
			t.Errorf("before the limit: %v", waited)
		}
		time.Sleep(2 * time.Second) // in the bubble
		synctest.Wait()
		if len(waited) != 3 || slices.Contains(waited, nil) {
			t.Errorf("after the limit: %v", waited)
		}
	})
}
