package catalog

import (
	"bytes"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
)

// UUID identifies a collection for its whole life, renames included.
type UUID [16]byte

// IsZero tells whether the UUID was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// Value is the UUID as BSON: binary of subtype 4.
func (u UUID) Value() value.Value { return value.NewBinary(4, u[:]) }

// UUIDFrom reads a UUID from a BSON value.
func UUIDFrom(v value.Value) (u UUID, ok bool) {
	if v.T != value.Binary || v.Subtype() != 4 || len(v.Bytes()) != 16 {
		return u, false
	}
	copy(u[:], v.Bytes())
	return u, true
}

// Ident is the number of a table inside the store: each record store and each index has one, and none is used twice.
type Ident uint32

// Counters are the sizes of one collection, shared by all catalog snapshots that hold it. They change when a unit of
// work becomes visible. Any goroutine may read them.
type Counters struct {
	Records  atomic.Int64 // documents
	DataSize atomic.Int64 // bytes of documents
	lastID   atomic.Int64 // the last RecordId given out
	known    atomic.Bool  // whether lastID was looked up
	mu       sync.Mutex
	// Trim is held by the one unit of work at a time that inserts into a capped collection.
	Trim sync.Mutex
	// Scans counts reads of the whole collection since the start, TailScans those by tailing cursors among them.
	Scans, TailScans atomic.Int64
}

// NextRecordID gives out the next RecordId. last finds the highest one in the store; it is called once.
func (c *Counters) NextRecordID(last func() (int64, error)) (int64, error) {
	if !c.known.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.known.Load() {
			n, err := last()
			if err != nil {
				return 0, err
			}
			c.lastID.Store(n)
			c.known.Store(true)
		}
	}
	return c.lastID.Add(1), nil
}

// ForgetRecordIDs has the last RecordId looked up again: others have written.
func (c *Counters) ForgetRecordIDs() { c.known.Store(false) }

// Collection is one collection at one moment. It never changes; a change makes a new one.
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
	CappedSize int64 // bytes; 0 where not capped
	CappedMax  int64 // documents; 0 means no limit
	Clustered  bool  // the RecordId is the _id's keystring; there is no _id index
	// ClusteredName is the name the clustered index is listed under.
	ClusteredName string
	// Collation is the default collation as given (raw document), nil for simple.
	Collation []byte
	Collator  value.Collator
	// Replicated is false for collections of the local database and others that write no oplog entries.
	Replicated bool
	// Oplog is true for local.oplog.rs, whose records are kept by the engine itself.
	Oplog bool

	// Epoch changes when something that writers depend on changes: the set of indexes, their state, the options.
	Epoch uint64
}

// DB is the database's name.
func (c *Collection) DB() string { return DBOf(c.NS) }

// Name is the collection's name without its database.
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

// IDIndex is the _id index, nil for clustered collections and the few that have none.
func (c *Collection) IDIndex() *Index {
	for _, i := range c.Indexes {
		if i.IsID {
			return i
		}
	}
	return nil
}

// DBOf is the database part of a namespace.
func DBOf(ns string) string {
	if i := strings.IndexByte(ns, '.'); i >= 0 {
		return ns[:i]
	}
	return ns
}

// CollOf is the collection part of a namespace.
func CollOf(ns string) string {
	if i := strings.IndexByte(ns, '.'); i >= 0 {
		return ns[i+1:]
	}
	return ""
}

// Database is the collections of one database at one moment.
type Database struct {
	Name        string
	collections map[string]*Collection // by full namespace
}

// Snapshot is the whole catalog at one moment. It never changes. A change copies one database and one part of the
// index by UUID, not the whole.
type Snapshot struct {
	dbs  map[string]*Database
	uuid [uuidParts]map[UUID]*Collection // by the UUID's first byte
	n    int
}

const uuidParts = 256

// Empty is a catalog without collections.
func Empty() *Snapshot { return &Snapshot{dbs: map[string]*Database{}} }

// Of is the catalog of the given collections.
func Of(all []*Collection) *Snapshot {
	s := Empty()
	for _, c := range all {
		db := s.dbs[c.DB()]
		if db == nil {
			db = &Database{Name: c.DB(), collections: map[string]*Collection{}}
			s.dbs[c.DB()] = db
		}
		db.collections[c.NS] = c
		if s.uuid[c.UUID[0]] == nil {
			s.uuid[c.UUID[0]] = map[UUID]*Collection{}
		}
		s.uuid[c.UUID[0]][c.UUID] = c
		s.n++
	}
	return s
}

// Lookup finds a collection by namespace, nil when there is none.
func (s *Snapshot) Lookup(ns string) *Collection {
	db := s.dbs[DBOf(ns)]
	if db == nil {
		return nil
	}
	return db.collections[ns]
}

// LookupUUID finds a collection by UUID, nil when there is none.
func (s *Snapshot) LookupUUID(u UUID) *Collection { return s.uuid[u[0]][u] }

// Databases lists the databases that have collections, in order.
func (s *Snapshot) Databases() []string {
	out := make([]string, 0, len(s.dbs))
	for n := range s.dbs {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// HasDatabase tells whether the database has a collection.
func (s *Snapshot) HasDatabase(db string) bool { return s.dbs[db] != nil }

// Collections lists a database's collections in order of name.
func (s *Snapshot) Collections(db string) []*Collection {
	d := s.dbs[db]
	if d == nil {
		return nil
	}
	out := make([]*Collection, 0, len(d.collections))
	for _, c := range d.collections {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].NS < out[j].NS })
	return out
}

// All lists every collection, by database and name.
func (s *Snapshot) All() []*Collection {
	var out []*Collection
	for _, db := range s.Databases() {
		out = append(out, s.Collections(db)...)
	}
	return out
}

// Len is the number of collections.
func (s *Snapshot) Len() int { return s.n }

// Each calls f with every collection, in no order.
func (s *Snapshot) Each(f func(*Collection)) {
	for _, db := range s.dbs {
		for _, c := range db.collections {
			f(c)
		}
	}
}

// With is the catalog with c put in, in place of old where old is not nil.
func (s *Snapshot) With(old, c *Collection) *Snapshot {
	n := s.Without(old)
	if n == s {
		n = s.clone()
	}
	n.own(c.DB()).collections[c.NS] = c
	n.ownPart(c.UUID)[c.UUID] = c
	n.n++
	return n
}

// Without is the catalog without old. A nil old gives s itself.
func (s *Snapshot) Without(old *Collection) *Snapshot {
	if old == nil {
		return s
	}
	n := s.clone()
	db := n.own(old.DB())
	delete(db.collections, old.NS)
	if len(db.collections) == 0 {
		delete(n.dbs, old.DB())
	}
	delete(n.ownPart(old.UUID), old.UUID)
	n.n--
	return n
}

func (s *Snapshot) clone() *Snapshot {
	n := *s
	n.dbs = make(map[string]*Database, len(s.dbs)+1)
	for k, v := range s.dbs {
		n.dbs[k] = v
	}
	return &n
}

// ownPart replaces a part of the index by UUID by a copy that the snapshot under construction may change.
func (s *Snapshot) ownPart(u UUID) map[UUID]*Collection {
	part := make(map[UUID]*Collection, len(s.uuid[u[0]])+1)
	for k, v := range s.uuid[u[0]] {
		part[k] = v
	}
	s.uuid[u[0]] = part
	return part
}

// own replaces a database by a copy that the snapshot under construction may change.
func (s *Snapshot) own(db string) *Database {
	old := s.dbs[db]
	d := &Database{Name: db}
	if old == nil {
		d.collections = map[string]*Collection{}
	} else {
		d.collections = make(map[string]*Collection, len(old.collections)+1)
		for k, v := range old.collections {
			d.collections[k] = v
		}
	}
	s.dbs[db] = d
	return d
}

// SameOptions tells whether two option documents hold the same bytes.
func SameOptions(a, b []byte) bool {
	empty := func(x []byte) bool { return len(x) <= 5 }
	return bytes.Equal(a, b) || empty(a) && empty(b)
}
