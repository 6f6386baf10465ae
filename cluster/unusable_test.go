package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard whose entry cannot be used has not left the cluster: only a list without its _id says that. It used to be looked up like one that was removed, whose critical sections, migrations and
// transactions need not be waited for. What a client has written among the entries is not taken for a shard that All lacks.
func TestUnusableEntriesHaveNotLeft(t *testing.T) {
	t.Parallel()
	entry := func(id, host value.Value, more ...value.Field) value.Value {
		return value.NewDocument(value.Doc(append([]value.Field{value.F("_id", id), value.F("host", host)}, more...)...))
	}
	str, added := value.NewString, value.F("topologyTime", value.NewTimestampU64(Timestamp(1, 1)))
	var list []value.Value
	config := LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
		cursor := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(list...))), value.F("id", value.NewInt64(0)), value.F("ns", str("config.shards")))
		return append(dst, value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewDouble(1)))...), nil
	})
	r := NewRegistry(config, nil, func(_ string, hosts []string) (Peer, error) {
		if strings.HasPrefix(hosts[0], "bad") {
			return nil, errors.New("no such address")
		}
		return LocalPeer(nil), nil
	})
	good, client := entry(str("good"), str("s/h:1"), added), entry(str("client"), value.NewInt32(7))
	for _, x := range []struct {
		list     []value.Value
		complete bool
	}{
		{[]value.Value{good, client, entry(value.NewInt32(1), str("s/h:1"))}, true},
		{[]value.Value{good, client, entry(str("unread"), value.NewInt32(7), added)}, false},
		{[]value.Value{good, client, entry(str("undialed"), str("s/bad:1"), added)}, false},
	} {
		list = x.list
		if err := r.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Complete(); (err == nil) != x.complete {
			t.Errorf("%s: complete: %v", value.Show(list[len(list)-1]), err)
		}
		for _, e := range list {
			id := value.Lookup(e.Doc(), "_id").Str()
			if _, err := r.Shard(t.Context(), id); id != "" && id != "good" && mongoerr.CodeOf(err) != mongoerr.FailedToParse {
				t.Errorf("the shard of %s: %v", value.Show(e), err)
			}
		}
		for _, gone := range []string{"none", "undialed2"} {
			if _, err := r.Shard(t.Context(), gone); mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
				t.Errorf("%s: %v", gone, err)
			}
		}
	}
	list = []value.Value{good}
	if err := r.Reload(t.Context()); err != nil || r.Complete() != nil {
		t.Error("without them the list is complete:", err, r.Complete())
	}
	if _, err := r.Shard(t.Context(), "unread"); mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
		t.Errorf("a shard whose entry was removed: %v", err)
	}
}
