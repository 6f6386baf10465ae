package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/console"
)

// The parameters of the log were stored and had no effect; values that redactClientLogData promised to leave out were logged. A node that is
// given a log of its own changes no other.
func TestLogParametersAct(t *testing.T) {
	c, err := parse(isMongod, strings.Fields("--memory --port 0 -vv --quiet"))
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(isMongod)
	h.log = console.New(io.Discard)
	a, err := newAssembly(c, h)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.stop(context.Background()) }()
	defer func() {
		if console.Std.On(console.Command, 1) {
			t.Error("the parameters of one node have changed the log of another")
		}
	}()
	if err := a.mongod(); err != nil {
		t.Fatal(err)
	}
	uri := "mongodb://" + a.roles.Addrs[0].String() + "/?directConnection=true"
	client := connect(t, uri)
	set := func(params ...bson.E) {
		t.Helper()
		if err := client.Database("admin").RunCommand(t.Context(), append(bson.D{{Key: "setParameter", Value: 1}}, params...)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// lines returns the log's lines that a find for a word adds and that contain mark.
	lines := func(mark, word string) (out []string) {
		t.Helper()
		before, _, _ := h.log.Ring("global")
		if err := client.Database("d").Collection("c").FindOne(t.Context(), bson.D{{Key: "s", Value: word}}).Err(); err != mongo.ErrNoDocuments {
			t.Fatal(err)
		}
		after, all, _ := h.log.Ring("global")
		for _, l := range all[max(0, len(all)-(after-before)):] {
			if strings.Contains(l, mark) && strings.Contains(l, `"find"`) {
				out = append(out, l)
			}
		}
		return out
	}
	const slow, starts = "Slow query", "About to run the command"
	var got struct {
		LogLevel int  `bson:"logLevel"`
		Quiet    bool `bson:"quiet"`
	}
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "getParameter", Value: 1}, {Key: "logLevel", Value: 1}, {Key: "quiet", Value: 1}}).Decode(&got); err != nil || got.LogLevel != 2 || !got.Quiet {
		t.Errorf("-vv --quiet: %+v %v", got, err)
	}
	if len(lines(slow, "a")) != 1 || len(lines(starts, "a")) != 1 {
		t.Error("-vv logs no commands")
	}
	set(bson.E{Key: "logLevel", Value: 0})
	if len(lines(slow, "a")) != 0 {
		t.Error("logLevel 0 logs fast commands")
	}
	set(bson.E{Key: "logComponentVerbosity", Value: bson.D{{Key: "command", Value: bson.D{{Key: "verbosity", Value: 1}}}}})
	if len(lines(slow, "a")) != 1 || len(lines(starts, "a")) != 0 {
		t.Error("the component's verbosity has no effect")
	}
	set(bson.E{Key: "redactClientLogData", Value: true}, bson.E{Key: "logLevel", Value: 2})
	set(bson.E{Key: "logComponentVerbosity", Value: bson.D{{Key: "command", Value: -1}}})
	for _, mark := range []string{slow, starts} {
		switch l := lines(mark, "secretword"); {
		case len(l) != 1 || !strings.Contains(l[0], "###") || !strings.Contains(l[0], `"s":`):
			t.Errorf("%s, redacted: %v", mark, l)
		case strings.Contains(l[0], "secretword"):
			t.Errorf("a value is in the log: %s", l[0])
		}
	}
	accepted := func() bool {
		before, _, _ := h.log.Ring("global")
		if err := connect(t, uri).Ping(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		after, all, _ := h.log.Ring("global")
		return strings.Contains(strings.Join(all[max(0, len(all)-(after-before)):], "\n"), "Connection accepted")
	}
	if accepted() {
		t.Error("--quiet logs connections")
	}
	set(bson.E{Key: "quiet", Value: false})
	if !accepted() {
		t.Error("quiet: false logs no connections")
	}
}
