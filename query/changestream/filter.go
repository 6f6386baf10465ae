package changestream

import "strings"

// Filter determines which events a stream returns: those of a collection, of a database (Coll is empty), or all (both are
// empty).
type Filter struct {
	DB, Coll   string
	Expanded   bool // showExpandedEvents
	System     bool // showSystemEvents
	Migrations bool // showMigrationEvents
}

// Passes reports whether the stream includes an event.
func (f *Filter) Passes(e *Event) bool {
	if e.FromMigrate && !f.Migrations || e.expanded && !f.Expanded || e.system && !f.System {
		return false
	}
	switch {
	case f.DB == "":
		return e.DB != "admin" && e.DB != "local" && e.DB != "config" && f.shows(e)
	case e.Type == "rename" && f.Coll != "":
		return f.is(e.DB, e.Coll) || f.is(e.ToDB, e.ToColl)
	case e.DB != f.DB:
		return e.Type == "rename" && e.ToDB == f.DB && f.shows(e)
	case f.Coll == "" || e.Type == "dropDatabase":
		return f.shows(e)
	}
	return e.Coll == f.Coll
}

func (f *Filter) is(db, coll string) bool { return db == f.DB && coll == f.Coll }

// shows reports whether a stream on more than one collection has events of that one.
func (f *Filter) shows(e *Event) bool {
	return f.System || !strings.HasPrefix(e.Coll, "system.")
}

// Invalidates reports whether an event that passes ends the stream, because what it watches no longer exists.
func (f *Filter) Invalidates(e *Event) bool {
	switch e.Type {
	case "drop", "rename":
		return f.Coll != "" && !e.view()
	case "dropDatabase":
		return f.DB != ""
	}
	return false
}

// view reports whether the event is of a view's definition.
func (e *Event) view() bool { return strings.HasSuffix(e.op.NS, ".system.views") }
