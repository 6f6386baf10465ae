package router_test

import (
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
)

// A bulkWrite over several shards that one member would refuse as a whole is refused as a whole, with the same reply.
func TestMalformedBulkWriteOverShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	c.run("d", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	member := command.NewClient(77, "test:77", "test:27018", nil)
	const (
		ok     = `{"insert": 0, "document": {"_id": 100, "k": 100}}`
		nsInfo = `"nsInfo": [{"ns": "d.c"}, {"ns": "d.plain"}]`
		update = `{"update": 0, "filter": {"k": 1}, "updateMods": {"$set": {"x": 1}}, `
		remove = `{"delete": 0, "filter": {"k": 1}, `
	)
	cmds := []string{
		`"ops": 1, ` + nsInfo, `"ops": [1], ` + nsInfo, `"ops": [], ` + nsInfo, nsInfo, `"ops": [` + ok + `]`, `"ops": [` + ok + `], "nsInfo": "d.c"`,
		retryable(`{"ops": [`+ok+`, `+update+`"multi": true}], `+nsInfo+`}`, 5), retryable(`{"ops": [`+ok+`, `+remove+`"multi": true}], `+nsInfo+`}`, 5),
	}
	for i := 6; i < 8; i++ { // the helper makes whole commands
		cmds[i] = cmds[i][1 : len(cmds[i])-1]
	}
	for _, option := range []string{
		`"ordered": 1`, `"errorsOnly": "x"`, `"let": 3`, `"cursor": 1`, `"cursor": {"batchSize": "x"}`, `"cursor": {"batchSize": -1}`, `"cursor": {"x": 1}`,
		`"bypassDocumentValidation": "x"`, `"bypassEmptyTsReplacement": "x"`, `"unknown": 1`,
	} {
		cmds = append(cmds, `"ops": [`+ok+`], `+nsInfo+`, `+option)
	}
	for _, ns := range []string{`{"ns": 1}`, `{}`, `{"ns": null}`, `{"ns": "d.plain", "x": 1}`, `{"ns": "nodot"}`, `{"ns": "d."}`, `{"ns": ".c"}`, `1`} {
		cmds = append(cmds, `"ops": [`+ok+`], "nsInfo": [{"ns": "d.c"}, `+ns+`]`)
	}
	for _, bad := range []string{
		`{}`, `{"x": 0}`, `{"insert": "x", "document": {}}`, `{"insert": null, "document": {}}`, `{"insert": -1, "document": {}}`, `{"insert": 7, "document": {"_id": 1}}`,
		`{"insert": 0}`, `{"insert": 0, "document": 1}`, `{"insert": 0, "document": null}`, `{"insert": 0, "document": {}, "x": 1}`,
		`{"update": 0, "updateMods": {}}`, `{"update": 0, "filter": {}}`, `{"update": 0, "filter": 1, "updateMods": {}}`, `{"update": 0, "filter": {}, "updateMods": 1}`,
		`{"update": 0, "filter": {}, "updateMods": null}`, `{"update": 9, "filter": {}, "updateMods": {}}`,
		update + `"multi": 1}`, update + `"upsert": 1}`, update + `"hint": 1}`, update + `"hint": {"$natural": 2}}`, update + `"collation": 1}`, update + `"sort": 1}`,
		update + `"arrayFilters": 1}`, update + `"arrayFilters": [1]}`, update + `"constants": 1}`, update + `"q": {}}`, update + `"x": 1}`, update + `"upsertSupplied": "x"}`,
		`{"delete": 0}`, `{"delete": 0, "filter": 1}`, remove + `"multi": 1}`, remove + `"sort": {"k": 1}}`, remove + `"hint": 1}`, remove + `"collation": "x"}`, remove + `"updateMods": {}}`,
	} {
		cmds = append(cmds, `"ops": [`+ok+`, `+bad+`], `+nsInfo)
	}
	for _, cmd := range cmds {
		cmd = `{"bulkWrite": 1, ` + cmd + `}`
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: "admin"}))
		if err != nil {
			t.Fatal(err)
		}
		want := decode(t, c.server["shard0"].Service.Run(t.Context(), member, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
		got := c.raw("admin", cmd)
		for _, reply := range []bson.M{want, got} {
			for _, of := range []string{"$clusterTime", "operationTime", "$configTime", "$topologyTime"} {
				delete(reply, of)
			}
		}
		if !reflect.DeepEqual(got, want) || want["ok"] != 0.0 {
			t.Errorf("%s:\n  router %v\n  member %v", cmd, got, want)
		}
	}
	c.expect(c.all("d", `{"find": "c", "filter": {"$or": [{"k": 100}, {"x": {"$exists": true}}]}}`), `[]`)
	c.expect(c.run("d", `{"count": "c"}`)["n"], `3`)
}
