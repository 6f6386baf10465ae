package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ddlPairs sends commands that change or use the same few names at once, through two routers.
type ddlPairs struct {
	c     *shardedCluster
	rnd   *rand.Rand
	names []string
	next  int // the number of the next document
}

// pairedCommand is a command on the database pairs, or on admin.
type pairedCommand struct {
	db      string
	command bson.D
}

func newDDLPairs(t *testing.T, seed int64) *ddlPairs {
	t.Helper()
	long := func(n int, fill string) string { return strings.Repeat(fill, n-len("pairs.")) }
	return &ddlPairs{
		c: launchCluster(t, clusterOptions{shards: []int{1, 1}, routers: 2}), rnd: rand.New(rand.NewSource(seed)),
		names: []string{"plain", "with.dots.in.it", "ünïcødé ☃", long(255, "l"), long(235, "s")},
	}
}

// draw returns a command of any kind on a name, or from one to another.
func (p *ddlPairs) draw(a, b string) pairedCommand {
	ns := func(name string) string { return "pairs." + name }
	shard := func() string { return shardName(p.rnd.Intn(2)) }
	admin := func(kv ...any) pairedCommand { return pairedCommand{"admin", pairs(kv...)} }
	on := func(kv ...any) pairedCommand { return pairedCommand{"pairs", pairs(kv...)} }
	series := pairs("timeField", "t", "metaField", "m")
	insert := func(name string) pairedCommand {
		var docs bson.A
		for range 10 {
			docs = append(docs, pairs("n", p.next, "t", bson.DateTime(p.next*1000), "m", p.next%3))
			p.next++
		}
		return on("insert", name, "documents", docs)
	}
	all := []func() pairedCommand{
		func() pairedCommand { return insert(a) },
		func() pairedCommand { return insert(a) },
		func() pairedCommand { return on("create", a) },
		func() pairedCommand { return on("create", a, "capped", true, "size", 1<<20) },
		func() pairedCommand { return on("create", a, "viewOn", b, "pipeline", bson.A{}) },
		func() pairedCommand { return on("create", a, "timeseries", series) },
		func() pairedCommand { return on("drop", a) },
		func() pairedCommand { return on("drop", a) },
		func() pairedCommand {
			return admin("renameCollection", ns(a), "to", ns(b), "dropTarget", p.rnd.Intn(2) == 0)
		},
		func() pairedCommand { return on("collMod", a, "validator", pairs("x", pairs("$ne", p.rnd.Intn(5)))) },
		func() pairedCommand {
			return on("createIndexes", a, "indexes", bson.A{pairs("key", pairs("m", 1, "n", 1), "name", "mn")})
		},
		func() pairedCommand { return on("dropIndexes", a, "index", "mn") },
		func() pairedCommand { return on("convertToCapped", a, "size", 1<<20) },
		func() pairedCommand { return admin("shardCollection", ns(a), "key", pairs("_id", "hashed")) },
		func() pairedCommand { return admin("shardCollection", ns(a), "key", pairs("m", 1)) },
		func() pairedCommand {
			return admin("shardCollection", ns(a), "key", pairs("m", 1), "timeseries", series)
		},
		func() pairedCommand { return admin("refineCollectionShardKey", ns(a), "key", pairs("m", 1, "n", 1)) },
		func() pairedCommand {
			return admin("reshardCollection", ns(a), "key", pairs([]string{"m", "n"}[p.rnd.Intn(2)], 1), "numInitialChunks", 1, "forceRedistribution", true)
		},
		func() pairedCommand { return admin("moveCollection", ns(a), "toShard", shard()) },
		func() pairedCommand { return admin("unshardCollection", ns(a), "toShard", shard()) },
		func() pairedCommand { return admin("untrackUnshardedCollection", ns(a)) },
		func() pairedCommand { return admin("abortReshardCollection", ns(a)) },
		func() pairedCommand { return admin("movePrimary", "pairs", "to", shard()) },
		func() pairedCommand {
			return admin("moveRange", ns(a), "min", pairs("m", bson.MinKey{}), "toShard", shard())
		},
		func() pairedCommand {
			return on("aggregate", a, "pipeline", bson.A{pairs("$out", b)}, "cursor", bson.D{})
		},
		func() pairedCommand {
			return on("aggregate", a, "pipeline", bson.A{pairs("$merge", b)}, "cursor", bson.D{})
		},
		func() pairedCommand { return on("listCollections", 1, "cursor", pairs("batchSize", 1000)) },
		func() pairedCommand { return on("dropDatabase", 1) },
	}
	return all[p.rnd.Intn(len(all))]()
}

// pairs is a document of keys and values.
func pairs(kv ...any) (out bson.D) {
	for i := 0; i < len(kv); i += 2 {
		out = append(out, bson.E{Key: kv[i].(string), Value: kv[i+1]})
	}
	return out
}

// round prepares a collection or two, sends two or three commands at once, and checks what is there then.
func (p *ddlPairs) round(tally map[string]int) error {
	a, b := p.names[p.rnd.Intn(len(p.names))], p.names[p.rnd.Intn(len(p.names))]
	var before, together []pairedCommand
	for range p.rnd.Intn(4) {
		before = append(before, p.draw(a, b))
	}
	for range 2 + p.rnd.Intn(2) {
		if p.rnd.Intn(3) == 0 {
			a, b = b, a
		}
		together = append(together, p.draw(a, b))
	}
	for _, x := range before {
		if _, err := p.send(x, 0); err != nil {
			return err
		}
	}
	codes, errs := make([]int32, len(together)), make([]error, len(together))
	var wg sync.WaitGroup
	for i, x := range together {
		wg.Go(func() { codes[i], errs[i] = p.send(x, i%2) })
	}
	wg.Wait()
	for i, x := range together {
		tally[fmt.Sprintf("%s: %d", x.command[0].Key, codes[i])]++
	}
	err := errors.Join(errs...)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		err = fmt.Errorf("after %v, at once %v with %v: %w", before, together, codes, err)
	}
	return err
}

// send returns the code of the reply; an error if there is none in time, or it is one that no command should give.
func (p *ddlPairs) send(x pairedCommand, router int) (code int32, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	err = p.c.routers[router].direct.Database(x.db).RunCommand(ctx, x.command).Err()
	var refused mongo.CommandError
	var unwritten mongo.WriteException // documents of an insert into a view, or with a key that fits nowhere
	switch {
	case err == nil || errors.As(err, &unwritten):
		return 0, nil
	case !errors.As(err, &refused):
		return 0, fmt.Errorf("%v: %w", x.command, err)
	}
	switch mongoerr.Code(refused.Code) {
	case mongoerr.InternalError, mongoerr.UnknownError, mongoerr.HostUnreachable, mongoerr.StaleConfig, mongoerr.StaleDbVersion, mongoerr.LockTimeout:
		return refused.Code, fmt.Errorf("%v: %w after %v", x.command, err, time.Since(began))
	}
	return refused.Code, nil
}

// check compares the catalog with the shards, and what the two routers see.
func (p *ddlPairs) check() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for _, rs := range p.c.shards {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections"} {
			for {
				n, err := rs.members[0].direct.Database("config").Collection(coll).CountDocuments(ctx, bson.D{})
				if err != nil {
					return fmt.Errorf("%s of %s: %w", coll, rs.name, err)
				}
				if n == 0 {
					break
				}
				pause(20 * time.Millisecond)
			}
		}
	}
	var seen [2][]string
	for i, r := range p.c.routers {
		cur, err := r.direct.Database("admin").RunCommandCursor(ctx, pairs("checkMetadataConsistency", 1, "checkIndexes", true))
		var bad []bson.Raw
		if err == nil {
			err = cur.All(ctx, &bad)
		}
		if err != nil || len(bad) > 0 {
			return fmt.Errorf("checkMetadataConsistency finds %v, %w", bad, err)
		}
		for _, name := range p.names {
			cur, err := r.direct.Database("pairs").Collection(name).Find(ctx, bson.D{})
			var docs []struct {
				ID any `bson:"_id"`
			}
			if err == nil {
				err = cur.All(ctx, &docs)
			}
			if err != nil {
				if code := codeOf(err); !slices.Contains(viewErrors, mongoerr.Code(code)) {
					return fmt.Errorf("reading %s through router %d: %w", name, i, err)
				}
				seen[i] = append(seen[i], name+": a view that cannot be read")
				continue
			}
			ids := map[any]bool{}
			for _, d := range docs {
				if ids[d.ID] {
					return fmt.Errorf("%s has %v twice", name, d.ID)
				}
				ids[d.ID] = true
			}
			seen[i] = append(seen[i], fmt.Sprintf("%s: %d", name, len(docs)))
		}
	}
	if !slices.Equal(seen[0], seen[1]) {
		return fmt.Errorf("the routers see %v and %v", seen[0], seen[1])
	}
	return nil
}

// showCatalog logs what the config server has of the database, and its latest changes.
func (p *ddlPairs) showCatalog() {
	config := p.c.config.members[0].direct.Database("config")
	of := bson.D{{Key: "$regex", Value: "^pairs"}}
	latest := options.Find().SetSort(pairs("$natural", -1)).SetLimit(40)
	for _, x := range []struct {
		coll   string
		filter bson.D
	}{{"databases", pairs("_id", "pairs")}, {"collections", pairs("_id", of)}, {"placementHistory", pairs("nss", of)}, {"changelog", pairs("ns", of)}} {
		var docs []bson.Raw
		cur, err := config.Collection(x.coll).Find(context.Background(), x.filter, latest)
		if err == nil {
			err = cur.All(context.Background(), &docs)
		}
		p.c.t.Logf("config.%s, the latest first: %v", x.coll, err)
		for _, d := range docs {
			p.c.t.Logf("  %v", d)
		}
	}
}

// viewErrors are those of views on each other.
var viewErrors = []mongoerr.Code{mongoerr.GraphContainsCycle, mongoerr.ViewDepthLimitExceeded, mongoerr.OptionNotSupportedOnView}

// Commands that change the same names meet, in twos and threes, through two routers: one comes after the other or is refused with a reason, and afterwards the
// catalog agrees with the shards, and the routers with each other.
func TestDDLPairsNemesis(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five servers")
	}
	t.Parallel()
	limit := nemesisTime(0)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	p, tally, began := newDDLPairs(t, seed), map[string]int{}, time.Now()
	rounds := 0
	for ; rounds < 40 || time.Since(began) < limit; rounds++ {
		if err := p.round(tally); err != nil {
			p.showCatalog()
			t.Fatalf("seed %d, round %d: %v", seed, rounds, err)
		}
	}
	var lines []string
	for what, n := range tally {
		lines = append(lines, fmt.Sprintf("%d %s", n, what))
	}
	slices.Sort(lines)
	t.Logf("%d rounds\n%s", rounds, strings.Join(lines, "\n"))
}
