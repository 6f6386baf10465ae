package cluster

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzConnectionString: any text can be parsed, and the set's name and hosts are substrings of it.
func FuzzConnectionString(f *testing.F) {
	for _, s := range []string{"rs/a:1,b:2", "a:1", "", "/", "rs/", ",", "a/b/c", "[::1]:27017", "rs/[::1]:1,x", "mongodb://a,b/?replicaSet=rs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, hosts := SplitHosts(s)
		n := len(set)
		for _, h := range hosts {
			n += len(h)
		}
		if n > len(s) {
			t.Fatalf("%q became %q and %q", s, set, hosts)
		}
	})
}

// FuzzDocuments: versions, sessions, preferences and shards from other nodes, clients and the catalog are either accepted
// or refused with an error.
func FuzzDocuments(f *testing.F) {
	names := []string{"_id", "id", "uid", "txnNumber", "txnUUID", "e", "t", "v", "uuid", "timestamp", "lastMod", "version", "primary", "host", "state", "topologyTime", "key", "unique",
		"min", "max", "shard", "lastmod", "history", "validAfter", "onCurrentShardSince", "mode", "tags", "maxStalenessSeconds", "hedge", "ns", "vReceived", "vWanted", "shardId", "db",
		"expiresAt", "keyId", "keys", "hash", "signature", "k", "hashed", "timeseriesFields", "defaultCollation", "lastmodEpoch", "noBalance", "dc"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		d := g.Doc()
		if k, err := ParseShardKey(d); err == nil {
			for _, s := range valuetest.Subjects() {
				if vals, err := k.FromDocument(s, nil); err == nil {
					_ = CompareKeys(vals, vals)
				}
			}
		}
		if id, err := ParseLSID(d, NoUser); err == nil {
			if again, err := ParseLSID(id.Doc(), NoUser); err != nil || again != id {
				t.Fatalf("%v became %v (%v)", id, again, err)
			}
		}
		_, _ = ParseDatabase(d)
		_, _ = ParseCollectionEntry(d)
		_, _ = ParseChunk(d, ChunkVersion{})
		_, _ = ParseShard(d)
		_, _ = ParseSigningKey(d)
		_, _ = ParseReadPreference(d)
		_, _ = ParseTags(d)
		_, _ = ParseStaleInfo(d)
		_, _ = ParseChunkVersion(value.NewDocument(d))
		_, _ = ParseDatabaseVersion(g.Value())
	})
}
