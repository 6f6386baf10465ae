package configsvr

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Entries of config.changelog name the member that wrote them, by its address alone. They used to contain the connection string of its set.
func TestLogsNameTheMember(t *testing.T) {
	set := ""
	m := &Manager{
		host: func() string { return set },
		local: cluster.LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
			return append(dst, value.Doc(value.F("ok", value.NewDouble(1)), value.F("me", value.NewString("b:2")))...), nil
		}),
	}
	for conn, want := range map[string]string{"a:1": "a:1", "cfg/a:1": "a:1", "cfg/a:1,b:2,c:3": "b:2"} {
		if set = conn; m.server(t.Context()) != want {
			t.Errorf("the server for %s is %s", conn, m.server(t.Context()))
		}
	}
}
