package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/storage"
)

// damagedDir is the data directory of a standalone server that is opened within the test.
type damagedDir struct {
	t   *testing.T
	dir string
}

// open runs f on the directory's server.
func (d *damagedDir) open(f func(s *shardnode.Server, run func(cmd bson.D) bson.M)) {
	d.t.Helper()
	s, err := shardnode.Open(shardnode.Config{Dir: d.dir, Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			d.t.Error(err)
		}
	}()
	f(s, func(cmd bson.D) bson.M {
		d.t.Helper()
		body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: "d"}))
		if err != nil {
			d.t.Fatal(err)
		}
		reply, err := cluster.Run(d.t.Context(), s.Peer(), body)
		out := bson.M{}
		if err == nil {
			err = bson.Unmarshal(reply, &out)
		}
		if err != nil {
			d.t.Fatal(err)
		}
		return out
	})
}

// fill makes a collection with an index of which count entries are wrong.
func (d *damagedDir) fill(coll string, count int32) {
	d.open(func(s *shardnode.Server, run func(cmd bson.D) bson.M) {
		var docs bson.A
		for i := range count + 5 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i}})
		}
		run(bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}}}}})
		run(bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
		e := s.Engine
		c := e.Catalog().Lookup("d." + coll)
		snap := e.Snapshot()
		defer snap.Release()
		u := e.NewUnitOfWork(snap)
		for i := range count {
			rid, doc, ok, err := snap.FindByID(c, value.NewInt32(i))
			if err != nil || !ok {
				d.t.Fatal(ok, err)
			}
			rid, doc = rid.Clone(), append([]byte(nil), doc...)
			other := value.Doc(value.F("_id", value.NewInt32(i)), value.F("a", value.NewInt32(-1-i)))
			marked := value.Doc(value.F("_id", value.NewInt32(i)), value.F("a", value.NewInt32(i)), value.F("b", value.NewInt32(i)))
			// The second update states the wrong old document, whose key is that of the new one: it leaves the index as it is.
			for _, to := range [][]byte{other, marked} {
				if err := u.Update(c, rid, doc, to, storage.NoInfo); err != nil {
					d.t.Fatal(err)
				}
			}
		}
		if _, err := e.Commit(d.t.Context(), u, true); err != nil {
			d.t.Fatal(err)
		}
	})
}

// valid reports whether validate finds nothing wrong.
func (d *damagedDir) valid(coll string) (ok bool) {
	d.open(func(_ *shardnode.Server, run func(cmd bson.D) bson.M) {
		ok = run(bson.D{{Key: "validate", Value: coll}, {Key: "full", Value: true}})["valid"].(bool)
	})
	return ok
}

// mongod --repair repairs the indexes of every collection, more faults than one validation lists, and exits; a second time it finds nothing. The
// directory may be named by a configuration file.
func TestRepairOfADirectory(t *testing.T) {
	for _, byFile := range []bool{false, true} {
		d := &damagedDir{t, t.TempDir()}
		d.fill("many", 2500)
		d.fill("few", 1)
		if d.valid("many") || d.valid("few") {
			t.Fatal("the directory is not damaged")
		}
		args := []string{"mongod", "--repair", "--dbpath", d.dir}
		if byFile {
			file := filepath.Join(t.TempDir(), "conf")
			if err := os.WriteFile(file, []byte("storage: {dbPath: "+d.dir+"}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args = []string{"mongod", "--repair", "--config", file}
		}
		for _, want := range []string{`"repaired":2`, `"repaired":0`} {
			out, err := shoal(t, "shoal", args...).CombinedOutput()
			if exitCode(err) != exitClean || !strings.Contains(string(out), want) {
				t.Errorf("%v, want %s: %s", err, want, out)
			}
			if told := strings.Contains(string(out), `"namespace":"d.many","records":2505,"entriesAdded":2500,"entriesRemoved":2500,`); told != (want == `"repaired":2`) {
				t.Errorf("what was done: %s", out)
			}
		}
		if !d.valid("many") || !d.valid("few") {
			t.Error("the directory is not repaired")
		}
	}
}

// Two documents with one key of a unique index are left as they are, with an error that names the index.
func TestRepairLeavesDuplicates(t *testing.T) {
	d := &damagedDir{t, t.TempDir()}
	d.open(func(s *shardnode.Server, run func(cmd bson.D) bson.M) {
		run(bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}, {Key: "unique", Value: true}}}}})
		run(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}}, bson.D{{Key: "_id", Value: 2}, {Key: "a", Value: 2}}}}})
		e := s.Engine
		snap := e.Snapshot()
		defer snap.Release()
		c, u := e.Catalog().Lookup("d.c"), e.NewUnitOfWork(snap)
		rid, _, ok, err := snap.FindByID(c, value.NewInt32(2))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		one := value.Doc(value.F("_id", value.NewInt32(2)), value.F("a", value.NewInt32(1)))
		if err := u.Update(c, rid.Clone(), one, append([]byte(nil), one...), storage.NoInfo); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Commit(t.Context(), u, true); err != nil {
			t.Fatal(err)
		}
	})
	out, err := shoal(t, "shoal", "mongod", "--repair", "--dbpath", d.dir).CombinedOutput()
	if exitCode(err) != exitUncaught || !strings.Contains(string(out), "the unique index a_1 has a key of several documents") {
		t.Errorf("%v: %s", err, out)
	}
}

// What --repair cannot do makes it fail, with the reason: the options of a set's member, a directory of one, a directory that is missing or in use.
func TestRepairThatIsRefused(t *testing.T) {
	t.Parallel()
	set := launchSet(t, setOptions{members: 2})
	for _, m := range set.members {
		m.kill()
	}
	for _, tc := range []struct {
		args, want string
		code       int
	}{
		{"--dbpath " + t.TempDir() + " --replSet rs", "--repair is for standalone servers", exitBadOption},
		{"--memory", "nothing to repair", exitBadOption},
		{"--dbpath /nonexistent/data", "NonExistentPath", exitUncaught},
		{"--dbpath " + set.members[0].dbpath(), "replica set of several members", exitUncaught},
	} {
		out, err := shoal(t, "shoal", append([]string{"mongod", "--repair"}, strings.Fields(tc.args)...)...).CombinedOutput()
		if exitCode(err) != tc.code || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: %v, %s", tc.args, err, out)
		}
	}
}
