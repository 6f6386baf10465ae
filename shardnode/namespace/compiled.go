package namespace

import (
	"sync"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage/catalog"
)

// Compiled is a collection's compiled form. It is made once and used by every operation, until the collection changes.
type Compiled struct {
	coll      *catalog.Collection
	Collation *collation.Spec
	Validator *match.Matcher
	Level     string // validationLevel
	action    string // validationAction
	report    func(ns string, doc, errInfo []byte)
	Err       error // the validator does not compile: every write fails with this
	Plans     *exec.Planning
}

// Cache keeps the compiled forms of a node's collections.
type Cache struct {
	exec   *exec.Executor
	report func(ns string, doc, errInfo []byte)

	byUUID sync.Map // catalog.UUID → *Compiled
}

// NewCache makes the cache of a node. report logs a document that a validator rejects without failing the write.
func NewCache(x *exec.Executor, report func(ns string, doc, errInfo []byte)) *Cache {
	return &Cache{exec: x, report: report}
}

// Of returns the compiled form of a collection's options.
func (t *Cache) Of(c *catalog.Collection) *Compiled {
	if m, ok := t.byUUID.Load(c.UUID); ok && m.(*Compiled).coll == c {
		return m.(*Compiled)
	}
	m := &Compiled{coll: c, Level: "strict", action: "error", report: t.report}
	if c.Collation != nil {
		m.Collation, m.Err = collation.Parse(c.Collation)
	}
	m.Plans = exec.NewPlanning(c, m.Collation)
	for k, v := range value.Elements(c.Options) {
		switch k {
		case "validator":
			if v.T == value.Document && len(v.Doc()) > 5 && m.Err == nil {
				m.Validator, m.Err = exec.CompileFilter(append([]byte(nil), v.Doc()...), t.exec.Standing(m.Collation).Scope, m.Collation)
			}
		case "validationLevel":
			m.Level = v.Str()
		case "validationAction":
			m.action = v.Str()
		}
	}
	t.byUUID.Store(c.UUID, m)
	return m
}

// Forget drops the compiled form of a collection.
func (t *Cache) Forget(id catalog.UUID) { t.byUUID.Delete(id) }

// Prune drops the compiled forms of collections that no longer exist.
func (t *Cache) Prune(cat *catalog.Snapshot) {
	t.byUUID.Range(func(id, _ any) bool {
		if cat.LookupUUID(id.(catalog.UUID)) == nil {
			t.byUUID.Delete(id)
		}
		return true
	})
}

// CollationOf returns the collation an operation runs under: its own, else the collection's.
func (t *Cache) CollationOf(arg value.Value, c *catalog.Collection) (*collation.Spec, error) {
	if arg.T == value.Document && len(arg.Doc()) > 5 {
		return collation.Parse(arg.Doc())
	}
	if c != nil && c.Collation != nil {
		return t.Of(c).Collation, nil
	}
	return nil, nil
}

// Check runs the validator on a new document. old is the document that it replaces, nil for inserts: with the moderate
// level, a document that was invalid before may remain so.
func (m *Compiled) Check(c *catalog.Collection, doc, old []byte) error {
	if m.Err != nil {
		return m.Err
	}
	if m.Validator == nil || m.Level == "off" {
		return nil
	}
	validator := m.Validator
	if !validator.Stateless() {
		validator = validator.Fork() // the collection's own is shared by all writers
	}
	ok, err := validator.Match(doc)
	if err != nil || ok {
		return err
	}
	if m.Level == "moderate" && old != nil {
		if was, err := validator.Match(old); err == nil && !was {
			return nil
		}
	}
	info := validationInfo(validator, doc)
	if m.action != "error" && m.report != nil {
		m.report(c.NS, doc, info)
	}
	if m.action == "warn" {
		return nil
	}
	return validationFailure(info)
}
