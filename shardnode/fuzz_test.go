package shardnode

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire"
)

// notFuzzed are commands that end the node, block it, or wait for something that never happens.
var notFuzzed = map[string]bool{
	"shutdown": true, "fsync": true, "fsyncUnlock": true, "replSetStepDown": true, "replSetReconfig": true, "replSetFreeze": true, "replSetMaintenance": true,
	"configureFailPoint": true, "waitForFailPoint": true, "setParameter": true, "setUserWriteBlockMode": true, "logRotate": true, "replSetStepUp": true,
	"replSetResizeOplog": true, "setFeatureCompatibilityVersion": true, "setDefaultRWConcern": true, "hello": true, "isMaster": true, "ismaster": true, "replSetSyncFrom": true,
}

// argumentNames are fields that occur inside the arguments of commands.
var argumentNames = []string{"q", "u", "limit", "multi", "upsert", "arrayFilters", "key", "name", "unique", "sparse", "partialFilterExpression", "collation", "locale",
	"strength", "expireAfterSeconds", "weights", "wildcardProjection", "2dsphere", "2d", "text", "hashed", "bits", "min", "max", "v", "hidden", "w", "j", "wtimeout", "level",
	"afterClusterTime", "atClusterTime", "batchSize", "insert", "update", "delete", "document", "filter", "updateMods", "ns", "viewOn", "pipeline", "timeField", "metaField",
	"granularity", "clusteredIndex", "validator", "$jsonSchema", "$set", "$inc", "$match", "$group", "_id", "id", "inline", "replace", "index", "$**", "size", "capped",
	"$text", "$search", "$near", "$expr", "allowDiskUse", "hint", "sort", "projection", "$natural", "mode", "$_internal"}

// FuzzCommands sends a node commands whose arguments are made of arbitrary bytes: each returns, in time, a document
// with ok or an error, and none panics.
func FuzzCommands(f *testing.F) {
	n := newTestNode(f)
	var mu sync.Mutex
	var panicked []string
	n.srv.Service.Hooks.Panic = func(op *command.Op, p any, stack []byte) {
		mu.Lock()
		panicked = append(panicked, fmt.Sprintf("%v\n%s", p, stack))
		mu.Unlock()
	}
	var specs []*command.Spec
	for _, s := range n.srv.Service.Table.Specs() {
		if !notFuzzed[s.Name] && !s.NotBuilt && !s.Internal && !s.TestOnly {
			specs = append(specs, s)
		}
	}
	slices.SortFunc(specs, func(a, b *command.Spec) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	for i := range specs {
		f.Add([]byte{byte(i), 2, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13})
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 2 {
			return
		}
		body := fuzzedCommand(specs[int(in[0])%len(specs)], in[1:])
		if wire.Validate(body) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		began := time.Now()
		reply := n.srv.Service.Run(ctx, n.cl, &wire.Message{Body: body}, nil)
		mu.Lock()
		defer mu.Unlock()
		if len(panicked) > 0 {
			t.Fatalf("%s: %s", value.ShowDoc(body), panicked[0])
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Fatalf("%s took %v", value.ShowDoc(body), took)
		}
		ok := value.Lookup(reply, "ok")
		if err := bson.Raw(reply).Validate(); err != nil || ok.AsFloat64() != 1 && value.Lookup(reply, "code").IsMissing() {
			t.Fatalf("%s: %s (%v)", value.ShowDoc(body), value.ShowDoc(reply), err)
		}
	})
}

// fuzzedCommand builds a command from arbitrary bytes: which of its fields it has, and their values.
func fuzzedCommand(spec *command.Spec, in []byte) []byte {
	names := argumentNames
	for _, f := range spec.Fields {
		names = append(names, f.Name)
	}
	has := in[0]
	g := valuetest.NewGenerator(in[1:], names)
	b, mark := value.Begin(nil)
	first := value.NewString("c")
	if has&1 == 1 || !spec.Namespace {
		first = g.Value()
	}
	b = value.Append(b, spec.Name, first)
	for i, f := range spec.Fields {
		if has>>(1+i%7)&1 == 0 && !f.Required {
			continue
		}
		v := g.Value()
		if f.Types&command.TArray != 0 && v.T != value.Array && has&64 == 0 {
			v = value.NewArray(value.ArrayOf(v, g.Value()))
		}
		b = value.Append(b, f.Name, v)
	}
	db := "d"
	if spec.AdminOnly {
		db = "admin"
	}
	b = value.Append(b, "maxTimeMS", value.NewInt32(2000))
	return value.End(value.Append(b, "$db", value.NewString(db)), mark)
}
