package cluster

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// Find is msg.Find with methods that run it. The node that executes it parses it like a client's.
type Find msg.Find

// Doc returns the command, with encoded elements that any command may have.
func (f Find) Doc(elements ...[]byte) []byte {
	m := msg.Find(f)
	return msg.With(&m, elements...)
}

// All fetches all documents that the command finds on a peer.
func (f Find) All(ctx context.Context, p Peer) ([][]byte, error) {
	db, _ := SplitNS(f.NS)
	return FindAll(ctx, p, db, f.Doc())
}

// ByID orders documents by their _id, or projects them to it.
func ByID() []byte { return value.Doc(value.F("_id", value.NewInt32(1))) }
