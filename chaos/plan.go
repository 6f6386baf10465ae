package chaos

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of a step.
type Kind string

// The kinds of steps.
const (
	Split    Kind = "split"    // a chunk in the middle
	Move     Kind = "move"     // a chunk to another shard
	Merge    Kind = "merge"    // a chunk with its neighbour on the same shard
	StepDown Kind = "stepDown" // a shard's primary
	// MoveCollection and MovePrimary move unsharded data: one collection, or a database's primary shard with all of its unsharded
	// collections.
	MoveCollection Kind = "moveCollection"
	MovePrimary    Kind = "movePrimary"

	Delay    Kind = "delay"    // the next commands of clients wait
	Cut      Kind = "cut"      // connections break before a command is run
	CutAfter Kind = "cutAfter" // connections break after a command is run, before its reply
)

// share is the relative frequency with which a profile draws a kind.
type share struct {
	kind  Kind
	count int
}

// Profile is a mixture of kinds of steps.
type Profile struct {
	Name   string
	Pace   time.Duration
	shares []share
}

var (
	ranges    = []share{{Split, 3}, {Move, 5}, {Merge, 2}}
	elections = []share{{StepDown, 1}}
	placement = []share{{MoveCollection, 3}, {MovePrimary, 1}}
	network   = []share{{Delay, 2}, {Cut, 1}, {CutAfter, 1}}
)

// Profiles lists all profiles.
var Profiles = []Profile{
	// chunks are split, merged and moved; clients' routers are not informed
	{"ranges", 300 * time.Millisecond, ranges},
	// unsharded collections and databases' primary shards move to other shards
	{"placement", 2 * time.Second, placement},
	// primaries of shards step down
	{"elections", 5 * time.Second, elections},
	// commands are delayed, connections break before a command or after it
	{"network", 500 * time.Millisecond, network},
	// everything but placement
	{"all", 500 * time.Millisecond, slices.Concat(
		[]share{{Split, 6}, {Move, 10}, {Merge, 4}, {StepDown, 2}}, []share{{Delay, 8}, {Cut, 4}, {CutAfter, 4}})},
}

// FindProfile returns a profile by name.
func FindProfile(name string) (Profile, bool) {
	i := slices.IndexFunc(Profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return Profiles[i], true
}

// ProfileNames returns the names of all profiles, for messages.
func ProfileNames() string {
	var names []string
	for _, p := range Profiles {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// draw is a step as drawn from a plan: its time, its kind, and random numbers that choose its target among the chunks
// and shards that exist when it runs.
type draw struct {
	gap   time.Duration // since the step before
	kind  Kind
	picks [4]uint64
}

// pick returns a number in [0, n), for n > 0.
func (d *draw) pick(i, n int) int { return int(d.picks[i] % uint64(n)) }

// Plan draws steps. Two plans with the same seed, profile and pace draw the same steps.
type Plan struct {
	Profile Profile
	Seed    uint64
	Pace    time.Duration // the mean time from one step to the next

	source *rand.Rand
	total  int
}

// NewPlan returns a plan. A pace of 0 stands for the profile's own.
func NewPlan(p Profile, seed uint64, pace time.Duration) *Plan {
	if pace <= 0 {
		pace = p.Pace
	}
	plan := &Plan{Profile: p, Seed: seed, Pace: pace, source: rand.New(rand.NewPCG(seed, 0))}
	for _, s := range p.shares {
		plan.total += s.count
	}
	return plan
}

// next draws a step. Every step consumes the same number of random numbers, whatever its kind.
func (p *Plan) next() (d draw) {
	d.gap = time.Duration(float64(p.Pace) * (0.5 + p.source.Float64()))
	n := p.source.IntN(p.total)
	for _, s := range p.Profile.shares {
		if n < s.count {
			d.kind = s.kind
			break
		}
		n -= s.count
	}
	for i := range d.picks {
		d.picks[i] = p.source.Uint64()
	}
	return d
}
