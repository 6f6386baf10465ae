package compat

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func connect(t *testing.T, opts ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	o := append([]*options.ClientOptions{options.Client().ApplyURI(os.Getenv("MONGODB_URI")).SetServerSelectionTimeout(5 * time.Second)}, opts...)
	c, err := mongo.Connect(o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

func fresh(t *testing.T, c *mongo.Client) *mongo.Database {
	t.Helper()
	db := c.Database("compat_go2")
	if err := db.Drop(context.Background()); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestV2CRUD(t *testing.T) {
	ctx := context.Background()
	coll := fresh(t, connect(t)).Collection("c")
	var docs []any
	for i := range 300 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "g", Value: i % 3}})
	}
	if r, err := coll.InsertMany(ctx, docs); err != nil || len(r.InsertedIDs) != 300 {
		t.Fatal(r, err)
	}
	cur, err := coll.Find(ctx, bson.D{{Key: "g", Value: 1}}, options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}).SetBatchSize(9))
	if err != nil {
		t.Fatal(err)
	}
	var got []struct {
		ID int `bson:"_id"`
	}
	if err := cur.All(ctx, &got); err != nil || len(got) != 100 || got[0].ID != 298 {
		t.Fatal(len(got), err)
	}
	up, err := coll.UpdateMany(ctx, bson.D{{Key: "g", Value: 2}}, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: true}}}})
	if err != nil || up.ModifiedCount != 100 {
		t.Fatal(up, err)
	}
	if n, err := coll.CountDocuments(ctx, bson.D{{Key: "x", Value: true}}); err != nil || n != 100 {
		t.Fatal(n, err)
	}
	if del, err := coll.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 150}}}}); err != nil || del.DeletedCount != 150 {
		t.Fatal(del, err)
	}
	_, err = coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	if !mongo.IsDuplicateKeyError(err) {
		t.Fatal(err)
	}
}

func TestV2BulkWriteOfTheClient(t *testing.T) {
	c := connect(t)
	db := fresh(t, c)
	writes := []mongo.ClientBulkWrite{
		{Database: db.Name(), Collection: "a", Model: mongo.NewClientInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: 1}})},
		{Database: db.Name(), Collection: "b", Model: mongo.NewClientInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: 2}})},
		{Database: db.Name(), Collection: "a", Model: mongo.NewClientUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: 1}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}})},
	}
	r, err := c.BulkWrite(context.Background(), writes)
	if err != nil || r.InsertedCount != 2 || r.ModifiedCount != 1 {
		t.Fatal(r, err)
	}
}

func TestV2CommandErrors(t *testing.T) {
	db := fresh(t, connect(t))
	err := db.RunCommand(context.Background(), bson.D{{Key: "nonsense", Value: 1}}).Err()
	var ce mongo.CommandError
	if !errors.As(err, &ce) || ce.Code != 59 || ce.Name != "CommandNotFound" {
		t.Fatal(err)
	}
}

func TestV2AwaitedTimeout(t *testing.T) {
	db := fresh(t, connect(t))
	if err := db.CreateCollection(context.Background(), "cap", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)); err != nil {
		t.Fatal(err)
	}
	coll := db.Collection("cap")
	if _, err := coll.InsertOne(context.Background(), bson.D{{Key: "n", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	cur, err := coll.Find(context.Background(), bson.D{}, options.Find().SetCursorType(options.TailableAwait).SetMaxAwaitTime(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close(context.Background())
	if !cur.Next(context.Background()) {
		t.Fatal(cur.Err())
	}
	go func() {
		time.Sleep(100 * time.Millisecond) // by then Next waits
		_, _ = coll.InsertOne(context.Background(), bson.D{{Key: "n", Value: 2}})
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if !cur.Next(ctx) {
		t.Fatal("the new document did not arrive:", cur.Err())
	}
}

func TestV2GridFS(t *testing.T) {
	ctx := context.Background()
	bucket := fresh(t, connect(t)).GridFSBucket()
	data := bytes.Repeat([]byte("shoal"), 120000)
	id, err := bucket.UploadFromStream(ctx, "f", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	s, err := bucket.OpenDownloadStream(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data) {
		t.Fatal(len(got), err)
	}
}

func TestV2Compressors(t *testing.T) {
	for _, name := range []string{"snappy", "zlib", "zstd"} {
		coll := fresh(t, connect(t, options.Client().SetCompressors([]string{name}))).Collection("z")
		var docs []any
		for i := range 200 {
			docs = append(docs, bson.D{{Key: "i", Value: i}, {Key: "pad", Value: string(bytes.Repeat([]byte("ab"), 400))}})
		}
		if _, err := coll.InsertMany(context.Background(), docs); err != nil {
			t.Fatal(name, err)
		}
		if n, err := coll.CountDocuments(context.Background(), bson.D{}); err != nil || n != 200 {
			t.Fatal(name, n, err)
		}
	}
}

func TestV2LargeDocuments(t *testing.T) {
	coll := fresh(t, connect(t)).Collection("large")
	big := bytes.Repeat([]byte("x"), 15<<20)
	if _, err := coll.InsertOne(context.Background(), bson.D{{Key: "_id", Value: 1}, {Key: "b", Value: string(big)}}); err != nil {
		t.Fatal(err)
	}
	raw, err := coll.FindOne(context.Background(), bson.D{{Key: "_id", Value: 1}}).Raw()
	if err != nil || len(raw.Lookup("b").StringValue()) != len(big) {
		t.Fatal(len(raw), err)
	}
	if _, err := coll.InsertOne(context.Background(), bson.D{{Key: "b", Value: string(big) + string(big[:2<<20])}}); err == nil {
		t.Fatal("a document over 16 MB was taken")
	}
}
