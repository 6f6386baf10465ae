package main

import (
	"net"
	"strings"
	"testing"
)

// Each part of an accepted list is an address, a range or a path, and the list admits exactly the addresses that another parser finds in it.
func FuzzConnectionsOverride(f *testing.F) {
	for _, seed := range []string{"", "127.0.0.1", "10.0.0.0/8, 192.168.0.0/16", "::1,fe80::1%eth0", "::ffff:10.0.0.0/104", "0.0.0.0/0", "::/0", "/tmp/mongodb-27017.sock", "10.1.2.3/33",
		"10.0.0.0/8,", "::ffff:0:0/90", "1.2.3", "010.0.0.1", "10.0.0.0/-1", "[::1]"} {
		f.Add(seed, []byte{10, 1, 2, 3})
		f.Add(seed, []byte(net.ParseIP("::1")))
	}
	f.Fuzz(func(t *testing.T, text string, addr []byte) {
		c := newConfig(isMongod)
		if setOverride(c, text) != nil || len(addr) != net.IPv4len && len(addr) != net.IPv6len {
			return
		}
		exempt := exemptAddrs(c.MaxConnsOverride)
		ip := net.IP(addr)
		in, sockets := false, false
		for _, part := range strings.Split(text, ",") {
			switch part, _, _ = strings.Cut(strings.TrimSpace(part), "%"); {
			case strings.HasPrefix(part, "/"):
				sockets = true
			case strings.Contains(part, "/"):
				_, r, err := net.ParseCIDR(part)
				if err != nil {
					t.Fatalf("%q is taken for a range", part)
				}
				in = in || r.Contains(ip)
			case net.ParseIP(part) == nil:
				t.Fatalf("%q is taken for an address", part)
			default:
				in = in || net.ParseIP(part).Equal(ip)
			}
		}
		if exempt(&net.TCPAddr{IP: ip}) != in || exempt(&net.UnixAddr{Name: "/tmp/mongodb-27017.sock", Net: "unix"}) != sockets {
			t.Errorf("%q lets in %s: %v, and sockets: %v", text, ip, !in, !sockets)
		}
	})
}
