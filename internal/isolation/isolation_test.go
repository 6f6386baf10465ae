package isolation

import (
	"math/rand"
	"strings"
	"testing"
)

// parse reads a history, a transaction a line: "a x1 y2 x=[1 2]" for one that appends 1 to x and 2 to y and reads x; "!" before it for one that
// was aborted, "?" for one of unknown outcome.
func parse(t *testing.T, text string) (history []Txn) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		line = strings.TrimSpace(line)
		x := Txn{ID: len(history) + 1, Outcome: Committed}
		switch {
		case strings.HasPrefix(line, "!"):
			x.Outcome = Aborted
		case strings.HasPrefix(line, "?"):
			x.Outcome = Unknown
		}
		for _, word := range strings.Fields(strings.TrimLeft(line, "!? ")) {
			list, read, isRead := strings.Cut(word, "=")
			o := Op{List: list}
			if isRead {
				for _, d := range read {
					if d >= '1' && d <= '9' {
						o.Read = append(o.Read, int(d-'0'))
					}
				}
			} else {
				o.List, o.Append = word[:1], int(word[1]-'0')
			}
			x.Ops = append(x.Ops, o)
		}
		history = append(history, x)
	}
	return history
}

func TestAnomalies(t *testing.T) {
	for _, c := range []struct{ name, history, final, want string }{
		{"one after the other", "x1\nx=1 x2\nx=12", "x=12", ""},
		{"write skew", "x= y= x1\nx= y= y2", "x=1 y=2", ""},
		{"dirty write", "x1 y2\nx3 y4\nx=13\ny=42", "x=13 y=42", "G0"},
		{"aborted read", "!x1\nx=1", "x=1", "G1a"},
		{"what is aborted stays", "!x1", "x=1", "G1a"},
		{"intermediate read", "x1 x2\nx=1", "x=12", "G1b"},
		{"circular information flow", "x1 y=2\ny2 x=1", "x=1 y=2", "G1c"},
		{"read skew", "x=1 y=\nx1 y2", "x=1 y=2", "G-single"},
		{"lost update", "x= x1\nx= x2\nx=12", "x=12", "G-single"},
		{"long fork", "x1\ny2\nx=1 y=\nx= y=2", "x=1 y=2", "G-nonadjacent"},
		{"its own write unseen", "x1 x=", "x=1", "internal"},
		{"two snapshots", "x1\nx= x=1", "x=1", "internal"},
		{"lost write", "x1\nx2", "x=2", "lost"},
		{"written twice", "x1\nx2", "x=121", "duplicate"},
		{"two orders", "x1\nx2\nx=12\nx=21", "x=12", "fork"},
		{"from nowhere", "x=7", "x=7", "phantom"},
		{"unknown, and seen", "? x1\nx=1", "x=1", ""},
		{"unknown, and not seen", "? x1\nx=", "x=", ""},
		{"unknown, seen by halves", "? x1 y2\nx=1 y=", "x=1 y=2", "G-single"},
	} {
		final := map[string][]int{}
		for _, o := range parse(t, c.final)[0].Ops {
			final[o.List] = o.Read
		}
		var kinds []string
		for _, a := range Check(parse(t, c.history), final) {
			if len(kinds) == 0 || kinds[len(kinds)-1] != a.Kind {
				kinds = append(kinds, a.Kind)
			}
		}
		if len(kinds) == 0 && c.want != "" || len(kinds) > 0 && kinds[0] != c.want {
			t.Errorf("%s: %v, want %q", c.name, kinds, c.want)
		}
	}
}

// snapshots is a store with snapshot isolation, or with less: broken makes it skip the check for write conflicts.
type snapshots struct {
	lists   map[string][]int
	version map[string]int
	broken  bool
}

// run executes n transactions that overlap at random.
func (s *snapshots) run(rnd *rand.Rand, n int) (history []Txn) {
	type open struct {
		txn  *Txn
		view map[string][]int
		at   map[string]int
		left int
	}
	var running []*open
	number := 0
	for len(history) < n || len(running) > 0 {
		if len(running) < 5 && len(history) < n {
			history = append(history, Txn{ID: len(history) + 1})
			o := &open{view: map[string][]int{}, at: map[string]int{}, left: 1 + rnd.Intn(4)}
			for k, l := range s.lists {
				o.view[k] = append([]int(nil), l...)
			}
			for k, v := range s.version {
				o.at[k] = v
			}
			o.txn = &Txn{ID: len(history)}
			running = append(running, o)
		}
		i := rnd.Intn(len(running))
		o := running[i]
		list := string(rune('a' + rnd.Intn(4)))
		if o.left > 0 {
			o.left--
			if rnd.Intn(2) == 0 {
				number++
				o.view[list] = append(o.view[list], number)
				o.txn.Ops = append(o.txn.Ops, Op{List: list, Append: number})
			} else {
				o.txn.Ops = append(o.txn.Ops, Op{List: list, Read: append([]int(nil), o.view[list]...)})
			}
			continue
		}
		o.txn.Outcome = s.commit(o.txn, o.at)
		if o.txn.Outcome == Committed && rnd.Intn(10) == 0 {
			o.txn.Outcome = Unknown
		}
		history[o.txn.ID-1] = *o.txn
		running = append(running[:i], running[i+1:]...)
	}
	return history
}

func (s *snapshots) commit(t *Txn, at map[string]int) Outcome {
	for _, o := range t.Ops {
		if o.Append != 0 && s.version[o.List] != at[o.List] && !s.broken {
			return Aborted
		}
	}
	for _, o := range t.Ops {
		if o.Append != 0 {
			s.lists[o.List] = append(s.lists[o.List], o.Append)
			s.version[o.List]++
		}
	}
	return Committed
}

// No history of a store with snapshot isolation is reported; of several of a store without it, some are.
func TestSnapshotStore(t *testing.T) {
	for _, broken := range []bool{false, true} {
		reported := 0
		for seed := range int64(50) {
			s := &snapshots{lists: map[string][]int{}, version: map[string]int{}, broken: broken}
			found := Check(s.run(rand.New(rand.NewSource(seed)), 200), s.lists)
			if len(found) > 0 {
				reported++
				if !broken {
					t.Fatalf("seed %d: %v", seed, found[0])
				}
			}
		}
		if broken && reported < 50 {
			t.Errorf("%d of 50 histories without snapshot isolation reported", reported)
		}
	}
}
