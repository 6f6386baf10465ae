package sdam

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Network reaches members by address.
type Network interface {
	// Call sends a request to a member and appends its reply to dst. With an error, sent means that the member may
	// have run the request although no reply came.
	Call(ctx context.Context, host string, m *wire.Message, dst []byte) (out []byte, sent bool, err error)
	// Watch opens a connection to a member for its monitor alone.
	Watch(ctx context.Context, host string) (Watch, error)
	// Local reports whether a member is in this process.
	Local(host string) bool
	// Sever closes all connections to a member that is considered lost; Drop closes those that are not in use.
	Sever(host string)
	Drop(host string)
	// Connections counts the open connections.
	Connections() []wire.HostStats
}

var (
	errDemoted = mongoerr.New(mongoerr.NotWritablePrimary, "a newer election made another member primary")
	errClosed  = mongoerr.New(mongoerr.ReplicaSetMonitorRemoved, "replica set is no longer monitored")
)

func errOtherSet(host, is, want string) error {
	return mongoerr.Newf(mongoerr.InconsistentReplicaSetNames, "%s is a member of the replica set %s, not of %s", host, is, want)
}

// Set is one monitored replica set, and the way to call it.
type Set struct {
	name  string
	net   Network
	times *atomic.Pointer[Timing]
	topo  atomic.Pointer[Topology]
	// moved is called from a member's goroutine when the membership changes.
	moved func(set, conn string, version int64)

	retired sync.WaitGroup  // the goroutines that drain removed members
	closing context.Context // ends with the monitoring
	end     context.CancelFunc

	mu struct {
		sync.Mutex
		members map[string]*member
		changed chan struct{} // closed with each new topology
		closed  bool
	}
}

func newSet(name string, seeds []string, net Network, times *atomic.Pointer[Timing], moved func(set, conn string, version int64)) *Set {
	s := &Set{name: name, net: net, times: times, moved: moved}
	s.closing, s.end = context.WithCancel(context.Background())
	s.mu.members = make(map[string]*member)
	s.mu.changed = make(chan struct{})
	t := &Topology{Set: name}
	for _, h := range seeds {
		t.add(h)
	}
	s.mu.Lock()
	s.publish(t)
	s.mu.Unlock()
	return s
}

func (s *Set) timing() *Timing { return s.times.Load() }

// publish makes t the current topology, starts monitoring new members and stops monitoring removed ones. mu must
// be held.
func (s *Set) publish(t *Topology) {
	old := s.topo.Swap(t)
	for _, srv := range t.Servers {
		if s.mu.members[srv.Host] == nil {
			s.mu.members[srv.Host] = newMember(s, srv.Host)
		}
	}
	for host, m := range s.mu.members {
		if t.server(host) == nil {
			m.stop()
			delete(s.mu.members, host)
			s.retire(m, old.server(host))
		}
	}
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// update processes a member's report.
func (s *Set) update(srv *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.topo.Load()
	if s.mu.closed || s.mu.members[srv.Host] != srv.member {
		return
	}
	t := old.apply(srv)
	s.publish(t)
	if srv.Kind == Unknown {
		if was := old.server(srv.Host); was != nil && (was.Kind != Unknown || was.Err == errDemoted) {
			s.sever(srv.Host) // calls that wait for its reply could wait long
		}
	}
	for _, now := range t.Servers {
		if now.Err == errDemoted && now.Host != srv.Host && now != old.server(now.Host) && now.member != nil {
			s.recheckReplaced(now)
		}
	}
	if s.moved != nil && t.primary != nil && (t.version != old.version || !slices.Equal(t.hosts, old.hosts)) {
		s.moved(s.name, t.connString(), t.version)
	}
}

// sever closes the connections to a lost member, and a moment later those of calls that had already chosen it, if it is still lost.
func (s *Set) sever(host string) {
	s.net.Sever(host)
	time.AfterFunc(s.timing().MinBetween, func() {
		if now := s.topo.Load().server(host); now != nil && now.Kind == Unknown {
			s.net.Sever(host)
		}
	})
}

// retire closes the connections to a member that the set no longer lists. Calls in progress may end.
//
// Invariant: a call to a removed member that is alive ends by the member's reply; one to a member that does not answer
// hello ends within the time of a check.
// Hazard: most addresses that disappear are not those of lost members. A set that was given as 127.0.0.1 lists itself
// as localhost, and the first hello of its monitor may come when a call has already been sent to the address as given.
// To close its connection would turn a write that is acknowledged a moment later into one of unknown outcome.
func (s *Set) retire(m *member, last *Server) {
	if last != nil && last.Kind == Unknown && last.Err != nil && last.Err != errDemoted {
		s.net.Sever(m.host)
		return
	}
	s.net.Drop(m.host)
	limit := s.timing().Timeout
	if last != nil && last.Err == errDemoted {
		limit = min(limit, s.timing().MinBetween) // see checkTimeout
	}
	s.retired.Go(func() { s.drainRemoved(m.host, limit) })
}

// drainRemoved checks a removed member for as long as it has calls to answer, and closes their connections once it does not
// answer hello within limit.
func (s *Set) drainRemoved(host string, limit time.Duration) {
	for s.inUse(host) {
		if err := s.alive(host, limit); err != nil {
			if s.closing.Err() == nil {
				s.net.Sever(host)
			}
			return
		}
		select {
		case <-time.After(s.timing().Heartbeat):
		case <-s.closing.Done():
			return
		}
	}
}

// inUse reports whether a call to host is in progress, or waits for a connection.
func (s *Set) inUse(host string) bool {
	for _, c := range s.net.Connections() {
		if c.Host == host {
			return c.InUse+c.Dialing > 0
		}
	}
	return false
}

// alive asks host for its state over a new connection.
func (s *Set) alive(host string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(s.closing, limit)
	defer cancel()
	w, err := s.net.Watch(ctx, host)
	if err != nil {
		return err
	}
	defer w.Close()
	_, _, err = w.Ask(ctx, helloPlain, false)
	return err
}

// recheckReplaced checks a former primary again if it does not promptly report by itself that it is no longer primary: it
// may be paused, with calls waiting for it. If it is alive, it will have replied to them by then, which is better
// than closing the connection.
//
// Invariant: no call waits much longer for a member that the set has replaced than the check takes (member.checkTimeout).
// Hazard: the connections of a stopped process stay open, and its streamed hello is merely late; only the other
// members' reports of a newer primary distinguish it from an idle one. Calls that were sent to it would wait for the
// heartbeat and its time-out, twenty seconds, although the new primary could execute them.
//
// Rejected: cutting its connections as soon as another primary is seen. An orderly step-down looks the same from
// here, and its last replies, which are on their way, would be lost: a write that was acknowledged would become one
// of unknown outcome. Rejected, too: a shorter time-out for every hello. Machines that are merely slow would be
// taken for stopped ones, and each false alarm severs all calls to a member.
func (s *Set) recheckReplaced(old *Server) {
	time.AfterFunc(s.timing().MinBetween/5, func() {
		if s.topo.Load().server(old.Host) == old {
			old.member.check()
		}
	})
}

// failed records that a call to a member failed, unless the member has reported something newer since.
func (s *Set) failed(srv *Server, reply []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.topo.Load()
	cur := old.server(srv.Host)
	if s.mu.closed || cur == nil || cur.Updated.After(srv.Updated) && cur.Kind != srv.Kind {
		return
	}
	if supersedes(cur, reply) {
		return
	}
	if cur.member != nil && !hasTopologyVersion(reply) {
		cur.member.check() // otherwise the member streams its new state
	}
	s.publish(old.apply(&Server{Host: srv.Host, Kind: Unknown, Updated: time.Now(), member: cur.member, Err: err}))
}

// supersedes reports whether the member's known state is newer than an error reply.
func supersedes(cur *Server, reply []byte) bool {
	if reply == nil || !cur.versioned {
		return false
	}
	process, counter, ok := parseVersion(lookup(reply, "topologyVersion"))
	return ok && process == cur.process && counter <= cur.counter
}

func hasTopologyVersion(reply []byte) bool {
	return reply != nil && !lookup(reply, "topologyVersion").IsMissing()
}

// Name returns the set's name, empty for a standalone server.
func (s *Set) Name() string { return s.name }

// Topology returns the current state of the set.
func (s *Set) Topology() *Topology { return s.topo.Load() }

// ConnString returns the set as its primary last listed it, "set/host,host"; empty before a primary was seen.
func (s *Set) ConnString() string { return s.topo.Load().connString() }

// Hosts lists the members' addresses as known.
func (s *Set) Hosts() []string {
	t := s.topo.Load()
	if len(t.hosts) > 0 {
		return t.hosts
	}
	out := make([]string, len(t.Servers))
	for i, srv := range t.Servers {
		out[i] = srv.Host
	}
	return out
}

// Seed adds addresses to try if none of the known ones answers.
func (s *Set) Seed(hosts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topo.Load()
	for _, srv := range t.Servers {
		if srv.Kind == Primary || srv.Kind == Secondary {
			return
		}
	}
	if s.mu.closed {
		return
	}
	n := *t
	n.Servers = slices.Clone(t.Servers)
	for _, h := range hosts {
		n.add(h)
	}
	s.publish(&n)
}

// close stops monitoring and waits for the members' goroutines.
func (s *Set) close() {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return
	}
	s.mu.closed = true
	members := s.mu.members
	s.mu.members = nil
	for _, m := range members {
		m.stop()
	}
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
	s.mu.Unlock()
	s.end()
	for _, m := range members {
		<-m.done
	}
	s.retired.Wait()
}

// selectServer finds a member that p allows, waiting for one if there is none.
func (s *Set) selectServer(ctx context.Context, p *cluster.ReadPreference, avoid *Server) (*Server, error) {
	timing := s.timing()
	if c := s.topo.Load().candidates(p, timing); len(c) > 0 {
		return pick(without(c, avoid)), nil
	}
	t := time.NewTimer(timing.Select)
	defer t.Stop()
	again := time.NewTicker(timing.MinBetween)
	defer again.Stop()
	for {
		s.mu.Lock()
		changed, closed := s.mu.changed, s.mu.closed
		s.mu.Unlock()
		if closed {
			return nil, errClosed
		}
		topo := s.topo.Load()
		if c := topo.candidates(p, timing); len(c) > 0 {
			return pick(without(c, avoid)), nil
		}
		s.checkOld(topo)
		select {
		case <-changed:
		case <-again.C:
		case <-t.C:
			return nil, cluster.NoHostMatches(p, s.called())
		case <-ctx.Done():
			return nil, contextError(ctx)
		}
	}
}

// called returns the set's name, or the address of a server that is in no set.
func (s *Set) called() string {
	if t := s.topo.Load(); s.name == "" && len(t.Servers) > 0 {
		return t.Servers[0].Host
	}
	return s.name
}

// checkOld requests checks of the members that have not reported recently: the one that a call waits for may be
// among them.
func (s *Set) checkOld(t *Topology) {
	for _, srv := range t.Servers {
		if srv.member != nil && time.Since(srv.Updated) >= s.timing().MinBetween {
			srv.member.request()
		}
	}
}

// without omits the member that has just failed, if there are others.
func without(in []*Server, avoid *Server) []*Server {
	if avoid == nil || len(in) < 2 {
		return in
	}
	return slices.DeleteFunc(slices.Clone(in), func(s *Server) bool { return s.Host == avoid.Host })
}
