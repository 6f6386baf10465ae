package replset

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ownHosts records addresses that led to this node when they were dialled: names and ports of container networks and
// proxies, which the machine itself does not know.
type ownHosts struct{ hosts sync.Map }

func (o *ownHosts) add(host string) { o.hosts.Store(host, true) }

func (o *ownHosts) has(host string) bool {
	_, ok := o.hosts.Load(host)
	return ok
}

// isSelfSpec returns the command with which a node learns whether an address leads to itself.
func (r *Membership) isSelfSpec() command.Spec {
	s := command.Internal(func(_ *command.Op, _ *msg.IsSelf, dst []byte) ([]byte, error) {
		return msg.AppendFields(dst, &msg.IsSelfReply{ID: r.conf.Topology.ProcessID}), nil
	})
	s.Roles, s.NoAuth = command.Shard|command.Config, true
	return s
}

// leadsHere dials an address and reports whether this node answers.
func (r *Membership) leadsHere(ctx context.Context, host string) bool {
	if r.opts.Ask == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reply, err := r.opts.Ask(ctx, host, msg.Doc(&msg.IsSelf{}))
	if err != nil {
		return false
	}
	var at msg.IsSelfReply
	return msg.Parse(reply, &at) == nil && at.ID == r.conf.Topology.ProcessID
}

// own returns the addresses in a configuration that belong to this node, in order. Addresses that the machine
// does not know as its own are dialled.
func (r *Membership) own(ctx context.Context, c *replication.SetConfig) (hosts []string) {
	self := make([]bool, len(c.Members))
	var wg sync.WaitGroup
	for i := range c.Members {
		host := c.Members[i].Host
		if self[i] = r.isSelf(host); self[i] {
			continue
		}
		wg.Go(func() {
			if self[i] = r.leadsHere(ctx, host); self[i] {
				r.dialled.add(host)
			}
		})
	}
	wg.Wait()
	for i, is := range self {
		if is {
			hosts = append(hosts, c.Members[i].Host)
		}
	}
	return hosts
}

// checkSelf checks that exactly one member of a configuration is this node. term is the configuration's.
func (r *Membership) checkSelf(ctx context.Context, c *replication.SetConfig, term int64, code mongoerr.Code) error {
	switch own := r.own(ctx, c); len(own) {
	case 0:
		return mongoerr.Newf(code, "No host described in new configuration with {version: %d, term: %d} for replica set %s maps to this node", c.Version, term, c.Name)
	case 1:
		return nil
	default:
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "The hosts %s and %s all map to this node in new configuration with {version: %d, term: %d} for replica set %s",
			own[0], own[1], c.Version, term, c.Name)
	}
}

// findSelf returns the index of the node in a configuration, -1 if it is not a member.
func (r *Membership) findSelf(c *replication.SetConfig) int {
	for i := range c.Members {
		if r.isSelf(c.Members[i].Host) {
			return i
		}
	}
	return -1
}

// isSelf reports whether an address is this node's: a name that it is known by, its port on an address of this
// machine, or an address that was dialled and led here.
func (r *Membership) isSelf(host string) bool {
	if host == r.conf.Host || r.dialled.has(host) {
		return true
	}
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return false
	}
	listens := false
	for _, l := range r.opts.Listens {
		if l == host {
			return true
		}
		lname, lport, err := net.SplitHostPort(l)
		listens = listens || err == nil && lport == port && (isLoopback(lname) == isLoopback(name) || isAny(lname) || name == "localhost")
	}
	return listens && r.isLocal(name)
}

func isAny(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

// isLocal reports whether a host name or address is one of this machine's.
func (r *Membership) isLocal(name string) bool {
	if name == "localhost" || isLoopback(name) {
		return true
	}
	ips := []net.IP{net.ParseIP(name)}
	if ips[0] == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		addrs, err := net.DefaultResolver.LookupIPAddr(ctx, name)
		if err != nil {
			return false
		}
		ips = ips[:0]
		for _, a := range addrs {
			ips = append(ips, a.IP)
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, ip := range ips {
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return true
			}
		}
	}
	return false
}
