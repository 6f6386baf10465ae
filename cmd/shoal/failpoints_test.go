package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The members of a process shared their fail points: one that was set on one member made all of them fail.
func TestFailPointsAreOfOneMember(t *testing.T) {
	s := startTestSet(t, 3, "", pair{"enableTestCommands", "1"})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	point := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "alwaysOn"},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"ping"}}, {Key: "errorCode", Value: int(mongoerr.UnknownError)}}}}
	for i, h := range s.hosts {
		db := s.direct(h).Database("admin")
		if err := db.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
			t.Errorf("member %d before its fail point is set: %v", i, err)
		}
		if err := db.RunCommand(ctx, point).Err(); err != nil {
			t.Fatal(err)
		}
		if err := db.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err == nil {
			t.Errorf("member %d does not fail", i)
		}
	}
}

// Drivers' suites stop a secondary's replication by the fail point stopReplProducer to see a write concern time out.
func TestMemberStopsReplicating(t *testing.T) {
	s := startTestSet(t, 3, "", pair{"enableTestCommands", "1"})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	primary := s.primary(ctx, "")
	var secondary string
	for _, h := range s.hosts {
		if h != primary {
			secondary = h
		}
	}
	set := func(mode string) {
		t.Helper()
		cmd := bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}
		if err := s.direct(secondary).Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(concern bson.D) (reply struct {
		N                 int
		WriteConcernError struct{ Code int }
	}) {
		t.Helper()
		err := s.direct(primary).Database("d").RunCommand(ctx, bson.D{{Key: "update", Value: "c"},
			{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "x", Value: 1}}}}}, {Key: "upsert", Value: true}}}},
			{Key: "writeConcern", Value: concern}}).Decode(&reply)
		var failed mongo.WriteException
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if failed.Raw != nil {
			if err := bson.Unmarshal(failed.Raw, &reply); err != nil {
				t.Fatal(err)
			}
		}
		return reply
	}
	all := func(wtimeout int) bson.D { return bson.D{{Key: "w", Value: 3}, {Key: "wtimeout", Value: wtimeout}} }
	if r := write(all(0)); r.N != 1 || r.WriteConcernError.Code != 0 {
		t.Fatalf("before: %+v", r)
	}
	set("alwaysOn")
	// Each is executed, however short its wtimeout: the two other members are a majority.
	for range 5 {
		if r := write(all(1)); r.N != 1 || r.WriteConcernError.Code != int(mongoerr.WriteConcernTimeout) {
			t.Errorf("while a member takes no entries: %+v", r)
		}
	}
	set("off")
	if r := write(all(0)); r.N != 1 || r.WriteConcernError.Code != 0 {
		t.Errorf("afterwards: %+v", r)
	}
}
