package command

import (
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// poolName is the name in connPoolStats of the only pool of connections to other nodes.
const poolName = "NetworkInterfaceTL-TaskExecutorPool-0"

// poolTotals returns the counters of connPoolStats for one host, or for all.
func poolTotals(h wire.HostStats) []value.Field {
	return []value.Field{
		i64("InUse", h.InUse), i64("Available", h.Idle), i64("Leased", 0), i64("Created", h.Created), i64("Refreshing", h.Dialing),
		i64("Refreshed", h.Refreshed), i64("WasNeverUsed", h.NeverUsed), i64("Rejected", h.Rejected),
	}
}

// waitTimes returns how long calls waited for a connection, as a histogram.
func waitTimes(h wire.HostStats) value.Field {
	count := func(n int64) value.Value { return value.NewDocument(value.Doc(i64("count", n))) }
	out, total := []value.Field{value.F("(-inf, 0ms)", count(0))}, int64(0)
	step, last := wire.WaitStep.Milliseconds(), len(h.Waits)-1
	for i, n := range h.Waits {
		total += n
		from := int64(i) * step
		name := "[" + strconv.FormatInt(from, 10) + "ms, inf)"
		if i < last {
			name = "[" + strconv.FormatInt(from, 10) + "ms, " + strconv.FormatInt(from+step, 10) + "ms)"
		}
		out = append(out, value.F(name, count(n)))
	}
	return value.F("acquisitionWaitTimes", value.NewDocument(value.Doc(append(out, i64("totalCount", total))...)))
}

// addHost adds the counters of one host to a sum.
func addHost(sum *wire.HostStats, h wire.HostStats) {
	sum.InUse, sum.Idle, sum.Created, sum.Dialing = sum.InUse+h.InUse, sum.Idle+h.Idle, sum.Created+h.Created, sum.Dialing+h.Dialing
	sum.Refreshed, sum.NeverUsed, sum.Rejected = sum.Refreshed+h.Refreshed, sum.NeverUsed+h.NeverUsed, sum.Rejected+h.Rejected
	for i, n := range h.Waits {
		sum.Waits[i] += n
	}
}

func prefixed(prefix string, f []value.Field) []value.Field {
	for i := range f {
		if prefix == "" {
			f[i].Key = string(f[i].Key[0]|0x20) + f[i].Key[1:]
		} else {
			f[i].Key = prefix + f[i].Key
		}
	}
	return f
}

// runConnPoolStats reports the connections to other nodes. Nodes of one process call each other without any.
func (s *Service) runConnPoolStats(_ *Op, dst []byte) ([]byte, error) {
	for _, k := range []string{"numClientConnections", "numAScopedConnections"} {
		dst = value.Append(dst, k, value.NewInt32(0))
	}
	var hosts []wire.HostStats
	var sets []*sdam.Set
	if s.Peers != nil {
		hosts, sets = s.Peers.Connections(), s.Peers.Sets()
	}
	sort.Slice(hosts, func(i, j int) bool { return hosts[i].Host < hosts[j].Host })
	var sum wire.HostStats
	var each []value.Field
	for _, h := range hosts {
		addHost(&sum, h)
		each = append(each, value.F(h.Host, value.NewDocument(value.Doc(append(prefixed("", poolTotals(h)), waitTimes(h))...))))
	}
	for _, f := range prefixed("total", poolTotals(sum)) {
		dst = value.Append(dst, f.Key, f.Val)
	}
	strategy := sdam.MatchNothing
	if s.Peers != nil {
		strategy = s.Peers.Matching()
	}
	dst = value.Append(dst, "replicaSetMatchingStrategy", value.NewString(string(strategy)))
	dst = value.Append(dst, "acquisitionWaitTimes", waitTimes(sum).Val)
	var pools []value.Field
	if len(each) > 0 {
		pools = []value.Field{value.F(poolName, value.NewDocument(value.Doc(append(append(prefixed("pool", poolTotals(sum)), waitTimes(sum)), each...)...)))}
	}
	dst = value.Append(dst, "pools", value.NewDocument(value.Doc(pools...)))
	dst = value.Append(dst, "hosts", value.NewDocument(value.Doc(each...)))
	var followed []value.Field
	for _, set := range sets {
		if set.Name() != "" {
			followed = append(followed, value.F(set.Name(), value.NewDocument(setStatus(set))))
		}
	}
	return value.Append(dst, "replicaSets", value.NewDocument(value.Doc(followed...))), nil
}

// setStatus returns a replica set as its monitor sees it.
func setStatus(set *sdam.Set) []byte {
	var hosts []value.Value
	for _, m := range set.Topology().Servers {
		f := []value.Field{
			value.F("addr", value.NewString(m.Host)), value.F("ok", value.NewBool(m.Kind == sdam.Primary || m.Kind == sdam.Secondary)),
			value.F("ismaster", value.NewBool(m.Kind == sdam.Primary)), value.F("hidden", value.NewBool(m.Hidden)),
			value.F("secondary", value.NewBool(m.Kind == sdam.Secondary)), value.F("pingTimeMillis", value.NewInt32(int32(m.RTT/time.Millisecond))),
		}
		if len(m.Tags) > 0 {
			var tags []value.Field
			for _, t := range m.Tags {
				tags = append(tags, value.F(t.Name, value.NewString(t.Value)))
			}
			f = append(f, value.F("tags", value.NewDocument(value.Doc(tags...))))
		}
		hosts = append(hosts, value.NewDocument(value.Doc(f...)))
	}
	return value.Doc(value.F("hosts", value.NewArray(value.ArrayOf(hosts...))))
}

// runDropConnections closes the pooled connections to the hosts that the command names.
func (s *Service) runDropConnections(op *Op, dst []byte) ([]byte, error) {
	var hosts []string
	for i, v := range value.Values(op.Req.Doc("hostAndPort")) {
		if v.T == value.Null || v.T == value.Undefined {
			continue
		}
		if v.T != value.String {
			return dst, WrongType("dropConnections.hostAndPort."+strconv.Itoa(i), v.T, TString)
		}
		if err := checkHostAndPort(v.Str()); err != nil {
			return dst, err
		}
		hosts = append(hosts, v.Str())
	}
	if s.Peers != nil {
		s.Peers.Drop(hosts)
	}
	return dst, nil
}

// runConnPoolSync closes the idle connections to all other nodes: the next calls make new ones.
func (s *Service) runConnPoolSync(_ *Op, dst []byte) ([]byte, error) {
	if s.Peers != nil {
		var hosts []string
		for _, h := range s.Peers.Connections() {
			hosts = append(hosts, h.Host)
		}
		s.Peers.Drop(hosts)
	}
	return dst, nil
}

// checkHostAndPort refuses anything but a host with an optional port.
func checkHostAndPort(s string) error {
	bad := func(why string) error {
		return mongoerr.Newf(mongoerr.FailedToParse, "%s parsing HostAndPort from \"%s\"", why, s)
	}
	host, port, colon := s, "", false
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return bad("ipv6 address is missing closing ']' in hostname when")
		}
		host = s[1:end]
		port, colon = strings.CutPrefix(s[end+1:], ":")
		if !colon && s[end+1:] != "" {
			return bad("missing colon after ']' before the port when")
		}
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		host, port, colon = s[:i], s[i+1:], true
		if strings.IndexByte(port, ':') >= 0 {
			return bad("more than one ':' detected. If this is an ipv6 address, it needs to be surrounded by '[' and ']' when")
		}
	}
	if host == "" {
		return bad("Empty host component")
	}
	if !colon {
		return nil
	}
	n := 0
	for _, c := range []byte(port) {
		if c < '0' || c > '9' || n > 65535 {
			return bad("Bad digit or number out of range when")
		}
		n = n*10 + int(c-'0')
	}
	if port == "" || n < 1 || n > 65535 {
		return bad("Port number out of range when")
	}
	return nil
}
