package cluster

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// PeerKeys keeps the signing keys in admin.system.keys of a peer: the config server's, or a replica set's own.
type PeerKeys struct{ Peer Peer }

// LoadKeys implements KeyStore.
func (s PeerKeys) LoadKeys(ctx context.Context) ([]SigningKey, error) {
	docs, err := Find{NS: "admin.system.keys", Filter: value.Doc(value.F("purpose", value.NewString(KeyPurpose)))}.All(ctx, s.Peer)
	if err != nil {
		return nil, err
	}
	keys := make([]SigningKey, 0, len(docs))
	for _, d := range docs {
		if k, err := ParseSigningKey(d); err == nil { // an invalid document signed nothing, and does not prevent the use of the other keys
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// InsertKey implements KeyStore.
func (s PeerKeys) InsertKey(ctx context.Context, k SigningKey) error {
	_, err := RunWrite(ctx, s.Peer, msg.Doc(&msg.Insert{DB: "admin", Coll: "system.keys", Documents: value.ArrayOf(value.NewDocument(k.Doc()))}))
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		return nil // another node has created it
	}
	return err
}
