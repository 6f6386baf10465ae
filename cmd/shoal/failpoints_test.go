package main

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The members of a process shared their fail points: one that was set on one member made all of them fail.
func TestFailPointsAreOfOneMember(t *testing.T) {
	s := startTestSet(t, 3, "", pair{"enableTestCommands", "1"})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	point := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "alwaysOn"},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"ping"}}, {Key: "errorCode", Value: int(mongoerr.UnknownError)}}}}
	for i, h := range s.hosts {
		db := s.direct(h).Database("admin")
		if err := db.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
			t.Errorf("member %d before it was told to fail: %v", i, err)
		}
		if err := db.RunCommand(ctx, point).Err(); err != nil {
			t.Fatal(err)
		}
		if err := db.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err == nil {
			t.Errorf("member %d does not fail", i)
		}
	}
}
