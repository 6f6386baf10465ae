package sdam

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// Kind is a member's last reported kind.
type Kind uint8

// The kinds. Other is a member that responds but serves no reads: starting up, recovering, removed, an arbiter.
const (
	Unknown Kind = iota
	Primary
	Secondary
	Other
)

// Server is one member as its last hello described it. It never changes.
type Server struct {
	Host      string
	Kind      Kind
	Tags      []cluster.Tag
	RTT       time.Duration // moving average; 0 within the process
	LastWrite time.Time
	Updated   time.Time
	Hidden    bool
	Passive   bool  // it cannot become primary (priority 0)
	Err       error // why it is Unknown

	set        string
	me         string
	hosts      []string // hosts and passives, in the configuration's order
	setVersion int64
	electionID [12]byte
	process    [12]byte // topologyVersion
	counter    int64
	versioned  bool
	member     *member
}

// parseHello reads a reply to hello.
func parseHello(host string, reply []byte, now time.Time) *Server {
	s := &Server{Host: host, Kind: Other, Updated: now}
	primary, secondary := false, false
	for it := value.Walk(reply); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		switch string(k) {
		case "isWritablePrimary", "ismaster":
			primary = v.Truthy()
		case "secondary":
			secondary = v.Truthy()
		case "hidden":
			s.Hidden = v.Truthy()
		case "setName":
			s.set = v.Str()
		case "setVersion":
			s.setVersion, _ = v.AsInt64()
		case "electionId":
			if v.T == value.ObjectID {
				s.electionID = v.ObjectID()
			}
		case "me":
			s.me = v.Str()
		case "hosts", "passives":
			for _, h := range value.Values(v.Doc()) {
				s.hosts = append(s.hosts, h.Str())
			}
		case "passive":
			s.Passive = v.Truthy()
		case "tags":
			s.Tags, _ = cluster.ParseTags(v.Doc())
		case "lastWrite":
			if d := value.Lookup(v.Doc(), "lastWriteDate"); d.T == value.DateTime {
				s.LastWrite = time.UnixMilli(d.DateTime())
			}
		case "topologyVersion":
			s.process, s.counter, s.versioned = parseVersion(v)
		}
	}
	switch {
	case s.set == "": // a standalone server, a router, or a member before its set is initiated
	case primary:
		s.Kind = Primary
	case secondary:
		s.Kind = Secondary
	}
	return s
}

func parseVersion(v value.Value) (process [12]byte, counter int64, ok bool) {
	id, n := value.Lookup(v.Doc(), "processId"), value.Lookup(v.Doc(), "counter")
	if id.T != value.ObjectID {
		return process, 0, false
	}
	counter, ok = n.AsInt64()
	return id.ObjectID(), counter, ok
}

// Topology is one state of a set: all known members, and which of them is the primary. It never changes.
type Topology struct {
	Set     string
	Servers []*Server
	primary *Server
	// hosts is the membership that a primary reported, empty before the first.
	hosts   []string
	version int64
	// The newest election known: primaries of older ones are recognised as such.
	maxElection [12]byte
	maxVersion  int64
}

// Primary returns the member that accepts writes, nil if none is known.
func (t *Topology) Primary() *Server { return t.primary }

func (t *Topology) server(host string) *Server {
	for _, s := range t.Servers {
		if s.Host == host {
			return s
		}
	}
	return nil
}

// apply processes a member's report and returns the resulting topology. It follows the drivers' specification
// "Server Discovery and Monitoring": a primary decides who is a member; others only add members while there is no
// primary.
func (t *Topology) apply(s *Server) *Topology {
	if t.server(s.Host) == nil {
		return t // the member was removed in the meantime
	}
	n := &Topology{Set: t.Set, Servers: slices.Clone(t.Servers), hosts: t.hosts, version: t.version, maxElection: t.maxElection, maxVersion: t.maxVersion}
	if s.set != "" && s.set != t.Set && t.Set != "" {
		s = &Server{Host: s.Host, Kind: Unknown, Updated: s.Updated, member: s.member, Err: errOtherSet(s.Host, s.set, t.Set)}
	}
	if t.Set == "" {
		if s.Kind != Unknown {
			s.Kind, n.primary = Primary, s
		}
		n.put(s)
		return n // a standalone server needs no further checks
	}
	if s.Kind == Primary && !n.newest(s) {
		s = demoted(s)
	}
	n.put(s)
	switch s.Kind {
	case Primary:
		for i, o := range n.Servers {
			if o != s && o.Kind == Primary {
				n.Servers[i] = demoted(o)
			}
		}
		n.setMembers(s)
	case Secondary, Other:
		if s.set == "" {
			break
		}
		if n.findPrimary() == nil {
			for _, h := range s.hosts {
				n.add(h)
			}
		}
		if s.me != "" && s.me != s.Host {
			n.drop(s.Host) // the address is another name of a member that is listed as me
		}
	}
	n.primary = n.findPrimary()
	return n
}

// newest records a primary's election and reports whether no newer one is known.
func (t *Topology) newest(s *Server) bool {
	c := bytes.Compare(s.electionID[:], t.maxElection[:])
	if c < 0 || c == 0 && s.setVersion < t.maxVersion {
		return false
	}
	t.maxElection, t.maxVersion = s.electionID, s.setVersion
	return true
}

// demoted returns a member whose claim to be primary is outdated as Unknown; the next check determines its kind.
func demoted(s *Server) *Server {
	return &Server{Host: s.Host, Kind: Unknown, Updated: s.Updated, RTT: s.RTT, member: s.member, Err: errDemoted}
}

func (t *Topology) put(s *Server) {
	for i, o := range t.Servers {
		if o.Host == s.Host {
			if s.RTT == 0 {
				s.RTT = o.RTT
			}
			t.Servers[i] = s
			return
		}
	}
}

func (t *Topology) add(host string) {
	if t.server(host) == nil {
		t.Servers = append(t.Servers, &Server{Host: host})
	}
}

func (t *Topology) drop(host string) {
	t.Servers = slices.DeleteFunc(t.Servers, func(s *Server) bool { return s.Host == host })
}

// setMembers replaces the members by those that the primary lists.
func (t *Topology) setMembers(p *Server) {
	t.hosts, t.version = p.hosts, p.setVersion
	for _, h := range p.hosts {
		t.add(h)
	}
	t.Servers = slices.DeleteFunc(t.Servers, func(s *Server) bool { return !slices.Contains(p.hosts, s.Host) && s != p })
	if p.me != "" && p.me != p.Host && slices.Contains(p.hosts, p.me) {
		// The dialled address is another name of the primary. It stays until the listed name itself answers as
		// primary.
		if o := t.server(p.me); o != nil && o.Kind == Primary {
			t.drop(p.Host)
		}
	}
}

func (t *Topology) findPrimary() *Server {
	for _, s := range t.Servers {
		if s.Kind == Primary {
			return s
		}
	}
	return nil
}

// candidates lists the members that a read preference allows, those within the latency window.
func (t *Topology) candidates(p *cluster.ReadPreference, timing *Timing) []*Server {
	var primary []*Server
	if t.primary != nil {
		primary = []*Server{t.primary}
	}
	secondaries := func() []*Server {
		return inWindow(tagged(t.fresh(t.readable(false), p, timing.Heartbeat), p), timing.Window)
	}
	switch p.OrPrimary() {
	case cluster.ReadPrimary:
		return primary
	case cluster.ReadPrimaryPreferred:
		if primary != nil {
			return primary
		}
		return secondaries()
	case cluster.ReadSecondary:
		return secondaries()
	case cluster.ReadSecondaryPreferred:
		if s := secondaries(); len(s) > 0 {
			return s
		}
		return primary
	}
	return inWindow(tagged(t.fresh(t.readable(true), p, timing.Heartbeat), p), timing.Window)
}

func (t *Topology) readable(primaryToo bool) []*Server {
	out := make([]*Server, 0, len(t.Servers))
	for _, s := range t.Servers {
		if !s.Hidden && (s.Kind == Secondary || primaryToo && s.Kind == Primary) {
			out = append(out, s)
		}
	}
	return out
}

// fresh omits the secondaries that are too stale, by the estimate of the drivers' specification.
func (t *Topology) fresh(in []*Server, p *cluster.ReadPreference, heartbeat time.Duration) []*Server {
	if p == nil || p.MaxStalenessSeconds == 0 {
		return in
	}
	limit := time.Duration(p.MaxStalenessSeconds) * time.Second
	var newest time.Time
	for _, s := range t.Servers {
		if s.Kind == Secondary && s.LastWrite.After(newest) {
			newest = s.LastWrite
		}
	}
	return slices.DeleteFunc(in, func(s *Server) bool {
		if s.Kind == Primary {
			return false
		}
		behind := newest.Sub(s.LastWrite)
		if t.primary != nil {
			behind = s.Updated.Sub(s.LastWrite) - t.primary.Updated.Sub(t.primary.LastWrite)
		}
		return behind+heartbeat > limit
	})
}

// tagged keeps the members that have all tags of the first tag set that any of them has.
func tagged(in []*Server, p *cluster.ReadPreference) []*Server {
	if p == nil || len(p.TagSets) == 0 {
		return in
	}
	for _, set := range p.TagSets {
		var out []*Server
		for _, s := range in {
			if s.hasTags(set) {
				out = append(out, s)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

func (s *Server) hasTags(set []cluster.Tag) bool {
	for _, t := range set {
		if !slices.Contains(s.Tags, t) {
			return false
		}
	}
	return true
}

func inWindow(in []*Server, window time.Duration) []*Server {
	if len(in) < 2 {
		return in
	}
	least := in[0].RTT
	for _, s := range in[1:] {
		least = min(least, s.RTT)
	}
	return slices.DeleteFunc(in, func(s *Server) bool { return s.RTT > least+window })
}

func pick(in []*Server) *Server {
	if len(in) == 1 {
		return in[0]
	}
	return in[rand.IntN(len(in))]
}

// connString returns the set in the form of config.shards: as its primary listed it, or as it was given.
func (t *Topology) connString() string {
	if len(t.hosts) == 0 {
		return ""
	}
	b := []byte(t.Set)
	for i, h := range t.hosts {
		if i == 0 {
			b = append(b, '/')
		} else {
			b = append(b, ',')
		}
		b = append(b, h...)
	}
	return string(b)
}
