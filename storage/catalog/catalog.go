package catalog

import (
	"bytes"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/shoaldb/shoal/query/value"
)

// UUID identifies a collection for its whole life, renames included.
type UUID [16]byte

// IsZero reports whether the UUID was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns the id in the notation of RFC 9562.
func (u UUID) String() string { return value.UUIDText(u) }

// Value returns the UUID as BSON: binary of subtype 4.
func (u UUID) Value() value.Value { return value.NewBinary(4, u[:]) }

// UUIDFrom reads a UUID from a BSON value.
func UUIDFrom(v value.Value) (u UUID, ok bool) {
	if v.T != value.Binary || v.Subtype() != 4 || len(v.Bytes()) != 16 {
		return u, false
	}
	copy(u[:], v.Bytes())
	return u, true
}

// Ident is the number of a table inside the store: each record store and each index has one, and none is ever
// reused.
type Ident uint32

// Counters hold the sizes of one collection, shared by all catalog snapshots that contain it. They change when a
// unit of work becomes visible. Any goroutine may read them.
type Counters struct {
	Records  atomic.Int64 // documents
	DataSize atomic.Int64 // bytes of documents
	lastID   atomic.Int64 // the last RecordId allocated
	known    atomic.Bool  // whether lastID was looked up
	mu       sync.Mutex
	// Trim is held by the single unit of work that may insert into a capped collection.
	Trim    sync.Mutex
	trimmed atomic.Pointer[trimmed]
	// Scans counts reads of the whole collection since the start; TailScans counts those among them by tailing
	// cursors.
	Scans, TailScans atomic.Int64
}

// NextRecordID allocates the next RecordId. last finds the highest one in the store; it is called once.
func (c *Counters) NextRecordID(last func() (int64, error)) (int64, error) {
	return c.NextRecordIDs(1, last)
}

// NextRecordIDs allocates n RecordIds that follow each other, and returns the first.
func (c *Counters) NextRecordIDs(n int64, last func() (int64, error)) (first int64, err error) {
	if !c.known.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.known.Load() {
			found, err := last()
			if err != nil {
				return 0, err
			}
			c.lastID.Store(found)
			c.known.Store(true)
		}
	}
	return c.lastID.Add(n) - n + 1, nil
}

// ForgetRecordIDs makes the next allocation look up the last RecordId again: other members have written.
func (c *Counters) ForgetRecordIDs() { c.known.Store(false) }

// trimmed records that a capped collection has no record up to last for readers at `at` or later.
type trimmed struct {
	last int64
	at   uint64
}

// NoteTrimmed records that the oldest records of a capped collection, up to last, were deleted by a commit. A
// search for the oldest record need not walk over their remains. Trim must be held.
func (c *Counters) NoteTrimmed(last int64, at uint64) {
	if old := c.trimmed.Load(); old == nil || old.last < last {
		c.trimmed.Store(&trimmed{last, at})
	}
}

// Trimmed returns the RecordId up to which a capped collection has no records for readers at a time; 0 if that is not known.
func (c *Counters) Trimmed(at uint64) int64 {
	if t := c.trimmed.Load(); t != nil && t.at <= at {
		return t.last
	}
	return 0
}

// Collection is one collection at one moment. It is immutable; a change produces a new one.
type Collection struct {
	NS        string // "db.collection"
	UUID      UUID
	Ident     Ident
	IdentName string // as $listCatalog shows it
	CatalogID int64  // key of the durable entry in _mdb_catalog
	Options   []byte // raw document as given to create, without the uuid
	Indexes   []*Index
	Counters  *Counters

	Temp       bool
	Capped     bool
	CappedSize int64 // bytes; 0 if not capped
	CappedMax  int64 // documents; 0 means no limit
	Clustered  bool  // the RecordId is the _id's keystring; there is no _id index
	// ClusteredName is the name the clustered index is listed under.
	ClusteredName string
	// Collation is the default collation as given (raw document), nil for simple.
	Collation []byte
	Collator  value.Collator
	// Replicated is false for collections of the local database and others that write no oplog entries.
	Replicated bool
	// Images is true if changes store the previous state of the document (changeStreamPreAndPostImages).
	Images bool
	// Oplog is true for local.oplog.rs, whose records are kept by the engine itself.
	Oplog bool

	// Epoch changes when something that writers depend on changes: the set of indexes, their state, the options.
	Epoch uint64
}

// DB returns the database's name.
func (c *Collection) DB() string { return DBOf(c.NS) }

// Name returns the collection's name without its database.
func (c *Collection) Name() string { return CollOf(c.NS) }

// Index finds an index by name, nil when there is none.
func (c *Collection) Index(name string) *Index {
	for _, i := range c.Indexes {
		if i.Name == name {
			return i
		}
	}
	return nil
}

// Building returns an index that is being built, nil when there is none.
func (c *Collection) Building() *Index {
	for _, i := range c.Indexes {
		if !i.Ready {
			return i
		}
	}
	return nil
}

// IDIndex returns the _id index, nil for clustered collections and the few that have none.
func (c *Collection) IDIndex() *Index {
	for _, i := range c.Indexes {
		if i.IsID {
			return i
		}
	}
	return nil
}

// DBOf returns the database part of a namespace.
func DBOf(ns string) string {
	if i := strings.IndexByte(ns, '.'); i >= 0 {
		return ns[:i]
	}
	return ns
}

// Unreplicated reports whether a namespace belongs to the member itself: the set's log does not carry it, and DDL over shards leaves it where it is.
func Unreplicated(ns string) bool { return DBOf(ns) == "local" || CollOf(ns) == Profile }

// Profile is the name of the collection in which a member records the operations on a database. Its documents have no _id.
const Profile = "system.profile"

// CollOf returns the collection part of a namespace.
func CollOf(ns string) string {
	if i := strings.IndexByte(ns, '.'); i >= 0 {
		return ns[i+1:]
	}
	return ""
}

// Snapshot is the whole catalog at one moment. It is immutable. A change produces another snapshot, which shares
// all tree nodes except those on the path to what changed: history keeps hundreds of snapshots.
type Snapshot struct {
	byNS   btree.Map[string, *Collection]
	byUUID btree.Map[string, *Collection] // by the bytes of the UUID
}

// nodeDegree keeps nodes small: each change copies one of every level.
const nodeDegree = 8

// Empty returns a catalog without collections.
func Empty() *Snapshot {
	return &Snapshot{*btree.NewMap[string, *Collection](nodeDegree), *btree.NewMap[string, *Collection](nodeDegree)}
}

// Of returns the catalog of the given collections.
func Of(all []*Collection) *Snapshot {
	s := Empty()
	for _, c := range all {
		s.put(c)
	}
	return s
}

// Lookup finds a collection by namespace, nil when there is none.
func (s *Snapshot) Lookup(ns string) *Collection {
	c, _ := s.byNS.Get(ns)
	return c
}

// LookupUUID finds a collection by UUID, nil when there is none.
func (s *Snapshot) LookupUUID(u UUID) *Collection {
	c, _ := s.byUUID.Get(string(u[:]))
	return c
}

// Databases lists the databases that have collections, in order.
func (s *Snapshot) Databases() (out []string) {
	out = []string{}
	for next := ""; ; {
		db := ""
		s.byNS.Ascend(next, func(ns string, _ *Collection) bool {
			db = DBOf(ns)
			return false
		})
		if db == "" {
			// "a-b.c" comes before "a.c".
			sort.Strings(out)
			return out
		}
		out = append(out, db)
		next = db + "/" // after all that begin with "db."
	}
}

// HasDatabase reports whether the database has a collection.
func (s *Snapshot) HasDatabase(db string) (found bool) {
	s.eachOf(db, func(*Collection) bool {
		found = true
		return false
	})
	return found
}

// Collections lists a database's collections in order of name.
func (s *Snapshot) Collections(db string) (out []*Collection) {
	s.eachOf(db, func(c *Collection) bool {
		out = append(out, c)
		return true
	})
	return out
}

func (s *Snapshot) eachOf(db string, f func(*Collection) bool) {
	prefix := db + "."
	s.byNS.Ascend(prefix, func(ns string, c *Collection) bool { return strings.HasPrefix(ns, prefix) && f(c) })
}

// All lists every collection, by database and name.
func (s *Snapshot) All() []*Collection {
	var out []*Collection
	for _, db := range s.Databases() {
		out = append(out, s.Collections(db)...)
	}
	return out
}

// Len returns the number of collections.
func (s *Snapshot) Len() int { return s.byNS.Len() }

// Each calls f with every collection, in no particular order.
func (s *Snapshot) Each(f func(*Collection)) {
	s.byNS.Scan(func(_ string, c *Collection) bool {
		f(c)
		return true
	})
}

// With returns the catalog with c added, replacing old if that is not nil.
func (s *Snapshot) With(old, c *Collection) *Snapshot {
	n := s.clone()
	if old != nil {
		n.remove(old)
	}
	n.put(c)
	return n
}

// Without returns the catalog without old; s itself if old is nil.
func (s *Snapshot) Without(old *Collection) *Snapshot {
	if old == nil {
		return s
	}
	n := s.clone()
	n.remove(old)
	return n
}

// clone returns a catalog that may be modified while it is built. A tree's Copy modifies the tree that it is called on,
// which readers of s must not see, so it is called on a copy of its head; code that changes a node that s shares copies
// it first.
func (s *Snapshot) clone() *Snapshot {
	byNS, byUUID := s.byNS, s.byUUID
	return &Snapshot{*byNS.Copy(), *byUUID.Copy()}
}

func (s *Snapshot) put(c *Collection) {
	s.byNS.Set(c.NS, c)
	s.byUUID.Set(string(c.UUID[:]), c)
}

func (s *Snapshot) remove(c *Collection) {
	s.byNS.Delete(c.NS)
	s.byUUID.Delete(string(c.UUID[:]))
}

// SameOptions reports whether two option documents hold the same bytes.
func SameOptions(a, b []byte) bool {
	empty := func(x []byte) bool { return len(x) <= 5 }
	return bytes.Equal(a, b) || empty(a) && empty(b)
}
