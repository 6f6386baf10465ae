package replset

import (
	"net"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
)

// Describe appends the fields of hello that describe a node's role.
func (r *Membership) Describe(op *command.Op, hello bool, dst []byte) []byte {
	writable := "ismaster"
	if hello {
		writable = "isWritablePrimary"
	}
	dst = r.conf.Topology.AppendVersion(dst)
	if r.Name == "" {
		return value.Append(dst, writable, value.NewBool(true))
	}
	s := r.state.Load()
	if s.self == nil {
		dst = value.Append(dst, writable, value.NewBool(false))
		dst = value.Append(dst, "secondary", value.NewBool(false))
		dst = value.Append(dst, "info", value.NewString("Does not have a valid replica set config"))
		return value.Append(dst, "isreplicaset", value.NewBool(true))
	}
	v := r.view(op, s)
	dst = appendHosts(dst, "hosts", s.config, v, func(m *replication.MemberConfig) bool { return m.Priority > 0 })
	dst = appendHosts(dst, "passives", s.config, v, func(m *replication.MemberConfig) bool { return m.Priority == 0 })
	dst = value.Append(dst, "setName", value.NewString(r.Name))
	dst = value.Append(dst, "setVersion", value.NewInt32(int32(s.config.Version)))
	dst = value.Append(dst, writable, value.NewBool(s.writable))
	dst = value.Append(dst, "secondary", value.NewBool(s.role == replication.Secondary))
	if m := s.config.Member(s.leader); m != nil {
		dst = value.Append(dst, "primary", value.NewString(v.host(m)))
	}
	if s.self.Priority == 0 {
		dst = value.Append(dst, "passive", value.NewBool(true))
	}
	if s.self.Hidden {
		dst = value.Append(dst, "hidden", value.NewBool(true))
	}
	if s.self.DelaySecs > 0 {
		dst = value.Append(dst, "secondaryDelaySecs", value.NewInt(s.self.DelaySecs))
	}
	if len(s.self.Tags) > 0 {
		dst = value.Append(dst, "tags", value.NewDocument(replication.TagsDoc(s.self.Tags)))
	}
	dst = value.Append(dst, "me", value.NewString(v.host(s.self)))
	if s.writable {
		dst = value.Append(dst, "electionId", value.NewObjectID(electionID(s.term)))
	}
	return r.appendLastWrite(dst)
}

// appendLastWrite appends the member's last write, from which drivers estimate its staleness.
func (r *Membership) appendLastWrite(dst []byte) []byte {
	last, majority := r.lastWrite()
	dst, m := value.BeginKey(dst, value.Document, "lastWrite")
	dst = appendOpTime(dst, "opTime", last.TS, last.Term)
	dst = value.Append(dst, "lastWriteDate", wallOf(last))
	dst = appendOpTime(dst, "majorityOpTime", majority.TS, majority.Term)
	dst = value.Append(dst, "majorityWriteDate", wallOf(majority))
	return value.End(dst, m)
}

// lastWrite returns the last optime that the member has, and the last that a majority has.
func (r *Membership) lastWrite() (last, majority replication.OpTime) {
	if raft := r.conf.Member.Raft(); raft != nil {
		st := raft.Status()
		return st.Applied, st.Committed
	}
	term := r.conf.Member.Term()
	return replication.OpTime{TS: r.conf.Engine.Visible(), Term: term}, replication.OpTime{TS: r.conf.Member.MajorityCommitted(), Term: term}
}

// wallOf returns the wall clock time of an oplog entry; if it is unknown, that of its timestamp.
func wallOf(t replication.OpTime) value.Value {
	if t.Wall.IsZero() {
		return value.NewDateTime(int64(t.TS.Seconds()) * 1000)
	}
	return value.NewTime(t.Wall)
}

func appendHosts(dst []byte, key string, c *replication.SetConfig, v hostView, in func(*replication.MemberConfig) bool) []byte {
	var hosts []value.Value
	for i := range c.Members {
		if m := &c.Members[i]; !m.Hidden && in(m) {
			hosts = append(hosts, value.NewString(v.host(m)))
		}
	}
	if len(hosts) == 0 {
		return dst
	}
	return value.Append(dst, key, value.NewArray(value.ArrayOf(hosts...)))
}

// hostView is one client's view of the members' addresses: the names of its horizon, or the address that it dialled.
type hostView struct {
	horizon string
	dialled string // an IP address that stands in for the configured hosts; empty for none
}

func (v hostView) host(m *replication.MemberConfig) string {
	switch {
	case v.horizon != "":
		return m.Horizon(v.horizon)
	case v.dialled != "":
		if _, port, err := net.SplitHostPort(m.Host); err == nil {
			return net.JoinHostPort(v.dialled, port)
		}
	}
	return m.Host
}

// view determines which addresses a client should see for the members. A configured horizon applies if it has the name
// that the client requested by SNI, or the address that it dialled. Otherwise the configured hosts apply, except for
// default hosts that this client could not reach: loopback addresses seen from another machine, and the machine's own
// name in a set of one that was initiated without naming a host.
func (r *Membership) view(op *command.Op, s *replState) hostView {
	if op == nil || op.Client == nil || op.Client.Internal || op.Client.InProcess {
		return hostView{}
	}
	ip, _, err := net.SplitHostPort(op.Client.Local)
	if err != nil {
		return hostView{}
	}
	for _, h := range s.self.Horizons {
		name, _, _ := net.SplitHostPort(h.Value)
		if asked := op.Client.ServerName(); name == asked && name != "" || asked == "" && h.Value == op.Client.Local {
			return hostView{horizon: h.Name}
		}
	}
	host, _, err := net.SplitHostPort(s.self.Host)
	if err != nil || host == ip {
		return hostView{}
	}
	local := host == "localhost" || isLoopback(host)
	if local && !isLoopback(ip) || !local && len(s.config.Members) == 1 && s.self.Host == r.conf.Host {
		return hostView{dialled: ip}
	}
	return hostView{}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Tail appends readOnly and the other fields at the end of a mongod's hello.
func (r *Membership) Tail(dst []byte) []byte {
	return value.Append(dst, "readOnly", value.NewBool(false))
}
