package main

import (
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/shoaldb/shoal/console"
)

// publicHost determines the name under which `shoal start` puts servers that listen on all interfaces into the configuration of a set and the registry
// of shards. Drivers connect to these names: a loopback address would send those of other machines to themselves.
type publicHost struct {
	hostname func() (string, error)
	lookup   func(host string) ([]string, error)
	own      func() ([]net.Addr, error) // the addresses of this machine
}

var thisMachine = publicHost{os.Hostname, net.LookupHost, net.InterfaceAddrs}

// name returns the machine's host name, which a set that is initiated without a configuration gets, too. If the name does not lead here, not even local
// clients could follow it: then it returns a loopback address, and the reason.
func (p publicHost) name() (host, why string) {
	const loopback = "127.0.0.1"
	host, err := p.hostname()
	if err != nil || host == "" {
		return loopback, "this machine has no host name"
	}
	addrs, err := p.lookup(host)
	if err != nil {
		return loopback, fmt.Sprintf("the host name %s cannot be resolved here", host)
	}
	own, err := p.own()
	if err != nil {
		return loopback, fmt.Sprintf("the addresses of this machine are not known: %v", err)
	}
	for _, a := range addrs {
		ip := net.ParseIP(a)
		if ip == nil {
			continue
		}
		if ip.IsLoopback() {
			return host, ""
		}
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(ip) {
				return host, ""
			}
		}
	}
	return loopback, fmt.Sprintf("the host name %s does not lead to this machine", host)
}

// publicNames returns a function that returns the address of a listener as clients are told it: with the name of --host, else, for the wildcard address,
// the public host's name.
func publicNames(c *config, p publicHost) func(addr string) string {
	find := sync.OnceValue(func() string {
		host, why := p.name()
		if why != "" {
			console.Warning(console.Control, 9990020, c.Program.logCtx(), "Clients on other machines cannot use this server as a replica set: its configuration has the "+
				"loopback address. Start it with --host and a name that leads here").Str("reason", why).StartupWarning().Write()
		}
		return host
	})
	return func(addr string) string {
		host, port, err := net.SplitHostPort(addr)
		switch {
		case err != nil: // a UNIX socket
			return addr
		case c.Host != "":
			return net.JoinHostPort(c.Host, port)
		case isWildcard(host):
			return net.JoinHostPort(find(), port)
		}
		return addr
	}
}

func isWildcard(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
