package txn

import (
	"bytes"
	"strconv"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/update"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// LoggedOp is one validated entry of applyOps.
type LoggedOp struct {
	Op    byte
	NS    string
	UI    value.Value // the UUID of the collection; missing in entries without one
	O, o2 []byte
	key   []byte // the document key of an insert, if the entry has it
}

func ParseLoggedOp(i int, v value.Value) (o LoggedOp, err error) {
	if v.T != value.Document {
		return o, command.WrongType("applyOps.applyOps."+strconv.Itoa(i), v.T, command.TObject)
	}
	kind, ns, obj := value.Lookup(v.Doc(), "op"), value.Lookup(v.Doc(), "ns"), value.Lookup(v.Doc(), "o")
	switch {
	case kind.IsMissing():
		return o, mongoerr.New(mongoerr.NoSuchKey, "Missing expected field \"op\"")
	case kind.T != value.String:
		return o, mongoerr.Newf(mongoerr.TypeMismatch, "\"op\" had the wrong type. Expected string, found %s", kind.T.Name())
	case ns.T != value.String || len(ns.Bytes()) == 0:
		return o, mongoerr.New(mongoerr.IllegalOperation, "cannot apply an operation without a namespace")
	case len(kind.Bytes()) == 0:
		return o, mongoerr.New(mongoerr.IllegalOperation, "an operation's \"op\" is empty")
	case obj.IsMissing():
		return o, command.MissingField("applyOps.o")
	case obj.T != value.Document:
		return o, command.WrongType("applyOps.o", obj.T, command.TObject)
	}
	o = LoggedOp{Op: kind.Bytes()[0], NS: ns.Str(), UI: value.Lookup(v.Doc(), "ui"), O: obj.Doc(), o2: value.Lookup(v.Doc(), "o2").Doc()}
	switch {
	case len(kind.Bytes()) != 1 || o.Op != 'i' && o.Op != 'u' && o.Op != 'd' && o.Op != 'c' && o.Op != 'n':
		return o, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'applyOps.op' is not a valid value.", kind.Str())
	case o.Op == 'i' || o.Op == 'd':
		o.key, o.o2 = o.o2, o.O
	case o.Op == 'u' && o.o2 == nil:
		return o, command.MissingField("applyOps.o2")
	}
	if o.Op != 'c' && o.Op != 'n' && value.Lookup(o.o2, "_id").IsMissing() {
		return o, mongoerr.New(mongoerr.NoSuchKey, "Failed to apply an operation without an _id")
	}
	return o, nil
}

// Target returns the collection of an operation on a document: the one with its UUID if it has one, nil if there is none.
func (o *LoggedOp) Target(s *storage.Snapshot) *catalog.Collection {
	if id, ok := catalog.UUIDFrom(o.UI); ok {
		return s.Catalog().LookupUUID(id)
	}
	return s.Catalog().Lookup(o.NS)
}

// Apply executes a logged operation on a document: an update by its diff and the document's key. Operations are
// idempotent: an insert replaces an existing document, a delete may find none. check, if not nil, may refuse what a document
// becomes; old is nil for a new one.
func (o *LoggedOp) Apply(s *storage.Snapshot, u *storage.UnitOfWork, check func(c *catalog.Collection, doc, old []byte) error) error {
	c := o.Target(s)
	if c == nil {
		if o.Op == 'd' {
			return nil
		}
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Failed to apply operation: collection %s does not exist", o.NS)
	}
	rid, old, found, err := s.FindByID(c, value.Lookup(o.o2, "_id"))
	if err != nil {
		return err
	}
	rid, old = rid.Clone(), append([]byte(nil), old...)
	switch {
	case o.Op == 'd' && found:
		return u.Delete(c, rid, old, storage.OpInfo{O: bytes.Clone(o.O), StmtID: -1})
	case o.Op == 'd':
		return nil
	case o.Op == 'i' && !found:
		info := storage.NoInfo
		if o.key != nil {
			key := bytes.Clone(o.key)
			info.Key = func([]byte) []byte { return key }
		}
		if check != nil {
			if err := check(c, o.O, nil); err != nil {
				return err
			}
		}
		_, err := u.Insert(c, o.O, info)
		return err
	case !found:
		return mongoerr.Newf(mongoerr.UnknownError, "Failed to apply update due to a missing document: %s", value.ShowDoc(o.o2))
	}
	next, info := o.O, storage.OpInfo{O2: bytes.Clone(o.o2), StmtID: -1}
	if o.Op == 'i' {
		info.O2 = bytes.Clone(o.key)
	}
	if diff := value.Lookup(o.O, "diff"); diff.T == value.Document && !value.Lookup(o.O, "$v").IsMissing() {
		if next, err = update.ApplyDiff(old, diff.Doc()); err != nil {
			return err
		}
		info.O = bytes.Clone(o.O)
	}
	if check != nil {
		if err := check(c, next, old); err != nil {
			return err
		}
	}
	return u.Update(c, rid, old, next, info)
}
