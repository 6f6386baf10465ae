package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// LogicalSessionID is a session: the id the driver chose and the digest of the user it belongs to. Child sessions of
// internal transactions carry TxnNumber and TxnUUID besides: TxnNumber is that of the retryable write of their parent that
// the transaction carries out, 0 where it carries out a write without one.
type LogicalSessionID struct {
	ID        [16]byte
	UID       [32]byte
	TxnNumber int64
	TxnUUID   [16]byte
}

// IsChild tells whether the session is one of an internal transaction.
func (s LogicalSessionID) IsChild() bool { return s.TxnUUID != [16]byte{} }

// Parent is the session of the client whose write an internal transaction carries out; any other is its own parent.
func (s LogicalSessionID) Parent() LogicalSessionID {
	return LogicalSessionID{ID: s.ID, UID: s.UID}
}

// Child makes the session of an internal transaction for the write with a transaction number.
func (s LogicalSessionID) Child(txnNumber int64) LogicalSessionID {
	return LogicalSessionID{ID: s.ID, UID: s.UID, TxnNumber: txnNumber, TxnUUID: NewUUID()}
}

// NoUser is the uid of sessions without authentication: the digest of the empty string.
var NoUser = sha256.Sum256(nil)

// ParseLSID reads the lsid of a request: {id: UUID}, and uid only from other nodes or privileged users.
func ParseLSID(doc []byte, owner [32]byte) (LogicalSessionID, error) {
	s := LogicalSessionID{UID: owner}
	seen := false
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		switch string(k) {
		case "id":
			if v.IsNullish() {
				continue
			}
			if v.T != value.Binary || v.Subtype() != 4 {
				return s, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'OperationSessionInfo.lsid.id' is the wrong type '%s', expected type 'binData'", v.T.Name())
			}
			if len(v.Bytes()) != 16 {
				return s, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
			}
			copy(s.ID[:], v.Bytes())
			seen = true
		case "uid":
			if v.T != value.Binary || len(v.Bytes()) != 32 {
				return s, mongoerr.New(mongoerr.UnsupportedFormat, "Unsupported SHA256Block length")
			}
			copy(s.UID[:], v.Bytes())
		case "txnNumber":
			s.TxnNumber, _ = v.AsInt64()
		case "txnUUID":
			if v.T != value.Binary || v.Subtype() != 4 || len(v.Bytes()) != 16 {
				return s, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
			}
			copy(s.TxnUUID[:], v.Bytes())
		default:
			return s, mongoerr.UnknownField("OperationSessionInfo.lsid." + string(k))
		}
	}
	if !s.IsChild() {
		s.TxnNumber = 0
	}
	if !seen {
		return s, mongoerr.MissingField("OperationSessionInfo.lsid.id")
	}
	return s, nil
}

// NewSessionID makes the id that startSession answers.
func NewSessionID(owner [32]byte) LogicalSessionID {
	return LogicalSessionID{ID: NewUUID(), UID: owner}
}

// NewUUID makes a random (version 4) UUID.
func NewUUID() (u [16]byte) {
	rand.Read(u[:]) // never fails: the runtime aborts the program where the system has no randomness
	u[6], u[8] = u[6]&0x0F|0x40, u[8]&0x3F|0x80
	return u
}

// Doc is the id as config.system.sessions holds it.
func (s LogicalSessionID) Doc() []byte {
	f := []value.Field{value.F("id", value.NewBinary(4, s.ID[:])), value.F("uid", value.NewBinary(0, s.UID[:]))}
	if s.IsChild() {
		f = append(f, value.F("txnNumber", value.NewInt64(s.TxnNumber)), value.F("txnUUID", value.NewBinary(4, s.TxnUUID[:])))
	}
	return value.Doc(f...)
}

// ShownLSID is the lsid of a request as diagnostics show it: with the user that it belongs to.
func ShownLSID(lsid []byte) []byte {
	id, err := ParseLSID(lsid, NoUser)
	if err != nil {
		return lsid
	}
	return id.Doc()
}

// SessionStore is the sessions collection, config.system.sessions.
type SessionStore interface {
	// RefreshSessions stores that the sessions were used at the given time, creating missing records.
	RefreshSessions(ctx context.Context, ids []LogicalSessionID, at time.Time) error
	// RemoveSessions deletes records of ended sessions.
	RemoveSessions(ctx context.Context, ids []LogicalSessionID) error
}

// MaxSessions is the parameter of that name: how many sessions a node holds in its cache.
const MaxSessions = 1000000

// SessionTimeout is localLogicalSessionTimeoutMinutes's default.
const SessionTimeout = 30 * time.Minute

// SessionCache remembers which sessions were used since the last sync with the sessions collection.
type SessionCache struct {
	store SessionStore
	now   func() time.Time
	ended func(LogicalSessionID) // told of each session that ends or expires, to kill its cursors and transactions
	idle  time.Duration          // how long a session lives unused
	mu    struct {
		sync.Mutex
		synced int64                      // when the collection was last written to, Unix milliseconds
		live   map[LogicalSessionID]int64 // last use, Unix milliseconds
		ended  map[LogicalSessionID]struct{}
	}
}

// NewSessionCache makes an empty cache. ended may be nil.
func NewSessionCache(store SessionStore, now func() time.Time, ended func(LogicalSessionID)) *SessionCache {
	if now == nil {
		now = time.Now
	}
	c := &SessionCache{store: store, now: now, ended: ended, idle: SessionTimeout}
	c.mu.live = make(map[LogicalSessionID]int64)
	c.mu.ended = make(map[LogicalSessionID]struct{})
	return c
}

// SetTimeout changes how long a session lives unused; it comes before the first use.
func (c *SessionCache) SetTimeout(d time.Duration) { c.idle = d }

// Timeout is how long a session lives unused.
func (c *SessionCache) Timeout() time.Duration { return c.idle }

// Touch notes that a session is in use.
func (c *SessionCache) Touch(id LogicalSessionID) error {
	at := c.now().UnixMilli()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.mu.live[id]; !ok && len(c.mu.live) >= MaxSessions {
		return mongoerr.New(mongoerr.TooManyLogicalSessions, "Unable to add session into the cache because the number of active sessions is too high")
	}
	c.mu.live[id] = at
	return nil
}

// End marks sessions as ended; the next Sync removes them from the collection.
func (c *SessionCache) End(ids []LogicalSessionID) {
	c.mu.Lock()
	for _, id := range ids {
		delete(c.mu.live, id)
		c.mu.ended[id] = struct{}{}
	}
	c.mu.Unlock()
	if c.ended != nil {
		for _, id := range ids {
			c.ended(id)
		}
	}
}

// Len is the number of live sessions.
func (c *SessionCache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.live)
}

// Live lists the sessions in use, for $listLocalSessions.
func (c *SessionCache) Live() map[LogicalSessionID]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[LogicalSessionID]time.Time, len(c.mu.live))
	for id, at := range c.mu.live {
		out[id] = time.UnixMilli(at)
	}
	return out
}

// List is what $listLocalSessions shows: the sessions in use, of the owners that shown picks.
func (c *SessionCache) List(shown func(owner [32]byte) bool) (docs [][]byte) {
	for id, at := range c.Live() {
		if shown(id.UID) {
			docs = append(docs, value.Doc(value.F("_id", value.NewDocument(id.Doc())), value.F("lastUse", value.NewTime(at))))
		}
	}
	return docs
}

// SessionsOf tells which owners' sessions a specification of $listSessions or $listLocalSessions asks for.
func SessionsOf(spec []byte) func(owner [32]byte) bool {
	owners := map[[32]byte]bool{}
	for _, u := range value.Values(value.Lookup(spec, "users").Doc()) {
		if u.T == value.Document {
			owners[sha256.Sum256([]byte(value.Lookup(u.Doc(), "user").Str()+"@"+value.Lookup(u.Doc(), "db").Str()))] = true
		}
	}
	return func(owner [32]byte) bool { return len(owners) == 0 || owners[owner] }
}

// Sync writes uses and ends to the collection and expires what was idle too long. Run it every
// logicalSessionRefreshMillis (5 minutes).
func (c *SessionCache) Sync(ctx context.Context) error {
	now := c.now()
	limit := now.Add(-c.idle).UnixMilli()
	var refresh, removed, expired []LogicalSessionID
	c.mu.Lock()
	for id, at := range c.mu.live {
		if at < limit {
			expired = append(expired, id)
			delete(c.mu.live, id)
			continue
		}
		if at >= c.mu.synced {
			refresh = append(refresh, id)
		}
	}
	last := c.mu.synced
	c.mu.synced = now.UnixMilli()
	for id := range c.mu.ended {
		removed = append(removed, id)
	}
	clear(c.mu.ended)
	c.mu.Unlock()
	if c.ended != nil {
		for _, id := range expired {
			c.ended(id)
		}
	}
	if c.store == nil {
		return nil
	}
	err := c.store.RefreshSessions(ctx, refresh, now)
	if err == nil {
		err = c.store.RemoveSessions(ctx, removed)
	}
	if err != nil { // the next one writes it
		c.mu.Lock()
		c.mu.synced = last
		for _, id := range removed {
			c.mu.ended[id] = struct{}{}
		}
		c.mu.Unlock()
	}
	return err
}
