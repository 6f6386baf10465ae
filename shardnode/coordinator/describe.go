package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/lock"
)

// CurrentOps describes the runs as currentOp does, and operations that wait for their locks before they become runs.
func (m *Coordinators) CurrentOps(time.Time) (out [][]value.Field) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.mu.runs {
		out = append(out, m.describe(r, r.locks, r.at))
	}
	for _, r := range m.mu.asked {
		var own *held
		for h := range m.mu.held {
			if h.op == r.doc.op {
				own = h
			}
		}
		out = append(out, m.describe(r, own, ""))
	}
	return out
}

// describe describes a run, or an operation that is none yet and is in no phase. m.mu must be held.
func (m *Coordinators) describe(r *run, own *held, phase string) []value.Field {
	f := []value.Field{
		value.F("type", value.NewString("op")), value.F("desc", value.NewString("ShardingDDLCoordinator")), value.F("op", value.NewString("command")),
		value.F("ns", value.NewString(r.doc.ns)), value.F("command", value.NewDocument(r.doc.command)),
	}
	if phase != "" {
		f = append(f, value.F("currentPhase", value.NewString(phase)))
	}
	locks, wanted := value.Doc(), namesOf(r.doc.op) // before it asks for locks, it waits for those that have them (lockFor)
	if own != nil {
		locks, wanted = command.LocksHeld(own.Locker), own.pending()
	}
	msg := ""
	for _, n := range wanted {
		if by := m.inFrontOf(n, own); len(by) > 0 && msg == "" {
			msg = "waiting for the DDL lock of '" + n.res.Name + "' in mode " + n.mode.String() + " behind " + strings.Join(by, ", ")
		}
	}
	if msg != "" {
		f = append(f, value.F("msg", value.NewString(msg)))
	}
	return append(f, value.F("active", value.NewBool(true)), value.F("locks", value.NewDocument(locks)), value.F("waitingForLock", value.NewBool(msg != "")))
}

// pending returns the lock that an operation waits for, in a list; none if it does not wait.
func (h *held) pending() []lockedName {
	if _, waits := h.Summary(); waits && h.next != nil {
		return []lockedName{*h.next}
	}
	return nil
}

// inFrontOf lists the operations whose locks exclude one or, if none do, those that wait for such a lock. m.mu must be held.
func (m *Coordinators) inFrontOf(n lockedName, own *held) []string {
	var with, before []string
	for h := range m.mu.held {
		switch {
		case h == own:
		case conflict([]lockedName{n}, h.list):
			with = append(with, h.reason)
		case own != nil && conflict([]lockedName{n}, h.pending()):
			before = append(before, h.reason)
		}
	}
	if len(with) == 0 {
		with = before
	}
	slices.Sort(with)
	return slices.Compact(with)
}

// LockInfo describes the DDL locks that are held or waited for, in the form of lockInfo: by resource.
func (m *Coordinators) LockInfo() (out []value.Value) {
	type requests struct{ granted, pending []value.Value }
	all := map[lock.Resource]*requests{}
	at := func(n lockedName) *requests {
		if all[n.res] == nil {
			all[n.res] = &requests{}
		}
		return all[n.res]
	}
	shown := func(h *held, n lockedName) value.Value {
		return value.NewDocument(value.Doc(value.F("mode", value.NewString(n.mode.String())), value.F("convertMode", value.NewString("NONE")),
			value.F("enqueueAtFront", value.NewBool(false)), value.F("compatibleFirst", value.NewBool(false)), value.F("desc", value.NewString(h.reason))))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range m.mu.held {
		for _, n := range h.list {
			at(n).granted = append(at(n).granted, shown(h, n))
		}
		for _, n := range h.pending() {
			at(n).pending = append(at(n).pending, shown(h, n))
		}
	}
	order := slices.SortedFunc(maps.Keys(all), func(a, b lock.Resource) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	for _, res := range order {
		r := all[res]
		out = append(out, value.NewDocument(value.Doc(
			value.F("resourceId", value.NewString("{"+res.Kind.String()+", "+res.Name+"}")),
			value.F("granted", value.NewArray(value.ArrayOf(r.granted...))),
			value.F("pending", value.NewArray(value.ArrayOf(r.pending...))))))
	}
	return out
}
