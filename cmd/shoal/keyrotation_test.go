package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
)

// A set without a key gets one, and then another, while it is in use: one member after the other is restarted, as the manual says (Update
// Replica Set to Keyfile Authentication, Rotate Keys), and a majority acknowledges writes all along.
func TestKeysChangeWhileTheSetIsUsed(t *testing.T) {
	t.Parallel()
	rs := launchSet(t, setOptions{members: 3})
	keys := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(keys, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, both, second := file("first", "firstfirstfirst"), file("both", "- firstfirstfirst\n- secondsecondsecond\n"), file("second", "secondsecondsecond")
	client := func(auth bool) *mongo.Client {
		o := options.Client().ApplyURI(rs.uri()).SetWriteConcern(writeconcern.Majority()).SetServerSelectionTimeout(5 * time.Second)
		if auth {
			o.SetAuth(options.Credential{Username: "root", Password: "secret", AuthSource: "admin"})
		}
		c, err := mongo.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
		return c
	}
	write := func(c *mongo.Client, id int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.Database("shop").Collection("c").UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
		return err
	}
	g, plain, user := &guarded{t: t}, client(false), client(true)
	g.must(plain, "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
	args := make([][]string, len(rs.members))
	for i, m := range rs.members {
		args[i] = slices.Clone(m.args)
	}
	id := 0
	for _, phase := range []struct {
		name string
		args []string
		open bool // others get in without a user
	}{
		{"a key, not required", []string{"--keyFile", first, "--transitionToAuth"}, true},
		{"both keys", []string{"--keyFile", both}, false},
		{"the second key", []string{"--keyFile", second}, false},
	} {
		for i, m := range rs.members {
			m.end(syscall.SIGTERM)
			m.args = append(slices.Clone(args[i]), phase.args...)
			m.start()
			id++
			await.True(t, phase.name+": a majority acknowledges a write", func() bool { return write(user, id) == nil })
		}
		if err := write(plain, 0); (err == nil) != phase.open {
			t.Errorf("%s: a write without a user: %v", phase.name, err)
		}
	}
	n, err := user.Database("shop").Collection("c").CountDocuments(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: 0}}}})
	if err != nil || int(n) != id {
		t.Errorf("%d of %d acknowledged writes: %v", n, id, err)
	}
	// A member with the first key alone is no longer accepted as one, and delays no other.
	odd := rs.members[2]
	odd.end(syscall.SIGTERM)
	odd.args = append(slices.Clone(args[2]), "--keyFile", first)
	odd.start()
	await.True(t, "the others refuse the member with the old key", func() bool {
		return write(user, id+1) == nil && strings.Contains(mustJSON(t, g.must(user, "admin", "replSetGetStatus", 1)), "AuthenticationFailed")
	})
}
