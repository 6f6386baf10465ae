package cluster

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"sort"
	"sync"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// SigningKey is a document of admin.system.keys: {_id, purpose: "HMAC", key, expiresAt}.
type SigningKey struct {
	ID        int64
	Key       [20]byte
	ExpiresAt uint64
}

// KeyPurpose is the purpose of all signing keys.
const KeyPurpose = "HMAC"

// DefaultKeyRotation is KeysRotationIntervalSec: three months.
const DefaultKeyRotation = 7776000 * time.Second

// Doc returns the key as stored.
func (k SigningKey) Doc() []byte {
	return value.Doc(
		value.F("_id", value.NewInt64(k.ID)),
		value.F("purpose", value.NewString(KeyPurpose)),
		value.F("key", value.NewBinary(0, k.Key[:])),
		value.F("expiresAt", value.NewTimestampU64(k.ExpiresAt)))
}

// ParseSigningKey reads a stored key.
func ParseSigningKey(doc []byte) (SigningKey, error) {
	id, ok := value.Lookup(doc, "_id").AsInt64()
	key, exp := value.Lookup(doc, "key"), value.Lookup(doc, "expiresAt")
	if !ok || key.T != value.Binary || len(key.Bytes()) != 20 || exp.T != value.Timestamp {
		return SigningKey{}, mongoerr.New(mongoerr.FailedToParse, "a document of admin.system.keys is malformed")
	}
	k := SigningKey{ID: id, ExpiresAt: exp.TimestampU64()}
	copy(k.Key[:], key.Bytes())
	return k, nil
}

// KeyStore stores the signing keys: in the node's own admin.system.keys, or in the config server's through a peer.
type KeyStore interface {
	LoadKeys(ctx context.Context) ([]SigningKey, error)
	InsertKey(ctx context.Context, k SigningKey) error
}

// KeyRing is the in-memory cache of the signing keys. Old keys are kept: they verify times signed in the past.
type KeyRing struct {
	store KeyStore
	mu    struct {
		sync.RWMutex
		keys []SigningKey // by expiry
	}
	loading sync.Mutex
	missed  map[int64]time.Time // unknown ids asked for, guarded by loading
}

// NewKeyRing makes a ring over a store; Load fills it.
func NewKeyRing(store KeyStore) *KeyRing {
	return &KeyRing{store: store, missed: map[int64]time.Time{}}
}

// Load reads the stored keys.
func (r *KeyRing) Load(ctx context.Context) error {
	keys, err := r.store.LoadKeys(ctx)
	if err != nil {
		return err
	}
	r.set(keys)
	return nil
}

func (r *KeyRing) set(keys []SigningKey) {
	sort.Slice(keys, func(i, j int) bool { return keys[i].ExpiresAt < keys[j].ExpiresAt })
	r.mu.Lock()
	r.mu.keys = keys
	r.mu.Unlock()
}

// EnsureAhead creates keys until one is valid now and another after it. The primary that owns the collection calls it
// at start and periodically.
func (r *KeyRing) EnsureAhead(ctx context.Context, clock *VectorClock, rotation time.Duration) error {
	if err := r.Load(ctx); err != nil {
		return err
	}
	r.mu.RLock()
	keys := append([]SigningKey(nil), r.mu.keys...)
	r.mu.RUnlock()
	now := max(clock.ClusterTime(), uint64(clock.wall().Unix())<<32)
	valid, last, lastID := 0, now, int64(0)
	for _, k := range keys {
		if k.ExpiresAt > now {
			valid++
			last = max(last, k.ExpiresAt)
		}
		lastID = max(lastID, k.ID)
	}
	for ; valid < 2; valid++ {
		last += uint64(rotation/time.Second) << 32
		// Ids grow: like the real server's they are times, so that two primaries do not choose the same one by accident.
		lastID = max(lastID+1, int64(clock.Tick(1)))
		k := SigningKey{ID: lastID, ExpiresAt: last}
		if _, err := rand.Read(k.Key[:]); err != nil {
			return err
		}
		if err := r.store.InsertKey(ctx, k); err != nil {
			return err
		}
		keys = append(keys, k)
	}
	r.set(keys)
	return nil
}

// Follow reloads the keys until ctx ends, before the last known one expires; it is for nodes whose keys are
// stored elsewhere. The owner creates each key one rotation ahead, so reloading after a quarter of the remaining
// time is early enough however short-lived the keys are.
func (r *KeyRing) Follow(ctx context.Context, clock *VectorClock) {
	for {
		select {
		case <-time.After(r.dueIn(clock)):
			_ = r.Load(ctx) // the known keys are still valid
		case <-ctx.Done():
			return
		}
	}
}

// Limits on the time for which a ring uses its keys without reading them again.
const (
	minKeyRefresh = time.Second
	maxKeyRefresh = time.Hour
)

// dueIn returns the time until the keys have to be read again.
func (r *KeyRing) dueIn(clock *VectorClock) time.Duration {
	last := uint64(0)
	r.mu.RLock()
	if n := len(r.mu.keys); n > 0 {
		last = r.mu.keys[n-1].ExpiresAt
	}
	r.mu.RUnlock()
	now := max(clock.ClusterTime()>>32, uint64(clock.wall().Unix()))
	left := int64(last>>32) - int64(now)
	return min(max(time.Duration(min(left, 1<<30))*time.Second/4, minKeyRefresh), maxKeyRefresh)
}

// forTime returns the key that signs a time: the one that expires first after it.
func (r *KeyRing) forTime(t uint64) (SigningKey, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, k := range r.mu.keys {
		if k.ExpiresAt > t {
			return k, true
		}
	}
	return SigningKey{}, false
}

func (r *KeyRing) cached(id int64) (SigningKey, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, k := range r.mu.keys {
		if k.ID == id {
			return k, true
		}
	}
	return SigningKey{}, false
}

// missedKeyPause prevents clients that send unknown key ids from causing a read each time.
const missedKeyPause = time.Second

// byID finds a key. If the cache does not have it, it asks the store once.
func (r *KeyRing) byID(ctx context.Context, id int64, now time.Time) (SigningKey, bool) {
	if k, ok := r.cached(id); ok {
		return k, true
	}
	r.loading.Lock()
	defer r.loading.Unlock()
	if k, ok := r.cached(id); ok {
		return k, true
	}
	if last, ok := r.missed[id]; ok && now.Sub(last) < missedKeyPause {
		return SigningKey{}, false
	}
	if err := r.Load(ctx); err != nil {
		return SigningKey{}, false
	}
	k, ok := r.cached(id)
	if !ok {
		if len(r.missed) > 1000 {
			clear(r.missed)
		}
		r.missed[id] = now
	}
	return k, ok
}

// signature is the proof for all times of one masked range under one key.
type signature struct {
	upTo  uint64 // the masked time that was signed
	keyID int64
	hash  [20]byte
}

// signedRange masks the low bits that a signature does not cover. One HMAC thus serves 65,536 increments of a second,
// so that signing a reply costs a pointer load and a comparison; a client gains nothing by altering these bits.
const signedRange = 0xFFFF

func proof(key *[20]byte, masked uint64) (out [20]byte) {
	mac := hmac.New(sha1.New, key[:])
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], masked)
	mac.Write(b[:])
	copy(out[:], mac.Sum(nil))
	return out
}

var unsigned signature

// signature returns the signature of a time, from the cache if the range is the same. Its key is valid for the whole range: a key that
// expires within it would sign times after its expiry, which the other nodes refuse.
func (c *VectorClock) signature(t uint64) *signature {
	masked := t | signedRange
	if s := c.signed.Load(); s != nil && s.upTo == masked {
		return s
	}
	ring := c.keys.Load()
	if ring == nil {
		return &unsigned
	}
	k, ok := ring.forTime(masked)
	if !ok {
		return &unsigned
	}
	s := &signature{upTo: masked, keyID: k.ID, hash: proof(&k.Key, masked)}
	c.signed.Store(s)
	return s
}

// verify checks the signature of a received time.
func (c *VectorClock) verify(ctx context.Context, t uint64, sig value.Value) error {
	ring := c.keys.Load()
	if ring == nil {
		return nil // no keys yet: the node is starting, or is a standalone server
	}
	if sig.T != value.Document {
		return mongoerr.New(mongoerr.NoSuchKey, "Missing expected field \"signature\"")
	}
	hash := value.Lookup(sig.Doc(), "hash")
	id, ok := value.Lookup(sig.Doc(), "keyId").AsInt64()
	if hash.T != value.Binary || !ok {
		return mongoerr.New(mongoerr.FailedToParse, "the signature of $clusterTime must hold hash and keyId")
	}
	k, ok := ring.byID(ctx, id, c.wall())
	if !ok || k.ExpiresAt < t {
		return mongoerr.Newf(mongoerr.KeyNotFound,
			"No keys found for HMAC that is valid for time: { ts: %s } with id: %d", TimestampString(t), id)
	}
	if want := proof(&k.Key, t|signedRange); !hmac.Equal(want[:], hash.Bytes()) || !bytes.Equal(want[:], hash.Bytes()) {
		return mongoerr.New(mongoerr.TimeProofMismatch, "Proof does not match the cluster time")
	}
	return nil
}
