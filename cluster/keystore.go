package cluster

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// PeerKeys keeps the signing keys in admin.system.keys of a peer: the config server's, or a replica set's own.
type PeerKeys struct{ Peer Peer }

// LoadKeys implements KeyStore.
func (s PeerKeys) LoadKeys(ctx context.Context) ([]SigningKey, error) {
	docs, err := FindAll(ctx, s.Peer, "admin", value.Doc(
		value.F("find", value.NewString("system.keys")),
		value.F("filter", value.NewDocument(value.Doc(value.F("purpose", value.NewString(KeyPurpose))))),
		value.F("$db", value.NewString("admin"))))
	if err != nil {
		return nil, err
	}
	keys := make([]SigningKey, 0, len(docs))
	for _, d := range docs {
		if k, err := ParseSigningKey(d); err == nil { // what is no key signed nothing, and is no reason to sign nothing
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// InsertKey implements KeyStore.
func (s PeerKeys) InsertKey(ctx context.Context, k SigningKey) error {
	_, err := RunWrite(ctx, s.Peer, value.Doc(
		value.F("insert", value.NewString("system.keys")),
		value.F("documents", value.NewArray(value.ArrayOf(value.NewDocument(k.Doc())))),
		value.F("$db", value.NewString("admin"))))
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		return nil // another node made it
	}
	return err
}

// PeerSessionStore keeps session records in config.system.sessions of a peer.
type PeerSessionStore struct{ Peer Peer }

// maxSessionBatch bounds one write to the sessions collection.
const maxSessionBatch = 1000

// RefreshSessions implements SessionStore.
func (s PeerSessionStore) RefreshSessions(ctx context.Context, ids []LogicalSessionID, at time.Time) error {
	return s.batches(ctx, "update", "updates", ids, func(id LogicalSessionID) []byte {
		set := value.Doc(value.F("$set", value.NewDocument(value.Doc(value.F("lastUse", value.NewTime(at))))))
		return value.Doc(
			value.F("q", value.NewDocument(value.Doc(value.F("_id", value.NewDocument(id.Doc()))))),
			value.F("u", value.NewDocument(set)), value.F("upsert", value.NewBool(true)))
	})
}

// RemoveSessions implements SessionStore.
func (s PeerSessionStore) RemoveSessions(ctx context.Context, ids []LogicalSessionID) error {
	return s.batches(ctx, "delete", "deletes", ids, func(id LogicalSessionID) []byte {
		return value.Doc(
			value.F("q", value.NewDocument(value.Doc(value.F("_id", value.NewDocument(id.Doc()))))),
			value.F("limit", value.NewInt32(1)))
	})
}

// MissingSessions implements SessionStore.
func (s PeerSessionStore) MissingSessions(ctx context.Context, ids []LogicalSessionID) ([]LogicalSessionID, error) {
	var missing []LogicalSessionID
	for len(ids) > 0 {
		n := min(len(ids), maxSessionBatch)
		vals := make([]value.Value, n)
		for i, id := range ids[:n] {
			vals[i] = value.NewDocument(id.Doc())
		}
		in := value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(vals...)))))))
		docs, err := FindAll(ctx, s.Peer, "config", value.Doc(
			value.F("find", value.NewString("system.sessions")), value.F("filter", value.NewDocument(in)),
			value.F("projection", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))),
			value.F("batchSize", value.NewInt32(maxSessionBatch)), value.F("$db", value.NewString("config"))))
		if err != nil {
			return nil, err
		}
		there := make(map[LogicalSessionID]bool, len(docs))
		for _, d := range docs {
			if id, err := ParseLSID(value.Lookup(d, "_id").Doc(), NoUser); err == nil {
				there[id] = true
			}
		}
		for _, id := range ids[:n] {
			if !there[id] {
				missing = append(missing, id)
			}
		}
		ids = ids[n:]
	}
	return missing, nil
}

func (s PeerSessionStore) batches(ctx context.Context, name, list string, ids []LogicalSessionID, st func(LogicalSessionID) []byte) error {
	for len(ids) > 0 {
		n := min(len(ids), maxSessionBatch)
		vals := make([]value.Value, n)
		for i, id := range ids[:n] {
			vals[i] = value.NewDocument(st(id))
		}
		_, err := RunWrite(ctx, s.Peer, value.Doc(
			value.F(name, value.NewString("system.sessions")),
			value.F(list, value.NewArray(value.ArrayOf(vals...))),
			value.F("ordered", value.NewBool(false)),
			value.F("$db", value.NewString("config"))))
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}
