package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// $geoNear in a $lookup may be near a point that let has bound for the current document.
func TestGeoNearOfLet(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "at": {"type": "Point", "coordinates": [-73.9928, 40.7193]}}, {"_id": 2, "at": {"type": "Point", "coordinates": [-73.97, 40.77]}}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"at": "2dsphere"}, "name": "at"}]}`)
	lookup := func(let, near string) string {
		return `{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}, {"$lookup": {"from": "c", "let": {` + let + `}, "pipeline": [{"$geoNear": {"near": ` + near + `, "distanceField": "far", "maxDistance": "$$most"}},
			{"$project": {"_id": 1, "near": {"$lt": ["$far", 1]}}}], "as": "all"}}, {"$project": {"all": 1}}], "cursor": {}}`
	}
	got := fmt.Sprint(n.ok("d", lookup(`"pt": "$at", "most": {"$literal": 10000}`, `"$$pt"`))["cursor"].(bson.D)[0].Value)
	want := `[{"_id":{"$numberInt":"1"},"all":[{"_id":{"$numberInt":"1"},"near":true},{"_id":{"$numberInt":"2"},"near":false}]} {"_id":{"$numberInt":"2"},"all":[{"_id":{"$numberInt":"2"},"near":true},{"_id":{"$numberInt":"1"},"near":false}]}]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for near, code := range map[string]int32{`"$at"`: 5860402, `"$$most"`: 5860401, `"$$none"`: 17276} {
		if r := n.do("d", lookup(`"most": 1`, near)); r["code"] != code {
			t.Errorf("near %s: %v, want %d", near, r["code"], code)
		}
	}
}

// TestPointOutsideOfA2dIndex checks that the error names the document, as the real server's does.
func TestPointOutsideOfA2dIndex(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"at": "2d"}, "name": "at_2d", "min": -75, "max": 60.5}]}`)
	m := n.do("d", `{"insert": "c", "documents": [{"_id": 1, "at": [70, 42.3], "s": "x"}]}`)
	e := asM(m["writeErrors"].(bson.A)[0])
	const want = `point not in interval of [ -75, 60.5 ] :: caused by :: { _id: 1, at: [ 70, 42.3 ], s: "x" }`
	if fmt.Sprint(e["code"]) != "13027" || e["errmsg"] != want {
		t.Errorf("got  %v %v\nwant 13027 %s", e["code"], e["errmsg"], want)
	}
}
