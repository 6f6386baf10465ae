package cluster

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// PeerKeys is a KeyStore over a peer: the node itself, or the config server.
type PeerKeys struct{ Peer Peer }

// LoadKeys implements KeyStore.
func (s PeerKeys) LoadKeys(ctx context.Context) ([]SigningKey, error) {
	filter := value.Doc(value.F("purpose", value.NewString("HMAC")))
	docs, err := FindAll(ctx, s.Peer, "admin", value.Doc(
		value.F("find", value.NewString("system.keys")), value.F("filter", value.NewDocument(filter)), value.F("$db", value.NewString("admin"))))
	if err != nil {
		return nil, err
	}
	keys := make([]SigningKey, 0, len(docs))
	for _, d := range docs {
		k, err := ParseSigningKey(d)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// InsertKey implements KeyStore.
func (s PeerKeys) InsertKey(ctx context.Context, k SigningKey) error {
	cmd := value.Doc(value.F("insert", value.NewString("system.keys")),
		value.F("documents", value.NewArray(value.ArrayOf(value.NewDocument(k.Doc())))), value.F("$db", value.NewString("admin")))
	_, err := RunWrite(ctx, s.Peer, cmd)
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		return nil // another made it
	}
	return err
}
