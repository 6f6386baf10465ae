package storage

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// catalogStage holds a unit's changes to the catalog. The commit's leader checks and applies them to the catalog
// of that moment; until then only the unit itself sees them.
type catalogStage struct {
	view   *catalog.Snapshot // what the unit sees; nil before the first change
	edits  []catalogEdit     // the changes that lead from the catalog the unit began with to view
	ops    []func(*catalogChange) error
	marks  []multikeyMark  // those of ops that only mark an index as multikey
	epochs map[uint64]bool // epochs allocated by this unit

	spare int // number of ops that need no room to speak of: they drop or rename a collection, drop indexes, or create a collection of the node's own state
}

// multikeyMark records that an index has documents with several keys.
type multikeyMark struct {
	collection catalog.UUID
	index      catalog.Ident
	masks      []uint64
	arrays     []string // the ArrayPaths of a wildcard index
}

// catalogChange is the state that staged changes are applied to.
type catalogChange struct {
	e   *Engine
	u   *UnitOfWork
	cat *catalog.Snapshot
	tip *tip

	edits []catalogEdit
}

// catalogEdit is a collection's next state, nil if it is dropped.
type catalogEdit struct {
	uuid catalog.UUID
	next *catalog.Collection
	at   Timestamp // of the unit of work, once it has one
}

func applyEdits(cat *catalog.Snapshot, edits []catalogEdit) *catalog.Snapshot {
	for _, d := range edits {
		old := cat.LookupUUID(d.uuid)
		if d.next == nil {
			cat = cat.Without(old)
		} else {
			cat = cat.With(old, d.next)
		}
	}
	return cat
}

// catalog returns base with the unit's changes applied.
func (u *UnitOfWork) catalog(base *catalog.Snapshot) *catalog.Snapshot {
	if u.catalogs.view != nil {
		return u.catalogs.view
	}
	return base
}

// Catalog returns the catalog with the unit's own changes.
func (u *UnitOfWork) Catalog() *catalog.Snapshot {
	if u.base != nil {
		return u.catalog(u.base.cat)
	}
	return u.catalog(u.behind.catalog(u.e.Catalog()))
}

// change stages the next state of a collection (nil if it is dropped), and the operation that the commit runs for
// it.
func (u *UnitOfWork) change(uuid catalog.UUID, next *catalog.Collection, op func(*catalogChange) error) {
	edit := catalogEdit{uuid: uuid, next: next}
	u.catalogs.view = applyEdits(u.Catalog(), []catalogEdit{edit})
	u.catalogs.edits = append(u.catalogs.edits, edit)
	u.catalogs.ops = append(u.catalogs.ops, op)
}

// newEpoch allocates an epoch, which identifies a state of a changed collection.
func (u *UnitOfWork) newEpoch() uint64 {
	n := u.e.nextEpoch.Add(1)
	if u.catalogs.epochs == nil {
		u.catalogs.epochs = map[uint64]bool{}
	}
	u.catalogs.epochs[n] = true
	return n
}

// stageCatalog checks the unit's assumptions about the catalog, and applies its changes to the group's. It runs in
// the leader, in commit order.
func (e *Engine) stageCatalog(u *UnitOfWork, g *Group, t *tip) error {
	for _, used := range u.used {
		if u.catalogs.epochs[used.epoch] {
			continue
		}
		if c := g.cat.LookupUUID(used.uuid); c == nil || c.Epoch != used.epoch {
			return errConflict
		}
	}
	if len(u.catalogs.ops) == 0 {
		return nil
	}
	ch := &catalogChange{e: e, u: u, cat: g.cat, tip: t}
	for _, op := range u.catalogs.ops {
		if err := op(ch); err != nil {
			return err
		}
	}
	g.cat = ch.cat
	g.edits = append(g.edits, ch.edits...)
	return nil
}

// records returns the number of documents as this unit's commit will find it, without the unit's own.
func (ch *catalogChange) records(c *catalog.Collection) int64 {
	if d, known := ch.tip.counts[c.Ident]; known {
		return d.records
	}
	return c.Counters.Records.Load()
}

func (ch *catalogChange) put(old, c *catalog.Collection) {
	ch.cat = ch.cat.With(old, c)
	ch.edits = append(ch.edits, catalogEdit{uuid: c.UUID, next: c})
	ch.durable(c, catalog.Encode(c), old != nil)
}

func (ch *catalogChange) remove(c *catalog.Collection) {
	ch.cat = ch.cat.Without(c)
	ch.edits = append(ch.edits, catalogEdit{uuid: c.UUID})
	ch.durable(c, nil, true)
}

func (ch *catalogChange) durable(c *catalog.Collection, entry []byte, had bool) {
	key := NewRecordID(c.CatalogID)
	table := ch.e.lines[lineOf(c.Ident)].catalog
	ch.u.put(table, key, entry)
	if had {
		ch.u.supersede(table, key)
	}
}

// replace swaps a collection for its next state. Multikey marks that other units set meanwhile are kept.
func (ch *catalogChange) replace(base, next *catalog.Collection) error {
	cur := ch.cat.LookupUUID(base.UUID)
	if cur == nil || cur.Epoch != base.Epoch {
		return errConflict
	}
	if cur != base {
		c := *next
		c.Indexes = append([]*catalog.Index(nil), next.Indexes...)
		for i, idx := range c.Indexes {
			if now := cur.Index(idx.Name); now != nil && now.Ident == idx.Ident && now.Multikey {
				c.Indexes[i] = idx.WithMultikey(now.MultikeyPaths, now.ArrayPaths)
			}
		}
		next = &c
	}
	ch.put(cur, next)
	return nil
}

// dropIdent schedules the deletion of a table for when no snapshot can read it. bytes is the size of its
// documents.
func (ch *catalogChange) dropIdent(id catalog.Ident, bytes int64) {
	ch.u.OnCommit(func(ts Timestamp) { ch.e.lines[lineOf(id)].drops.add(ts, id, bytes) })
	ch.u.drops = append(ch.u.drops, id)
}

// stageReplace makes the unit see next in place of c, and makes the commit check that c is still current and
// replace it.
func (u *UnitOfWork) stageReplace(c, next *catalog.Collection) {
	u.line, u.lined = uint8(lineOf(c.Ident)), true // checked by current, or the first of the unit
	next.Epoch = u.newEpoch()
	u.change(c.UUID, next, func(ch *catalogChange) error { return ch.replace(c, next) })
}

// current checks that the unit sees c in exactly the given state.
func (u *UnitOfWork) current(c *catalog.Collection) error {
	if u.state != unitOpen {
		return mongoerr.New(mongoerr.InternalError, "the unit of work has ended")
	}
	now := u.Catalog().LookupUUID(c.UUID)
	if now == nil || now.Epoch != c.Epoch {
		return errConflict
	}
	return u.touch(c.Ident)
}

// defaultIDSpec returns the specification of the default _id index.
func defaultIDSpec(collation []byte) []byte {
	f := []value.Field{value.F("v", value.NewInt32(2)),
		value.F("key", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))),
		value.F("name", value.NewString("_id_"))}
	if collation != nil {
		f = append(f, value.F("collation", value.NewDocument(collation)))
	}
	return value.Doc(f...)
}

// NewUUID returns a random UUID.
func NewUUID() (u catalog.UUID) {
	_, _ = rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0F|0x40, u[8]&0x3F|0x80
	return u
}

// CreateCollection stages a new collection. If another unit was faster, the commit fails with NamespaceExists
// (48). The returned collection may be written to in the same unit.
//
// The name of a new database is checked here and again by the commit: a transaction goes on for long after the statement that creates one, and that statement has to fail.
func (u *UnitOfWork) CreateCollection(spec CollectionSpec) (*catalog.Collection, error) {
	if u.Catalog().Lookup(spec.NS) != nil {
		if spec.Shared {
			return nil, errConflict
		}
		return nil, namespaceExists(spec.NS)
	}
	if u.Catalog().LookupUUID(spec.UUID) != nil {
		return nil, uuidExists(spec.UUID)
	}
	for _, cat := range []*catalog.Snapshot{u.Catalog(), u.behind.catalog(u.e.Catalog())} { // what the unit sees may be older
		if err := sameCase(cat, catalog.DBOf(spec.NS)); err != nil {
			return nil, err
		}
	}
	c, err := u.e.newCollection(spec)
	if err != nil {
		return nil, err
	}
	if err := u.touch(c.Ident); err != nil {
		return nil, err
	}
	c.Epoch = u.newEpoch()
	u.change(c.UUID, c, func(ch *catalogChange) error {
		switch exists := ch.cat.Lookup(c.NS) != nil; {
		case exists && spec.Shared:
			return errConflict
		case exists:
			return namespaceExists(c.NS)
		}
		if err := sameCase(ch.cat, c.DB()); err != nil {
			return err
		}
		if ch.cat.LookupUUID(c.UUID) != nil {
			return uuidExists(c.UUID)
		}
		ch.put(nil, c)
		return nil
	})
	if u.ownState(c.NS) {
		u.catalogs.spare++
	}
	if u.logs(c) {
		u.logCreate(c)
	}
	return c, nil
}

func namespaceExists(ns string) error {
	return mongoerr.Newf(mongoerr.NamespaceExists, "Collection %s already exists.", ns)
}

func uuidExists(id catalog.UUID) error {
	return mongoerr.Newf(mongoerr.NamespaceExists, "a collection with UUID %s exists", id)
}

// sameCase rejects a database name that differs from an existing one only in case.
func sameCase(cat *catalog.Snapshot, db string) error {
	if cat.HasDatabase(db) {
		return nil
	}
	for _, other := range cat.Databases() {
		if strings.EqualFold(db, other) {
			return mongoerr.Newf(mongoerr.DatabaseDifferCase,
				"db already exists with different case already have: [%s] trying to create [%s]", other, db)
		}
	}
	return nil
}

// newCollection returns the collection that spec describes, with newly allocated idents.
func (e *Engine) newCollection(spec CollectionSpec) (*catalog.Collection, error) {
	c := &catalog.Collection{
		NS: spec.NS, UUID: spec.UUID, CatalogID: e.nextEntry.Add(1), Counters: &catalog.Counters{},
		Replicated: !spec.Unreplicated && !catalog.Unreplicated(spec.NS), Oplog: spec.NS == OplogNS && !e.opts.Standalone,
	}
	if c.UUID.IsZero() {
		c.UUID = NewUUID()
	}
	if c.Oplog {
		c.Ident, c.IdentName = identOplog, catalog.IdentName("collection", identOplog, e.salt)
	} else {
		c.Ident, c.IdentName = e.newIdent("collection", lineFor(c.NS))
	}
	options := spec.Options
	if options == nil {
		options = value.Doc()
	}
	c.SetOptions(append([]byte(nil), options...))
	if c.Clustered || spec.NoIDIndex {
		return c, nil
	}
	raw := spec.IDIndexSpec
	if raw == nil {
		raw = defaultIDSpec(c.Collation)
	}
	idx, err := e.newIndex(c, raw)
	if err != nil {
		return nil, err
	}
	c.Indexes = []*catalog.Index{idx}
	return c, nil
}

// lineFor returns the line that a new collection belongs to. Stores of earlier versions have collections of the
// local database in the replicated line; they stay there.
func lineFor(ns string) int {
	if catalog.DBOf(ns) == "local" && ns != OplogNS {
		return lineLocal
	}
	return lineReplicated
}

func (e *Engine) newIdent(kind string, line int) (catalog.Ident, string) {
	id := catalog.Ident(e.lines[line].nextIdent.Add(1) - 1)
	return id, catalog.IdentName(kind, id, e.salt)
}

func (e *Engine) newIndex(c *catalog.Collection, raw []byte) (*catalog.Index, error) {
	id, name := e.newIdent("index", lineOf(c.Ident))
	idx, err := catalog.NewIndex(append([]byte(nil), raw...), id, name, c.Clustered)
	if err != nil {
		return nil, err
	}
	idx.Usage.SinceMS = e.opts.Clock().UnixMilli()
	return idx, nil
}

// command logs a command entry in c's database.
func (u *UnitOfWork) command(c *catalog.Collection, o, o2 []byte) {
	if u.logs(c) {
		u.logEntry(&OplogEntry{Op: 'c', NS: c.DB() + ".$cmd", UUID: c.UUID, O: o, O2: o2, StmtID: -1})
	}
}

func (u *UnitOfWork) logCreate(c *catalog.Collection) {
	out, mark := value.Begin(nil)
	out = value.Append(out, "create", value.NewString(c.Name()))
	for it := value.Walk(c.Options); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		out = value.AppendKeyBytes(out, k, v)
	}
	if idx := c.IDIndex(); idx != nil {
		out = value.Append(out, "idIndex", value.NewDocument(idx.Spec.Raw))
	}
	u.command(c, value.End(out, mark), nil)
}

// DropCollection stages the drop; the data is deleted once no reader can need it.
func (u *UnitOfWork) DropCollection(c *catalog.Collection) error {
	if err := u.current(c); err != nil {
		return err
	}
	n := c.Counters.Records.Load()
	u.command(c, value.Doc(value.F("drop", value.NewString(c.Name()))),
		value.Doc(value.F("numRecords", value.NewInt32(int32(min(n, math.MaxInt32))))))
	u.change(c.UUID, nil, func(ch *catalogChange) error { return ch.drop(c) })
	u.catalogs.spare++
	return u.endBuilds(c.Indexes)
}

func (ch *catalogChange) drop(c *catalog.Collection) error {
	cur := ch.cat.LookupUUID(c.UUID)
	if cur == nil || cur.Epoch != c.Epoch {
		return errConflict
	}
	ch.remove(cur)
	ch.dropIdent(cur.Ident, cur.Counters.DataSize.Load())
	for _, idx := range cur.Indexes {
		ch.dropIdent(idx.Ident, 0)
	}
	return nil
}

// RenameCollection stages a rename and returns the renamed collection. dropTarget, if not nil, is the collection
// that it replaces.
func (u *UnitOfWork) RenameCollection(c *catalog.Collection, to string, dropTarget *catalog.Collection, stayTemp bool) (*catalog.Collection, error) {
	if err := u.current(c); err != nil {
		return nil, err
	}
	if lineFor(to) != lineOf(c.Ident) && !(c.DB() == "local" && lineFor(to) == lineLocal) {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "Cannot rename collections between a replicated and an unreplicated database")
	}
	ops, spare := len(u.catalogs.ops), u.catalogs.spare
	f := []value.Field{value.F("renameCollection", value.NewString(c.NS)), value.F("to", value.NewString(to)),
		value.F("stayTemp", value.NewBool(stayTemp))}
	if dropTarget != nil {
		f = append(f, value.F("dropTarget", dropTarget.UUID.Value()))
		if err := u.current(dropTarget); err != nil {
			return nil, err
		}
		u.change(dropTarget.UUID, nil, func(ch *catalogChange) error { return ch.drop(dropTarget) })
		if err := u.endBuilds(dropTarget.Indexes); err != nil {
			return nil, err
		}
	} else if u.Catalog().Lookup(to) != nil {
		return nil, mongoerr.New(mongoerr.NamespaceExists, "target namespace exists")
	}
	u.command(c, value.Doc(f...), nil)
	next := *c
	next.NS = to
	if c.Temp && !stayTemp {
		next.SetOptions(without(c.Options, "temp"))
	}
	next.Epoch = u.newEpoch()
	u.change(c.UUID, &next, func(ch *catalogChange) error {
		if ch.cat.Lookup(to) != nil {
			return mongoerr.New(mongoerr.NamespaceExists, "target namespace exists")
		}
		if err := sameCase(ch.cat, catalog.DBOf(to)); err != nil {
			return err
		}
		return ch.replace(c, &next)
	})
	u.catalogs.spare = spare + len(u.catalogs.ops) - ops
	return &next, nil
}

// MakePermanent stages that a temporary collection is none, and returns it. No change stream shows it.
func (u *UnitOfWork) MakePermanent(c *catalog.Collection) (*catalog.Collection, error) {
	if err := u.current(c); err != nil {
		return nil, err
	}
	next := *c
	next.SetOptions(without(c.Options, "temp"))
	u.stageReplace(c, &next)
	return &next, nil
}

func without(doc []byte, name string) []byte {
	out, mark := value.Begin(nil)
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return value.End(out, mark)
		}
		if string(k) != name {
			out = value.AppendKeyBytes(out, k, v)
		}
	}
}

// definitionLimit is the maximum size of a collection's definition, its options and indexes together: that of a document of the catalog.
const definitionLimit = 16<<20 + 16<<10

// checkDefinition refuses a change by which a collection's definition becomes too large. Nodes send whole definitions to each other, in one message.
func checkDefinition(was, next *catalog.Collection) error {
	size := func(c *catalog.Collection) int {
		n := len(c.Options)
		for _, x := range c.Indexes {
			n += len(x.Spec.Raw)
		}
		return n
	}
	if n := size(next); n > definitionLimit && n > size(was) {
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge, "BSONObj size: %d (0x%X) is invalid. Size must be between 0 and %d(16MB): the options and indexes of %s are too large", n, n, definitionLimit, next.NS)
	}
	return nil
}

// SetCollectionOptions replaces the options (collMod). o and o2 are the oplog entry's documents; o nil for no entry.
func (u *UnitOfWork) SetCollectionOptions(c *catalog.Collection, options, o, o2 []byte) (*catalog.Collection, error) {
	if err := u.current(c); err != nil {
		return nil, err
	}
	next := *c
	next.SetOptions(append([]byte(nil), options...))
	if err := checkDefinition(c, &next); err != nil {
		return nil, err
	}
	if o != nil {
		u.command(c, o, o2)
	}
	u.stageReplace(c, &next)
	return &next, nil
}

// SetIndexSpec replaces an index's spec (collMod of hidden, expireAfterSeconds, unique, prepareUnique). o and o2 are the
// oplog entry's documents; o nil for no entry.
func (u *UnitOfWork) SetIndexSpec(c *catalog.Collection, name string, spec, o, o2 []byte) (*catalog.Collection, error) {
	if err := u.current(c); err != nil {
		return nil, err
	}
	old := c.Index(name)
	if old == nil {
		return nil, mongoerr.Newf(mongoerr.IndexNotFound, "cannot find index %s for ns %s", name, c.NS)
	}
	idx, err := catalog.NewIndex(append([]byte(nil), spec...), old.Ident, old.IdentName, old.Clustered)
	if err != nil {
		return nil, err
	}
	idx.Usage, idx.Tail = old.Usage, old.Tail
	idx.Multikey, idx.MultikeyPaths, idx.ArrayPaths = old.Multikey, old.MultikeyPaths, old.ArrayPaths
	next := *c
	next.Indexes = append([]*catalog.Index(nil), c.Indexes...)
	for i := range next.Indexes {
		if next.Indexes[i] == old {
			next.Indexes[i] = idx
		}
	}
	if err := checkDefinition(c, &next); err != nil {
		return nil, err
	}
	if o != nil {
		u.command(c, o, o2)
	}
	u.stageReplace(c, &next)
	return &next, nil
}

// CreateIndexes stages ready indexes on a collection that must be empty at the commit (WriteConflict otherwise).
// Indexes on collections with documents are built with StartIndexBuild. Specs are complete: v, key, name, options.
func (u *UnitOfWork) CreateIndexes(c *catalog.Collection, specs [][]byte) (*catalog.Collection, error) {
	if err := u.current(c); err != nil {
		return nil, err
	}
	if n, _ := u.deltaOf(c.Ident); n != 0 {
		return nil, mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction,
			"Cannot create new indexes on non-empty collection %s in a multi-document transaction.", c.NS)
	}
	next := *c
	next.Indexes = append([]*catalog.Index(nil), c.Indexes...)
	for _, raw := range specs {
		idx, err := u.e.newIndex(c, raw)
		if err != nil {
			return nil, err
		}
		if next.Index(idx.Name) != nil {
			return nil, mongoerr.Newf(mongoerr.IndexAlreadyExists, "Index with name: %s already exists", idx.Name)
		}
		next.Indexes = append(next.Indexes, idx)
		u.command(c, indexCommand("createIndexes", c, raw), nil)
	}
	if err := checkDefinition(c, &next); err != nil {
		return nil, err
	}
	next.Epoch = u.newEpoch()
	u.change(c.UUID, &next, func(ch *catalogChange) error {
		if ch.records(c) != 0 {
			return errConflict
		}
		return ch.replace(c, &next)
	})
	return &next, nil
}

// indexCommand returns {verb: collection, …spec}.
func indexCommand(verb string, c *catalog.Collection, spec []byte) []byte {
	out, mark := value.Begin(nil)
	out = value.Append(out, verb, value.NewString(c.Name()))
	for it := value.Walk(spec); ; {
		k, v, ok := it.Next()
		if !ok {
			return value.End(out, mark)
		}
		out = value.AppendKeyBytes(out, k, v)
	}
}

// DropIndexes stages the drop of indexes by name.
func (u *UnitOfWork) DropIndexes(c *catalog.Collection, names []string) (*catalog.Collection, error) {
	if err := u.current(c); err != nil {
		return nil, err
	}
	next := *c
	next.Indexes = append([]*catalog.Index(nil), c.Indexes...)
	var dropped []*catalog.Index
	for _, name := range names {
		idx := next.Index(name)
		if idx == nil {
			return nil, mongoerr.Newf(mongoerr.IndexNotFound, "index not found with name [%s]", name)
		}
		dropped = append(dropped, idx)
		next.Indexes = withoutIndex(next.Indexes, name)
		u.command(c, value.Doc(value.F("dropIndexes", value.NewString(c.Name())), value.F("index", value.NewString(name))), idx.Spec.Raw)
	}
	next.Epoch = u.newEpoch()
	u.change(c.UUID, &next, func(ch *catalogChange) error {
		if err := ch.replace(c, &next); err != nil {
			return err
		}
		for _, idx := range dropped {
			ch.dropIdent(idx.Ident, 0)
		}
		return nil
	})
	u.catalogs.spare++
	return &next, u.endBuilds(dropped)
}

func withoutIndex(in []*catalog.Index, name string) (out []*catalog.Index) {
	for _, i := range in {
		if i.Name != name {
			out = append(out, i)
		}
	}
	return out
}

// setMultikey records at the commit that an index has documents with several keys. arrays are the ArrayPaths of a wildcard index.
func (u *UnitOfWork) setMultikey(c *catalog.Collection, idx *catalog.Index, masks []uint64, arrays []string) {
	if idx.WithMultikey(masks, arrays) == idx {
		return
	}
	m := multikeyMark{c.UUID, idx.Ident, append([]uint64(nil), masks...), slices.Clone(arrays)}
	u.catalogs.marks = append(u.catalogs.marks, m)
	if u.own != nil { // the unit's own reads choose bounds by it
		if cur, next := m.apply(u.Catalog()); next != nil {
			u.catalogs.view = u.Catalog().With(cur, next)
		}
	}
	u.catalogs.ops = append(u.catalogs.ops, func(ch *catalogChange) error {
		if cur, next := m.apply(ch.cat); next != nil {
			ch.put(cur, next)
		}
		return nil
	})
}

// apply returns the collection and its next state, which is nil if the index is gone or already marked.
func (m *multikeyMark) apply(cat *catalog.Snapshot) (cur, next *catalog.Collection) {
	if cur = cat.LookupUUID(m.collection); cur == nil {
		return nil, nil
	}
	for i, now := range cur.Indexes {
		if now.Ident != m.index {
			continue
		}
		marked := now.WithMultikey(m.masks, m.arrays)
		if marked == now {
			break
		}
		c := *cur
		c.Indexes = append([]*catalog.Index(nil), cur.Indexes...)
		c.Indexes[i] = marked
		return cur, &c
	}
	return cur, nil
}

func randomSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) >> 1
}

func describeUUID(u catalog.UUID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
