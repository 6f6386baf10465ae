package isolation

import (
	"fmt"
	"slices"
	"sort"
)

// Outcome is a client's information about the end of a transaction.
type Outcome uint8

// The outcomes. A transaction with an unknown outcome was committed if another transaction saw what it wrote.
const (
	Aborted Outcome = iota
	Committed
	Unknown
)

// Op is an append to a list, or the read of one.
type Op struct {
	List   string
	Append int   // the number; 0 for a read
	Read   []int // the content of the list
}

// Txn is a transaction as its client saw it.
type Txn struct {
	ID      int
	Ops     []Op
	Outcome Outcome
}

// Anomaly is something that snapshot isolation excludes.
type Anomaly struct {
	Kind string // G0, G1a, G1b, G1c, G-single, G-nonadjacent, internal, fork, duplicate, lost, phantom
	What string
}

func (a Anomaly) String() string { return a.Kind + ": " + a.What }

// Check returns the anomalies of a history. final is the content of the lists at the end, when no transaction is running.
func Check(history []Txn, final map[string][]int) []Anomaly {
	c := &checker{txns: history, final: final, writer: map[cell]int{}, order: map[string][]int{}}
	c.appends()
	c.orders()
	for i := range c.txns {
		c.reads(i)
	}
	c.lost()
	if len(c.found) == 0 { // edges mean nothing if the lists themselves contradict each other
		c.cycles()
	}
	return c.found
}

// cell is one number of a list.
type cell struct {
	list   string
	number int
}

type checker struct {
	txns   []Txn
	final  map[string][]int
	writer map[cell]int     // index of the transaction that appended a number
	order  map[string][]int // the longest reading of each list
	edges  [][]edge
	found  []Anomaly
}

type edge struct {
	to   int
	kind string
}

func (c *checker) report(kind, format string, args ...any) {
	c.found = append(c.found, Anomaly{kind, fmt.Sprintf(format, args...)})
}

// appends records which transaction wrote which number.
func (c *checker) appends() {
	for i, t := range c.txns {
		for _, o := range t.Ops {
			if o.Append != 0 {
				c.writer[cell{o.List, o.Append}] = i
			}
		}
	}
}

// orders finds each list's order: all reads of a list must be prefixes of one another.
func (c *checker) orders() {
	take := func(list string, read []int, who string) {
		have := c.order[list]
		short, long := read, have
		if len(short) > len(long) {
			short, long = long, short
		}
		if !slices.Equal(short, long[:len(short)]) {
			c.report("fork", "%s reads %s as %v, which was %v elsewhere", who, list, read, have)
			return
		}
		c.order[list] = long
	}
	for list, read := range c.final {
		take(list, read, "the end")
	}
	for _, t := range c.txns {
		if t.Outcome == Aborted {
			continue
		}
		own := map[string]int{}
		for _, o := range t.Ops {
			if o.Append != 0 {
				own[o.List]++
			} else if own[o.List] == 0 { // other transactions see what comes after its own appends only if it commits
				take(o.List, o.Read, fmt.Sprintf("transaction %d", t.ID))
			}
		}
	}
	for list, order := range c.order {
		seen := map[int]bool{}
		for _, n := range order {
			if seen[n] {
				c.report("duplicate", "%d occurs twice in %s: %v", n, list, order)
			}
			seen[n] = true
		}
	}
}

// reads checks the reads of one transaction by themselves.
func (c *checker) reads(i int) {
	t := c.txns[i]
	if t.Outcome == Aborted {
		return
	}
	view := map[string][]int{} // what it has seen of a list so far, including its own appends
	known := map[string]bool{}
	for _, o := range t.Ops {
		if o.Append != 0 {
			view[o.List] = append(slices.Clone(view[o.List]), o.Append)
			continue
		}
		want := view[o.List]
		switch {
		case known[o.List] && !slices.Equal(want, o.Read):
			c.report("internal", "transaction %d reads %s as %v, and has seen %v", t.ID, o.List, o.Read, want)
		case !known[o.List] && (len(o.Read) < len(want) || !slices.Equal(o.Read[len(o.Read)-len(want):], want)):
			c.report("internal", "transaction %d reads %s as %v without its own %v", t.ID, o.List, o.Read, want)
		}
		if !known[o.List] {
			c.others(i, o.List, o.Read[:max(0, len(o.Read)-len(want))])
		}
		view[o.List], known[o.List] = slices.Clone(o.Read), true
	}
}

// others checks what transaction i saw of other transactions in a list.
func (c *checker) others(i int, list string, read []int) {
	for _, n := range read {
		w, ok := c.writer[cell{list, n}]
		switch {
		case !ok:
			c.report("phantom", "transaction %d reads %d in %s, which nobody wrote", c.txns[i].ID, n, list)
		case c.txns[w].Outcome == Aborted:
			c.report("G1a", "transaction %d reads %d in %s, which the aborted transaction %d wrote", c.txns[i].ID, n, list, c.txns[w].ID)
		case c.txns[w].Outcome == Unknown:
			c.txns[w].Outcome = Committed
		}
	}
	if len(read) == 0 {
		return
	}
	last := read[len(read)-1]
	if w := c.writer[cell{list, last}]; w != i && c.lastAppend(w, list) != last {
		c.report("G1b", "transaction %d reads %s up to %d, from the middle of transaction %d", c.txns[i].ID, list, last, c.txns[w].ID)
	}
}

func (c *checker) lastAppend(i int, list string) (n int) {
	for _, o := range c.txns[i].Ops {
		if o.List == list && o.Append != 0 {
			n = o.Append
		}
	}
	return n
}

// lost checks that all committed numbers are there in the end, and no aborted ones.
func (c *checker) lost() {
	there := map[cell]bool{}
	for list, read := range c.final {
		for _, n := range read {
			there[cell{list, n}] = true
			if w, ok := c.writer[cell{list, n}]; ok {
				switch c.txns[w].Outcome {
				case Aborted:
					c.report("G1a", "%s has %d in the end, which the aborted transaction %d wrote", list, n, c.txns[w].ID)
				case Unknown:
					c.txns[w].Outcome = Committed
				}
			} else {
				c.report("phantom", "%s has %d in the end, which nobody wrote", list, n)
			}
		}
	}
	for _, t := range c.txns {
		for _, o := range t.Ops {
			if o.Append != 0 && t.Outcome == Committed && !there[cell{o.List, o.Append}] {
				c.report("lost", "%d of transaction %d is not in %s in the end", o.Append, t.ID, o.List)
			}
		}
	}
}

// cycles reports cycles of dependencies that snapshot isolation excludes.
func (c *checker) cycles() {
	c.depend()
	plain := func(e edge) bool { return e.kind != "rw" }
	for _, k := range []struct {
		kind string
		keep func(e edge) bool
	}{{"G0", func(e edge) bool { return e.kind == "ww" }}, {"G1c", plain}} {
		if cycle := findCycle(len(c.txns), func(v int, visit func(int)) {
			for _, e := range c.edges[v] {
				if k.keep(e) {
					visit(e.to)
				}
			}
		}); cycle != nil {
			c.report(k.kind, "%s", c.describe(cycle, 1))
			return
		}
	}
	// A node is a transaction and whether it was reached by an rw edge: no rw edge follows another.
	cycle := findCycle(2*len(c.txns), func(v int, visit func(int)) {
		for _, e := range c.edges[v/2] {
			if plain(e) {
				visit(2 * e.to)
			} else if v%2 == 0 {
				visit(2*e.to + 1)
			}
		}
	})
	if cycle == nil {
		return
	}
	kind, rw := "G-single", 0
	for _, v := range cycle {
		rw += v % 2
	}
	if rw > 1 {
		kind = "G-nonadjacent"
	}
	c.report(kind, "%s", c.describe(cycle, 2))
}

// depend makes the edges of the graph.
func (c *checker) depend() {
	c.edges = make([][]edge, len(c.txns))
	add := func(from, to int, kind string) {
		if from != to && !slices.Contains(c.edges[from], edge{to, kind}) {
			c.edges[from] = append(c.edges[from], edge{to, kind})
		}
	}
	place := map[cell]int{}
	for list, order := range c.order {
		for i, n := range order {
			place[cell{list, n}] = i
			if i > 0 {
				add(c.writer[cell{list, order[i-1]}], c.writer[cell{list, n}], "ww")
			}
		}
	}
	for i, t := range c.txns {
		if t.Outcome != Committed {
			continue
		}
		wrote := map[string]bool{}
		for _, o := range t.Ops {
			if o.Append != 0 {
				wrote[o.List] = true
			}
			if o.Append != 0 || wrote[o.List] {
				continue // after its own appends, ww edges express the same
			}
			next := 0
			if len(o.Read) > 0 {
				last := cell{o.List, o.Read[len(o.Read)-1]}
				add(c.writer[last], i, "wr")
				next = place[last] + 1
			}
			if order := c.order[o.List]; next < len(order) {
				add(i, c.writer[cell{o.List, order[next]}], "rw")
			}
		}
	}
}

// describe formats a cycle; per is the number of nodes per transaction.
func (c *checker) describe(cycle []int, per int) string {
	out := ""
	for i, v := range cycle {
		next := cycle[(i+1)%len(cycle)]
		var kinds []string
		for _, e := range c.edges[v/per] {
			if e.to == next/per && (per == 1 || (e.kind == "rw") == (next%2 == 1)) {
				kinds = append(kinds, e.kind)
			}
		}
		sort.Strings(kinds)
		out += fmt.Sprintf("%d -%v-> ", c.txns[v/per].ID, kinds)
	}
	return out + fmt.Sprint(c.txns[cycle[0]/per].ID)
}

// findCycle returns the nodes of a cycle of a graph of n nodes, nil if there is none. The search is depth first,
// with a stack of its own: a path may be as long as the history.
func findCycle(n int, each func(v int, visit func(int))) []int {
	const fresh, onPath, done = 0, 1, 2
	state := make([]uint8, n)
	type frame struct {
		v    int
		next []int
	}
	for root := range n {
		if state[root] != fresh {
			continue
		}
		var path []frame
		push := func(v int) {
			state[v] = onPath
			f := frame{v: v}
			each(v, func(to int) { f.next = append(f.next, to) })
			path = append(path, f)
		}
		for push(root); len(path) > 0; {
			f := &path[len(path)-1]
			if len(f.next) == 0 {
				state[f.v] = done
				path = path[:len(path)-1]
				continue
			}
			to := f.next[0]
			f.next = f.next[1:]
			switch state[to] {
			case fresh:
				push(to)
			case onPath:
				var cycle []int
				for i := len(path) - 1; ; i-- {
					cycle = append(cycle, path[i].v)
					if path[i].v == to {
						slices.Reverse(cycle)
						return cycle
					}
				}
			}
		}
	}
	return nil
}
