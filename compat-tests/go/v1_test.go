package compat

import (
	"context"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/bson"
	"go.mongodb.org/mongo-driver/mongo"
	"go.mongodb.org/mongo-driver/mongo/options"
)

func TestV1(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c, err := mongo.Connect(ctx, options.Client().ApplyURI(os.Getenv("MONGODB_URI")).SetServerSelectionTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect(ctx)
	if err := c.Ping(ctx, nil); err != nil {
		t.Fatal(err)
	}
	db := c.Database("compat_go1")
	if err := db.Drop(ctx); err != nil {
		t.Fatal(err)
	}
	coll := db.Collection("c")
	if _, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := coll.InsertOne(ctx, bson.M{"k": i, "v": i * i}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := coll.InsertOne(ctx, bson.M{"k": 3}); !mongo.IsDuplicateKeyError(err) {
		t.Fatal(err)
	}
	var got struct{ V int }
	if err := coll.FindOneAndUpdate(ctx, bson.M{"k": 4}, bson.M{"$inc": bson.M{"v": 1}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&got); err != nil || got.V != 17 {
		t.Fatal(got, err)
	}
	cur, err := coll.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$lt", Value: 10}}}}}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var sums []struct{ N int }
	if err := cur.All(ctx, &sums); err != nil || len(sums) != 1 || sums[0].N != 10 {
		t.Fatal(sums, err)
	}
	names, err := c.ListDatabaseNames(ctx, bson.M{"name": "compat_go1"})
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
}
