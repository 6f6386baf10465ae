package command

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
)

// simulated is what a node knows of how unknown users have to look.
type simulated struct {
	mu struct {
		sync.Mutex
		now        *auth.Simulation // nil before the first login
		stored     bool             // whether its secret is the deployment's
		generation uint64           // of the users that its shapes were counted of
		counted    time.Time
		counting   bool
	}
}

// recount is the least time between two counts of all users, which anybody who tries to log in can cause.
const recount = 10 * time.Second

// due returns what is known, and whether the caller has to read it again.
func (s *simulated) due(generation uint64) (now *auth.Simulation, stored, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.mu.stored && (s.mu.generation == generation || time.Since(s.mu.counted) < recount)
	if s.mu.now != nil && (fresh || s.mu.counting) {
		return s.mu.now, s.mu.stored, false
	}
	s.mu.counting = true
	return s.mu.now, s.mu.stored, true
}

// set stores what has been read; nil if that failed.
func (s *simulated) set(now *auth.Simulation, stored bool, generation uint64) *auth.Simulation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.counting = false; now == nil {
		return s.mu.now
	}
	if s.mu.now != nil && !stored {
		now.Secret = s.mu.now.Secret // until the deployment has one, the node's own
	}
	s.mu.now, s.mu.stored, s.mu.generation, s.mu.counted = now, stored, generation, time.Now()
	return now
}

// simulation returns how unknown users look now. Whoever logs in calls it, under a known name or not, so that both wait as long.
func (a *Access) simulation(ctx context.Context) (*auth.Simulation, error) {
	generation := a.generation.Load()
	now, stored, due := a.simulated.due(generation)
	if !due {
		return now, nil
	}
	next, err := &auth.Simulation{}, error(nil)
	if stored {
		next.Secret = now.Secret
	} else if next.Secret, stored, err = a.readSecret(ctx); err != nil {
		a.simulated.set(nil, false, 0)
		return nil, err
	}
	if next.Shapes, err = a.shapes(ctx); err != nil {
		a.simulated.set(nil, false, 0)
		return nil, err
	}
	return a.simulated.set(next, stored, generation), nil
}

// readSecret reads the deployment's secret, or makes one for the node as long as no primary has made that.
func (a *Access) readSecret(ctx context.Context) (secret []byte, stored bool, err error) {
	docs, err := a.find(ctx, "system.keys", value.Doc(value.F("purpose", value.NewString(auth.SimulationPurpose))))
	if err != nil {
		return nil, false, err
	}
	for _, d := range docs {
		if secret = auth.ParseSimulationSecret(d); secret != nil {
			return secret, true, nil
		}
	}
	secret = make([]byte, 32)
	rand.Read(secret)
	return secret, false, nil
}

// shapes counts the users by the shape of their credentials.
func (a *Access) shapes(ctx context.Context) ([]auth.Shape, error) {
	var only []value.Field
	for _, m := range auth.Mechanisms {
		only = append(only, value.F("credentials."+m+".iterationCount", value.NewInt32(1)))
	}
	docs, err := a.findOnly(ctx, "system.users", value.Doc(), value.Doc(only...))
	if err != nil {
		return nil, err
	}
	var out []auth.Shape
	for _, d := range docs {
		its := map[string]int{}
		for mech, c := range value.Elements(value.Lookup(d, "credentials").Doc()) {
			if n, ok := value.Lookup(c.Doc(), "iterationCount").AsInt64(); ok && c.T == value.Document && slices.Contains(auth.Mechanisms, mech) {
				its[mech] = int(n)
			}
		}
		if len(its) > 0 { // others are authenticated externally
			out = auth.CountShape(out, its)
		}
	}
	return out, nil
}

// unknown returns what a user who does not exist seems to have: the iterations by mechanism.
func (a *Access) unknown(sim *auth.Simulation, name auth.UserName) map[string]int {
	if shape, ok := sim.Shape(name); ok {
		return shape.Iterations
	}
	its := map[string]int{}
	for _, m := range auth.Mechanisms {
		if a.enabled(m) {
			its[m] = a.iterations(m)
		}
	}
	return its
}
