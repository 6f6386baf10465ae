package main

import (
	"net"
	"net/netip"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// limitConnections applies the parameters that limit the rate at which connections are established to a server.
func limitConnections(p *cluster.Params, srv *wire.Server) {
	const enabled, rate, burst = "ingressConnectionEstablishmentRateLimiterEnabled", "ingressConnectionEstablishmentRatePerSec", "ingressConnectionEstablishmentBurstCapacitySecs"
	const queue, bypass = "ingressConnectionEstablishmentMaxQueueDepth", "ingressConnectionEstablishmentRateLimiterBypass"
	set := func(value.Value) {
		number := func(name string) value.Value {
			if q, ok := p.Lookup(name); ok {
				return q.Value()
			}
			return value.Value{}
		}
		srv.SetAdmission(wire.Admission{
			Enabled: p.Bool(enabled), PerSecond: number(rate).AsFloat64(), Burst: number(burst).AsFloat64(),
			Queue: int(p.Int(queue)), Exempt: exemptRanges(number(bypass).Doc()),
		})
	}
	for _, name := range []string{enabled, rate, burst, queue, bypass} {
		p.OnChange(name, set)
	}
}

// exemptRanges returns the predicate for addresses in {ranges: [an address, or a range in CIDR notation, ...]}.
func exemptRanges(doc []byte) func(net.Addr) bool {
	var ranges []netip.Prefix
	for _, v := range value.Values(value.Lookup(doc, "ranges").Doc()) {
		if r, err := cluster.ParseRange(v.Str()); err == nil {
			ranges = append(ranges, r)
		}
	}
	if ranges == nil {
		return nil
	}
	return func(addr net.Addr) bool {
		t, ok := addr.(*net.TCPAddr)
		if !ok {
			return false
		}
		a, _ := netip.AddrFromSlice(t.IP)
		for _, r := range ranges {
			if r.Contains(a.Unmap()) {
				return true
			}
		}
		return false
	}
}
