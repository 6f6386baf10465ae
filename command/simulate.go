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

// simulated has the data by which a node simulates the credentials of unknown users.
type simulated struct {
	mu struct {
		sync.Mutex
		now     *auth.Simulation // nil before the first login
		stored  bool             // whether its secret is the deployment's
		users   UserState        // for which the shapes were counted
		next    time.Time        // when they may be counted again
		reading chan struct{}    // closed once the read in progress has ended; nil if there is none
	}
}

// UserState identifies a state of the users and roles: the process that counts changes, and the count.
type UserState struct {
	Epoch      [12]byte
	Generation uint64
}

// Any client can cause a count of all users by an attempt to authenticate after a change of the users. Pauses bound the share of time that
// counts take, and replies wait for a count only briefly.
const (
	countPart = 10 // a count is followed by a pause of this many times its duration,
	countRest = 10 * time.Second
	countWait = 100 * time.Millisecond // and a request waits for a pause of up to this duration, so that all nodes of the deployment agree
)

// begin returns the current simulation if it was read for the given state of the users, or may not be read again yet. Otherwise the caller
// has to wait for the read in progress (under) or, if that is nil, for the rest of the pause, then read it itself, and call set.
func (s *simulated) begin(users UserState) (now *auth.Simulation, stored bool, under <-chan struct{}, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.now != nil && s.mu.stored {
		if pause = max(0, time.Until(s.mu.next)); s.mu.users == users || pause > countWait {
			return s.mu.now, true, nil, -1
		}
	}
	if s.mu.reading != nil {
		return nil, false, s.mu.reading, 0
	}
	s.mu.reading = make(chan struct{})
	return s.mu.now, s.mu.stored, nil, pause
}

// set ends a read, which took the given time, and stores its result; nil if it failed.
func (s *simulated) set(now *auth.Simulation, stored bool, users UserState, took time.Duration) *auth.Simulation {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.mu.reading)
	if s.mu.reading = nil; now == nil {
		return nil
	}
	if s.mu.now != nil && !stored {
		now.Secret = s.mu.now.Secret // the node's own secret, until the deployment has one
	}
	s.mu.now, s.mu.stored, s.mu.users, s.mu.next = now, stored, users, time.Now().Add(min(countPart*took, countRest))
	return now
}

// userState returns the state of the users according to the node that stores them; a router learns of changes later.
func (a *Access) userState(ctx context.Context) (UserState, error) {
	if a.Changes != nil {
		return a.Changes(ctx)
	}
	return UserState{Generation: a.generation.Load()}, nil
}

// simulation returns the current simulation. It is called for every authentication, whether the name is known or not, so that
// both take equally long.
func (a *Access) simulation(ctx context.Context) (*auth.Simulation, error) {
	for {
		users, err := a.userState(ctx)
		if err != nil {
			return nil, err
		}
		now, stored, under, pause := a.simulated.begin(users)
		switch {
		case under != nil:
			select {
			case <-under:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		case pause < 0:
			return now, nil
		default:
			return a.simulateAnew(ctx, now, stored, pause)
		}
	}
}

// simulateAnew reads a new simulation after a pause.
func (a *Access) simulateAnew(ctx context.Context, was *auth.Simulation, stored bool, pause time.Duration) (*auth.Simulation, error) {
	time.Sleep(pause)
	begun, next := time.Now(), &auth.Simulation{}
	users, err := a.userState(ctx) // before the users are read, so that concurrent changes cause another read
	if err == nil && stored {
		next.Secret = was.Secret
	} else if err == nil {
		next.Secret, stored, err = a.readSecret(ctx)
	}
	if err == nil {
		next.Shapes, err = a.shapes(ctx)
	}
	if err != nil {
		next = nil
	}
	return a.simulated.set(next, stored, users, time.Since(begun)), err
}

// readSecret reads the deployment's secret, or makes one for the node if no primary has created the deployment's yet.
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
		if len(its) > 0 { // the others are authenticated externally
			out = auth.CountShape(out, its)
		}
	}
	return out, nil
}

// unknown returns the simulated credentials of a user that does not exist: the iterations by mechanism.
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
