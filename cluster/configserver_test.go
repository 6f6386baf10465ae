package cluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeConfig is a config server's replica set that records what it is asked and with which read preference.
type fakeConfig struct {
	asked []string
	fail  []mongoerr.Code // the errors of the next getMores
}

func (f *fakeConfig) Call(context.Context, *wire.Message, []byte) ([]byte, error) {
	panic("the catalog is read where a preference says")
}

func (f *fakeConfig) CallOn(_ context.Context, p *ReadPreference, m *wire.Message, dst []byte) ([]byte, Peer, error) {
	f.asked = append(f.asked, p.OrPrimary().String()+" "+value.Show(value.Lookup(m.Body, "readConcern")))
	cursor := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc())))),
		value.F("id", value.NewInt64(int64(len(f.fail)))), value.F("ns", value.NewString("config.c")))
	return append(dst, value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewDouble(1)))...), LocalPeer(f.more), nil
}

func (f *fakeConfig) more(context.Context, *wire.Message, []byte) ([]byte, error) {
	code := f.fail[0]
	f.fail = f.fail[1:]
	return value.Doc(value.F("ok", value.NewDouble(0)), value.F("code", value.NewInt32(int32(code)))), nil
}

// Reads of the catalog go to any member and never return state before the known config time; a shard that has no config time yet reads from the primary.
func TestCatalogReadsAreCausal(t *testing.T) {
	f := &fakeConfig{}
	clock := NewVectorClock(nil)
	router, shard := NewConfigServer(f, clock, false), NewConfigServer(f, clock, true)
	read := func(c *ConfigServer) string {
		t.Helper()
		f.asked = nil
		docs, err := FindConfig(t.Context(), c, value.Doc(value.F("find", value.NewString("c")), value.F("$db", value.NewString("config"))))
		if err != nil || len(docs) != 1 {
			t.Fatalf("%d documents, %v", len(docs), err)
		}
		return strings.Join(f.asked, "; ")
	}
	const any, first = `nearest { level: "majority" }`, `primary { level: "linearizable" }`
	const at = `nearest { level: "majority", afterClusterTime: Timestamp(7, 3) }`
	for _, c := range []struct {
		what string
		c    *ConfigServer
		do   func()
		want string
	}{
		{"a router that was told nothing", router, nil, any},
		{"a shard that was told nothing", shard, nil, first},
		{"once it was told", shard, func() { clock.GossipInPlain(Timestamp(7, 3), 0) }, at},
		{"the router heard of it, too", router, nil, at},
		{"an older time is nothing new", router, func() { clock.GossipInPlain(Timestamp(6, 9), 0) }, at},
		{"a new primary of the shard", shard, shard.Recheck, first},
		{"and then", shard, nil, at},
		{"routers need no such thing", router, router.Recheck, at},
		{"a member goes away before the end", router, func() { f.fail = []mongoerr.Code{mongoerr.CursorNotFound} }, at + "; " + at},
	} {
		if c.do != nil {
			c.do()
		}
		if got := read(c.c); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// Config and topology time are appended to replies between nodes, and are not passed on.
func TestTimesOfNodesAreNotPassedOn(t *testing.T) {
	server, client := NewVectorClock(nil), NewVectorClock(nil)
	plain := value.Doc(value.F("ok", value.NewDouble(1)))
	reply := func() []byte { return value.End(server.AppendPlain(append([]byte(nil), plain[:len(plain)-1]...)), 0) }
	if got := reply(); string(got) != string(plain) {
		t.Errorf("outside a cluster: %s", value.ShowDoc(got))
	}
	majority := Timestamp(20, 1)
	server.FromConfigServer(func() uint64 { return Timestamp(15, 1) })
	server.FromConfigServer(func() uint64 { return majority })
	server.AdvanceTopology(Timestamp(10, 4))
	majority = Timestamp(20, 2)
	if got := client.TakePlain(reply()); string(got) != string(plain) {
		t.Errorf("behind the receiver: %s", value.ShowDoc(got))
	}
	if now := client.Now(); now != (VectorTime{Cluster: Timestamp(20, 2), Config: Timestamp(20, 2), Topology: Timestamp(10, 4)}) {
		t.Errorf("the receiver's times: %+v", now)
	}
	far := Timestamp(uint32(time.Now().Unix())+DefaultMaxDriftSecs+1000, 1)
	client.GossipInPlain(far, 0)
	if client.Now().Config >= far {
		t.Error("a time beyond the accepted drift advanced the clock")
	}
}
