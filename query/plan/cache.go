package plan

import (
	"container/list"
	"strings"
	"sync"
	"time"
)

// Signature identifies the choices in a plan: its stages, indexes and directions, not its bounds.
func (n *Node) Signature() string {
	var b strings.Builder
	n.signature(&b)
	return b.String()
}

func (n *Node) signature(b *strings.Builder) {
	b.WriteByte('A' + byte(n.Stage))
	if n.Index != nil {
		b.WriteString(n.Index.Name)
		if n.Direction < 0 {
			b.WriteByte('-')
		}
	}
	if len(n.Inputs) == 0 {
		return
	}
	b.WriteByte('(')
	last := ""
	for _, in := range n.Inputs {
		if n.Stage == SortMerge {
			sig := in.Signature()
			if sig == last {
				continue // their number depends on the values in an $in
			}
			last = sig
		}
		in.signature(b)
	}
	b.WriteByte(')')
}

// Choice is a Cache's entry for a shape.
type Choice struct {
	Signature string
	// Index is the one index of the plan; empty if it has none or several.
	Index string
	// Works is the amount of work that the plan took in its trial: a run that needs many times as much is
	// planned again.
	Works int64
	// Active is false until a second trial confirms the choice.
	Active bool
	// Plan is kept for $planCacheStats.
	Plan *Node
	// Shape and Key identify the entry.
	Shape, Key string
	// Origin is the query of the trial that made the entry, with the trial's results.
	Origin Origin
}

// Origin describes the query and the trial that an entry comes from, for $planCacheStats.
type Origin struct {
	At                                  time.Time
	Filter, Sort, Projection, Collation []byte
	Trials                              []Trial // best first
}

// Trial is the result of one plan in a trial.
type Trial struct {
	Score float64
	Stats []byte // as $planCacheStats shows it
}

// Cache remembers the plans that won trials, for one collection. Its owner makes a new one whenever the set of indexes
// changes.
type Cache struct {
	mu struct {
		sync.Mutex
		entries map[string]*list.Element // of *Choice, by CacheKey
		order   *list.List               // most recently used first
	}
	limit int
}

// NewCache makes a cache of at most limit entries (planCacheSize; 0 stands for 5000).
func NewCache(limit int) *Cache {
	if limit <= 0 {
		limit = 5000
	}
	c := &Cache{limit: limit}
	c.mu.entries, c.mu.order = map[string]*list.Element{}, list.New()
	return c
}

// Get returns the choice for a key, active or not.
func (c *Cache) Get(key string) (Choice, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.mu.entries[key]
	if !ok {
		return Choice{}, false
	}
	c.mu.order.MoveToFront(e)
	return *e.Value.(*Choice), true
}

// Put stores the winner of a trial. A choice becomes active when a second trial takes no more work than the first; after
// a worse one the first remains, inactive, and is allowed growth times as much work next time.
func (c *Cache) Put(key, shape string, winner *Node, works int64, growth float64, from Origin) {
	n := &Choice{Signature: winner.Signature(), Index: onlyIndex(winner), Works: works, Plan: winner, Shape: shape, Key: key, Origin: from}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.mu.entries[key]; ok {
		old := e.Value.(*Choice)
		switch {
		case works <= old.Works:
			n.Active = true
		case old.Active:
			return
		default:
			raised := *old
			raised.Works = max(int64(float64(old.Works)*growth), old.Works+1)
			n = &raised
		}
		e.Value = n
		c.mu.order.MoveToFront(e)
		return
	}
	c.mu.entries[key] = c.mu.order.PushFront(n)
	if c.mu.order.Len() > c.limit {
		last := c.mu.order.Back()
		delete(c.mu.entries, last.Value.(*Choice).Key)
		c.mu.order.Remove(last)
	}
}

// Deactivate makes an entry inactive, because the cached plan took far more work than its trial.
func (c *Cache) Deactivate(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.mu.entries[key]; ok {
		n := *e.Value.(*Choice)
		n.Active = false
		e.Value = &n
	}
}

// Clear drops the entries for which drop returns true, or all if it is nil.
func (c *Cache) Clear(drop func(*Choice) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.mu.entries {
		if drop == nil || drop(e.Value.(*Choice)) {
			delete(c.mu.entries, key)
			c.mu.order.Remove(e)
		}
	}
}

// Entries lists the choices, most recently used first.
func (c *Cache) Entries() []Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Choice
	for e := c.mu.order.Front(); e != nil; e = e.Next() {
		out = append(out, *e.Value.(*Choice))
	}
	return out
}

func onlyIndex(n *Node) string {
	name, many := "", false
	n.Leaves(func(l *Node) {
		switch {
		case l.Index == nil || name != "" && name != l.Index.Name:
			many = true
		default:
			name = l.Index.Name
		}
	})
	if many {
		return ""
	}
	return name
}
