package configsvr

import (
	"context"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Any reachable member of a new shard describes it, and if none is reachable, the error names the set. Only the first member used to be
// asked, and its error named no set.
func TestMembersOfANewShard(t *testing.T) {
	sets := map[string]string{"up:1": "rs", "other:1": "x", "alone:1": ""} // any other member is down
	m := &Manager{registry: cluster.NewRegistry(nil, nil, func(_ string, hosts []string) (cluster.Peer, error) {
		return cluster.LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
			set, up := sets[hosts[0]]
			if !up {
				return dst, cluster.NoHostMatches(nil, hosts[0])
			}
			return append(dst, value.Doc(value.F("ok", value.NewDouble(1)), value.F("setName", value.NewString(set)))...), nil
		}), nil
	})}
	none := `Could not find host matching read preference { mode: "primary" } for set `
	for _, x := range []struct {
		conn, want string
		code       mongoerr.Code
	}{
		{"rs/up:1", "", 0}, {"rs/a:1,up:1", "", 0}, {"rs/other:1,up:1", "", 0}, {"alone:1", "", 0},
		{"rs/a:1", none + "rs", mongoerr.FailedToSatisfyReadPreference}, {"rs/a:1,b:1", none + "rs", mongoerr.FailedToSatisfyReadPreference},
		{"a:1", "Cannot add shard a:1: " + none + "a:1", mongoerr.FailedToSatisfyReadPreference},
		{"rs/a:1,other:1", "the provided connection string (rs/a:1,other:1) does not match the actual set name x", mongoerr.OperationFailed},
	} {
		set, hosts := cluster.SplitHosts(x.conn)
		got := ""
		err := m.inspectMembers(t.Context(), hosts, x.conn, set)
		if err != nil {
			got = mongoerr.From(err).Message
		}
		if mongoerr.CodeOf(err) != x.code || got != x.want {
			t.Errorf("%s: %v, want %s", x.conn, err, strings.TrimSpace(x.want))
		}
	}
}
