package main

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/cluster"
)

// balancedAddrs returns the addresses on which a router listens for load balancers: its own TCP addresses with another port; none for port 0.
func balancedAddrs(addrs []string, port int64) (out []string, err error) {
	if port == 0 {
		return nil, nil
	}
	for _, a := range addrs {
		if strings.HasPrefix(a, "/") {
			continue
		}
		host, own, err := net.SplitHostPort(a)
		if err != nil {
			return nil, err
		}
		if own == strconv.FormatInt(port, 10) {
			return nil, errors.New("BadValue: Load balancer port must be different from the normal ingress port")
		}
		out = append(out, net.JoinHostPort(host, strconv.FormatInt(port, 10)))
	}
	return out, nil
}

// balancedFor returns the addresses on which the next router of the process listens for load balancers: the first at loadBalancerPort, each
// further one a port above.
func (a *assembly) balancedFor(addrs []string) ([]string, error) {
	port := a.params.Int("loadBalancerPort")
	if port > 0 {
		port += int64(a.balanced)
		a.balanced++
	}
	return balancedAddrs(addrs, port)
}

// setOverride reads net.maxIncomingConnectionsOverride: addresses, ranges in CIDR notation, and paths of UNIX sockets.
func setOverride(c *config, v string) error {
	for _, s := range strings.Split(v, ",") {
		s = strings.TrimSpace(s)
		if _, err := cluster.ParseRange(s); err != nil && !strings.HasPrefix(s, "/") {
			return usagef("BadValue: net.maxIncomingConnectionsOverride: %s is neither an address, nor a range, nor a path", s)
		}
		c.MaxConnsOverride = append(c.MaxConnsOverride, s)
	}
	return nil
}

// exemptAddrs returns the predicate for clients' addresses in a list; nil for an empty list.
func exemptAddrs(list []string) func(net.Addr) bool {
	if len(list) == 0 {
		return nil
	}
	var ranges []netip.Prefix
	for _, s := range list {
		if r, err := cluster.ParseRange(s); err == nil {
			ranges = append(ranges, r)
		}
	}
	sockets := slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "/") })
	return func(addr net.Addr) bool {
		t, tcp := addr.(*net.TCPAddr)
		if !tcp {
			return sockets // a process listens on sockets of one directory
		}
		a, _ := netip.AddrFromSlice(t.IP)
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a.Unmap()) })
	}
}
