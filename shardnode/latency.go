package shardnode

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
)

// latencyTable counts operations and their time by namespace, for $collStats and top. It keeps only names of collections
// and views: clients may use any number of other names.
type latencyTable struct {
	byNS    sync.Map     // string → *nsLatency
	size    atomic.Int64 // approximate number of names
	sweepAt atomic.Int64 // number of names that triggers a sweep for dropped ones
}

// leastSwept is the number of names below which a sweep is not worth its cost.
const leastSwept = 1000

// nsLatency counts the operations on one namespace.
type nsLatency struct {
	reads, writes, commands latencies
	top                     topCounters
}

// latencies is a histogram with one bucket for each power of two of microseconds.
type latencies struct {
	ops, micros atomic.Int64
	buckets     [40]atomic.Int64
}

func (l *latencies) add(d time.Duration) {
	us := d.Microseconds()
	l.ops.Add(1)
	l.micros.Add(us)
	l.buckets[min(bits.Len64(uint64(us)), len(l.buckets)-1)].Add(1)
}

// note counts an operation that ended.
func (t *latencyTable) note(n *Node, op *command.Op) {
	ns := op.Stats.NS
	if ns == "" || op.Req.Spec == nil {
		return
	}
	v, ok := t.byNS.Load(ns)
	if !ok {
		if !namespaceExists(n, ns) {
			return
		}
		if v, ok = t.byNS.LoadOrStore(ns, &nsLatency{}); !ok && t.size.Add(1) >= max(t.sweepAt.Load(), leastSwept) {
			t.sweep(n)
		}
	}
	l, d := v.(*nsLatency), op.Worked()
	l.top.note(op, d)
	switch op.Req.Spec.Kind {
	case command.Read:
		l.reads.add(d)
	case command.Write:
		l.writes.add(d)
	default:
		l.commands.add(d)
	}
}

// namespaceExists reports whether a node has a collection or view of a name.
func namespaceExists(n *Node, ns string) bool {
	cat := n.Engine.Catalog()
	if cat.Lookup(ns) != nil {
		return true
	}
	v, err := namespace.ViewAt(n.Engine, cat, ns)
	return err == nil && v != nil
}

// sweep drops the counts of namespaces that no longer exist: an operation may end after its namespace was dropped.
func (t *latencyTable) sweep(n *Node) {
	left := int64(0)
	t.byNS.Range(func(ns, _ any) bool {
		if namespaceExists(n, ns.(string)) {
			left++
		} else {
			t.byNS.Delete(ns)
		}
		return true
	})
	t.size.Store(left)
	t.sweepAt.Store(2 * left)
}

// forget drops a namespace's counts.
func (t *latencyTable) forget(ns string) {
	if _, ok := t.byNS.LoadAndDelete(ns); ok {
		t.size.Add(-1)
	}
}

// appendTo writes a namespace's counts as $collStats shows them.
func (t *latencyTable) appendTo(dst []byte, ns string, histograms bool) []byte {
	l := &nsLatency{}
	if v, ok := t.byNS.Load(ns); ok {
		l = v.(*nsLatency)
	}
	dst, m := value.BeginKey(dst, value.Document, "latencyStats")
	for _, k := range []struct {
		name string
		l    *latencies
	}{{"reads", &l.reads}, {"writes", &l.writes}, {"commands", &l.commands}, {"transactions", &latencies{}}} {
		dst = k.l.appendTo(dst, k.name, histograms)
	}
	return value.End(dst, m)
}

func (l *latencies) appendTo(dst []byte, name string, histogram bool) []byte {
	dst, m := value.BeginKey(dst, value.Document, name)
	if histogram {
		var hm int
		dst, hm = value.BeginKey(dst, value.Array, "histogram")
		i := 0
		for b := range l.buckets {
			n := l.buckets[b].Load()
			if n == 0 {
				continue
			}
			low := int64(0)
			if b > 0 {
				low = 1 << (b - 1)
			}
			dst = value.AppendIndex(dst, i, value.NewDocument(value.Doc(value.F("micros", value.NewInt64(low)), value.F("count", value.NewInt64(n)))))
			i++
		}
		dst = value.End(dst, hm)
	}
	dst = value.Append(dst, "latency", value.NewInt64(l.micros.Load()))
	dst = value.Append(dst, "ops", value.NewInt64(l.ops.Load()))
	dst = value.Append(dst, "queryableEncryptionLatencyMicros", value.NewInt64(0))
	return value.End(dst, m)
}
