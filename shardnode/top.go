package shardnode

import (
	"sort"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
)

// The events that top counts for a namespace, in addition to total reads and writes.
const (
	topQueries = iota
	topGetmore
	topInsert
	topUpdate
	topRemove
	topCommands
	topEvents
)

var topNames = [topEvents]string{"queries", "getmore", "insert", "update", "remove", "commands"}

// topCounters are the operations on one namespace by event.
type topCounters struct {
	event       [topEvents]topEvent
	read, write topEvent
}

type topEvent struct{ micros, count atomic.Int64 }

func (e *topEvent) add(us int64) {
	e.micros.Add(us)
	e.count.Add(1)
}

func (e *topEvent) load() (micros, count int64) { return e.micros.Load(), e.count.Load() }

// topEventOf returns the event under which top counts a command.
func topEventOf(name string) int {
	switch name {
	case "find":
		return topQueries
	case "getMore":
		return topGetmore
	case "insert":
		return topInsert
	case "update":
		return topUpdate
	case "delete":
		return topRemove
	}
	return topCommands
}

// note counts an operation that has ended. A time below the clock's resolution counts as one microsecond.
func (t *topCounters) note(op *command.Op, d time.Duration) {
	us := max(d.Microseconds(), 1)
	t.event[topEventOf(op.Req.Spec.Name)].add(us)
	if k := op.Req.Spec.Kind; k == command.Write || k == command.DDL {
		t.write.add(us)
	} else {
		t.read.add(us)
	}
}

func (n *Node) topSpecs() []command.Spec {
	top := command.AdminOnly("top", n.runTop)
	top.Lenient = true
	return []command.Spec{top}
}

// runTop reports the use of every namespace that exists.
func (n *Node) runTop(op *command.Op, dst []byte) ([]byte, error) {
	dst, m := value.BeginKey(dst, value.Document, "totals")
	dst = value.Append(dst, "note", value.NewString("all times in microseconds"))
	s := n.Engine.Snapshot()
	defer s.Release()
	names := map[string]bool{}
	for _, c := range s.Catalog().All() {
		names[c.NS] = true
	}
	n.latency.byNS.Range(func(k, _ any) bool {
		ns := k.(string)
		if !names[ns] {
			if v, err := namespace.ViewIn(s, ns); err == nil && v != nil {
				names[ns] = true
			}
		}
		return true
	})
	sorted := make([]string, 0, len(names))
	for ns := range names {
		sorted = append(sorted, ns)
	}
	sort.Strings(sorted)
	none := &topCounters{}
	for _, ns := range sorted {
		t := none
		if v, ok := n.latency.byNS.Load(ns); ok {
			t = &v.(*nsLatency).top
		}
		dst = value.Append(dst, ns, value.NewDocument(t.doc()))
	}
	return value.End(dst, m), nil
}

func (t *topCounters) doc() []byte {
	out, m := value.Begin(nil)
	one := func(name string, us, count int64) {
		out = value.Append(out, name, value.NewDocument(value.Doc(value.F("time", value.NewInt64(us)), value.F("count", value.NewInt64(count)))))
	}
	ru, rc := t.read.load()
	wu, wc := t.write.load()
	one("total", ru+wu, rc+wc)
	one("readLock", ru, rc)
	one("writeLock", wu, wc)
	for i := range t.event {
		us, count := t.event[i].load()
		one(topNames[i], us, count)
	}
	return value.End(out, m)
}
