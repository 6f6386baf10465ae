package shardnode

import (
	"sync"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage/catalog"
)

// collMeta is what is compiled once for a collection and used by every operation on it, until the collection changes.
type collMeta struct {
	coll      *catalog.Collection
	collation *collation.Spec
	validator *match.Matcher
	level     string // validationLevel
	action    string // validationAction
	report    func(ns string, doc, errInfo []byte)
	err       error // the validator does not compile: every write says so
	plans     *exec.Planning
}

// metas keeps the compiled forms of a node's collections.
type metas struct {
	exec   *exec.Executor
	report func(ns string, doc, errInfo []byte) // logs a document that a validator refuses without failing the write

	byUUID sync.Map // catalog.UUID → *collMeta
}

// of gives the compiled form of a collection's options.
func (t *metas) of(c *catalog.Collection) *collMeta {
	if m, ok := t.byUUID.Load(c.UUID); ok && m.(*collMeta).coll == c {
		return m.(*collMeta)
	}
	m := &collMeta{coll: c, level: "strict", action: "error", report: t.report}
	if c.Collation != nil {
		m.collation, m.err = collation.Parse(c.Collation)
	}
	m.plans = exec.NewPlanning(c, m.collation)
	for k, v := range value.Elements(c.Options) {
		switch k {
		case "validator":
			if v.T == value.Document && len(v.Doc()) > 5 && m.err == nil {
				m.validator, m.err = exec.CompileFilter(append([]byte(nil), v.Doc()...), t.exec.Standing(m.collation).Scope, m.collation)
			}
		case "validationLevel":
			m.level = v.Str()
		case "validationAction":
			m.action = v.Str()
		}
	}
	t.byUUID.Store(c.UUID, m)
	return m
}

// forget drops what was compiled for a collection.
func (t *metas) forget(id catalog.UUID) { t.byUUID.Delete(id) }

// prune forgets what was compiled for collections that are gone.
func (t *metas) prune(cat *catalog.Snapshot) {
	t.byUUID.Range(func(id, _ any) bool {
		if cat.LookupUUID(id.(catalog.UUID)) == nil {
			t.byUUID.Delete(id)
		}
		return true
	})
}

// collationOf is the collation an operation runs under: its own, else the collection's.
func (t *metas) collationOf(arg value.Value, c *catalog.Collection) (*collation.Spec, error) {
	if arg.T == value.Document && len(arg.Doc()) > 5 {
		return collation.Parse(arg.Doc())
	}
	if c != nil && c.Collation != nil {
		return t.of(c).collation, nil
	}
	return nil, nil
}

// check runs the validator on a new document. old is what it replaces, nil for inserts: with the moderate level, a
// document that was invalid before may stay so.
func (m *collMeta) check(c *catalog.Collection, doc, old []byte) error {
	if m.err != nil {
		return m.err
	}
	if m.validator == nil || m.level == "off" {
		return nil
	}
	validator := m.validator
	if !validator.Stateless() {
		validator = validator.Fork() // the collection's own is shared by all writers
	}
	ok, err := validator.Match(doc)
	if err != nil || ok {
		return err
	}
	if m.level == "moderate" && old != nil {
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
