package configsvr

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// chunkStore is a config server's data: the chunks of one sharded collection, db.c. It counts the entries of chunks that are read.
type chunkStore struct {
	chunks []value.Value
	read   int
}

func (s *chunkStore) Call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	var found []value.Value
	switch value.Lookup(m.Body, "find").Str() {
	case "databases":
		found = append(found, doc(fld("_id", str("db")), fld("primary", str("a")), fld("version", value.NewDocument(cluster.DatabaseVersion{Timestamp: 1, LastMod: 1}.Doc()))))
	case "collections":
		found = append(found, doc(fld("_id", str("db.c")), fld("lastmodEpoch", value.NewObjectID([12]byte{1})), fld("timestamp", value.NewTimestampU64(7)),
			fld("uuid", value.NewBinary(4, make([]byte, 16))), fld("key", value.NewDocument(keyOf(1)))))
	case "chunks":
		since := value.Lookup(value.Lookup(value.Lookup(m.Body, "filter").Doc(), "lastmod").Doc(), "$gte")
		for _, c := range s.chunks {
			if since.IsMissing() || value.Lookup(c.Doc(), "lastmod").TimestampU64() >= since.TimestampU64() {
				found = append(found, c)
			}
		}
		s.read += len(found)
	}
	return append(dst, doc(fld("ok", value.NewDouble(1)), fld("cursor", doc(
		fld("firstBatch", arr(found...)), fld("id", value.NewInt64(0)), fld("ns", str("config.x"))))).Doc()...), nil
}

func (s *chunkStore) put(i, n int, shard string, version uint64) {
	bound := func(i int) value.Value {
		switch i {
		case 0:
			return doc(fld("k", value.NewMinKey()))
		case n:
			return doc(fld("k", value.NewMaxKey()))
		}
		return value.NewDocument(keyOf(i))
	}
	s.chunks[i] = doc(fld("min", bound(i)), fld("max", bound(i+1)), fld("shard", str(shard)), fld("lastmod", value.NewTimestampU64(version)))
}

// The commit of a migration reads the table while writes are blocked. It used to read all chunks of the collection; it reads those that changed.
func TestTheConfigServerReadsChangedChunksOnly(t *testing.T) {
	const n = 2000
	s := &chunkStore{chunks: make([]value.Value, n)}
	for i := range n {
		s.put(i, n, "a", 1<<32|uint64(i))
	}
	m := New(s, nil, nil, nil)
	if _, _, err := m.table(context.Background(), "db.c"); err != nil || s.read != n {
		t.Fatalf("%d entries read of %d: %v", s.read, n, err)
	}
	for i := range 10 {
		before := s.read
		s.put(i, n, "b", uint64(i+2)<<32)
		s.put(i+20, n, "a", uint64(i+2)<<32|1)
		info, _, err := m.table(context.Background(), "db.c")
		if err != nil || info.Map.ShardOf(value.Values(keyOf(i))) != "b" && i > 0 {
			t.Fatalf("move %d was not seen: %v", i, err)
		}
		if read := s.read - before; read > 4 {
			t.Errorf("the table after one move: %d entries read of %d", read, n)
		}
	}
}
