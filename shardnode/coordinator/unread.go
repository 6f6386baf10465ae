package coordinator

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A primary may find the state document of a run that it cannot continue: a member of another version has begun it, while the set is being upgraded or downgraded, and it has a phase or fields that
// this version does not know. Such a run has not ended. Its participants are in its critical sections, and may have done a part of it: this node holds the sections, so that no client
// finds what is half done, and admits no other DDL and no migration on its names. A later primary that knows it continues it.
//
// What the documents of all versions have is enough: the name in their _id, and the id of the run. What has no such name is no document of a run, and is skipped like all that clients write beside them.
// If an administrator removes the document, the names are free, and the sections are ended by those who wait for them.

// unread is a stored run that this version cannot continue.
type unread struct {
	doc   value.Value // the document's _id
	ns    string      // the name in it
	raw   value.Value // the document's id, of which id is the form that is known
	id    catalog.UUID
	hasID bool
	names []lockedName
}

// readUnread reads what is needed of a document that readDocument refuses; nil if it is not that of a run.
func readUnread(doc []byte) *unread {
	id := value.Lookup(doc, "_id")
	name := value.Lookup(id.Doc(), "namespace")
	if id.T != value.Document || name.T != value.String || catalog.DBOf(name.Str()) == "" {
		return nil
	}
	u := &unread{doc: id.Clone(), ns: name.Str(), raw: value.Lookup(doc, "id").Clone()}
	u.id, u.hasID = catalog.UUIDFrom(u.raw)
	u.names = locksOf(u.ns)
	command := value.LookupDoc(doc, "command")
	if op, err := parseOperation(command); err == nil {
		u.names = append(u.names, storedNames(op)...)
	} else if to := value.Lookup(command, "to"); to.T == value.String && catalog.CollOf(to.Str()) != "" { // a rename's target
		u.names = append(u.names, locksOf(to.Str())...)
	}
	return u
}

// locksOf returns the locks of an operation that changes a database, or a collection, with the buckets that it may have.
func locksOf(ns string) (out []lockedName) {
	db := lock.Resource{Kind: lock.DDLDatabase, Name: catalog.DBOf(ns)}
	if catalog.CollOf(ns) == "" {
		return []lockedName{{db, lock.X}}
	}
	out = []lockedName{{db, lock.IX}}
	for _, coll := range lockedWithBuckets(ns) {
		out = append(out, lockedName{lock.Resource{Kind: lock.DDLCollection, Name: coll}, lock.X})
	}
	return out
}

// err is the error of an operation that such a run is in the way of.
func (u *unread) err() error {
	return mongoerr.Newf(mongoerr.ManualInterventionRequired, "A DDL operation on %s, which a server of another version has begun, cannot be continued by this version: upgrade the primary of this shard, "+
		"or remove the document with _id %s from %s", u.ns, value.Show(u.doc), documentsNS)
}

// admits returns an error if such a run is in the way of an operation on some names.
func (m *Coordinators) admits(unread []*unread, names []lockedName) error {
	for _, u := range unread {
		if !conflict(u.names, names) {
			continue
		}
		there, err := m.remains(u)
		if there {
			err = u.err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remains reports whether the document of such a run is still there, and forgets the run if it is not.
func (m *Coordinators) remains(u *unread) (bool, error) {
	doc, err := m.Docs.Get(documentsNS, u.doc)
	if err != nil || doc != nil && value.Equal(value.Lookup(doc, "id"), u.raw) {
		return err == nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.unread = slices.DeleteFunc(slices.Clone(m.mu.unread), func(x *unread) bool { return x == u })
	return false, nil
}
