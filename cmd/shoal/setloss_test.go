package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// With two of three members gone, writes fail with an error that drivers understand, local reads continue, and nothing is
// lost when the members return.
func TestTwoOfThreeMembersLost(t *testing.T) {
	t.Parallel()
	rs := launchSet(t, setOptions{members: 3, net: newNetwork(t)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	coll := connect(t, rs.uri()).Database("lost").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
	for i := range 50 {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	p := rs.elected()
	for i := range rs.members {
		if i != p {
			rs.kill(i)
		}
	}
	own := rs.members[p].direct.Database("lost").Collection("c")
	write := func(i int) error {
		wctx, cancel := context.WithTimeout(ctx, 4*electionTimeout)
		defer cancel()
		return own.Database().RunCommand(wctx, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}}}}}).Err()
	}
	// The first may be interrupted by the step-down, or arrive during it; from then on there is no primary.
	first := write(100)
	if code := codeOf(first); first == nil || code != int32(mongoerr.NotWritablePrimary) && code != int32(mongoerr.PrimarySteppedDown) && code != int32(mongoerr.InterruptedDueToReplStateChange) {
		t.Errorf("the first write without a majority: %v", first)
	}
	if err := write(101); codeOf(err) != int32(mongoerr.NotWritablePrimary) {
		t.Errorf("a later write without a majority: %v", err)
	}
	reader := own.Database().Collection("c", options.Collection().SetReadPreference(readpref.Nearest()))
	if n, err := reader.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 100}}}}); err != nil || n != 50 {
		t.Errorf("reading at local: %d, %v", n, err)
	}
	for i := range rs.members {
		if i != p {
			rs.start(i)
		}
	}
	rs.waitReady()
	if n, err := coll.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 100}}}}); err != nil || n != 50 {
		t.Errorf("after their return: %d, %v", n, err)
	}
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 200}}); err != nil {
		t.Errorf("a write after their return: %v", err)
	}
	rs.sameEverywhere("lost")
}

// A member whose files are damaged refuses to start, reports why and what to do, and ends with the exit code of an
// unrecoverable error; with an empty directory, it copies everything from the others. storage's TestDamagedFilesAreNoticed has
// other kinds of damage.
func TestDamagedMemberIsRefusedAndResynced(t *testing.T) {
	t.Parallel()
	flip := func(b []byte) []byte { b[len(b)/3] ^= 0xff; return b }
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	rs := launchSet(t, setOptions{members: 3, net: newNetwork(t)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	coll := connect(t, rs.uri()).Database("damaged").Collection("c", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 3}))
	insertPadded(t, ctx, coll, 2000)
	next := 2000
	for _, d := range []struct {
		pattern string
		change  func([]byte) []byte
	}{{"*.log", flip}, {"*.sst", flip}, {"MANIFEST-*", cut}, {"*.log", cut}} {
		// A file that was begun, or grew, just before the kill may be changed where nothing of it is recorded yet (storage/witness):
		// the member loses nothing then, as sameEverywhere checks, and is to refuse at one of the next attempts.
		for try := 1; ; try++ {
			victim := (rs.elected() + 1) % 3
			insertPaddedFrom(t, ctx, coll, next, 200) // the newest log has something that is needed
			next += 200
			rs.kill(victim)
			file := damageFile(t, rs.dbpath(victim), d.pattern, d.change)
			err := rs.members[victim].tryStart()
			if err == nil && try < 4 {
				t.Logf("it starts with a damaged %s", file)
				rs.waitReady()
				rs.sameEverywhere("damaged")
				continue
			}
			if err == nil {
				t.Fatalf("it starts with a damaged %s", file)
			}
			log, _ := os.ReadFile(rs.members[victim].logFile())
			end := string(log[max(0, len(log)-3000):])
			if !strings.Contains(end, "resync") || !strings.Contains(end, file) || !strings.Contains(err.Error(), "exit status 14") {
				t.Errorf("with a damaged %s: %v, and the log does not report it or the way back: %s", file, err, end)
			}
			if err := os.RemoveAll(rs.dbpath(victim)); err != nil {
				t.Fatal(err)
			}
			rs.members[victim].cmd = nil
			rs.start(victim)
			rs.waitReady()
			break
		}
	}
	rs.sameEverywhere("damaged")
}

func insertPadded(t *testing.T, ctx context.Context, coll *mongo.Collection, n int) {
	t.Helper()
	insertPaddedFrom(t, ctx, coll, 0, n)
}

func insertPaddedFrom(t *testing.T, ctx context.Context, coll *mongo.Collection, from, n int) {
	t.Helper()
	var docs []any
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: from + i}, {Key: "pad", Value: strings.Repeat("x", 500)}})
	}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
}

// damageFile changes the largest file below dir that matches, of logs the newest, and returns its name. Zeros at the end of a log are
// room that was allocated ahead and is not changed.
func damageFile(t *testing.T, dir, pattern string, change func([]byte) []byte) string {
	t.Helper()
	var at string
	var size int64
	_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		ok, _ := filepath.Match(pattern, filepath.Base(path))
		if err != nil || info.IsDir() || !ok {
			return nil
		}
		if filepath.Ext(path) == ".log" && filepath.Base(path) > filepath.Base(at) || filepath.Ext(path) != ".log" && info.Size() > size {
			at, size = path, info.Size()
		}
		return nil
	})
	if at == "" {
		t.Fatalf("there is no %s", pattern)
	}
	raw, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, change(bytes.TrimRight(raw, "\x00")), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(at)
}
