package replication

import (
	"time"

	"github.com/shoaldb/shoal/storage"
	"go.etcd.io/raft/v3"
)

// Status returns the state of the member and of the set as it sees it.
func (r *Raft) Status() Status {
	l, cfg, id := r.lead.Load(), r.Config(), r.id.Load()
	index, term := r.m.AppliedIndex()
	here := opTime(r.m.Visible(), term)
	s := Status{
		SetName: r.opts.SetName, Role: r.role(), Writable: r.writable.Load(), Term: int64(l.term), Leader: r.leader(),
		Self: NoMember, Config: cfg, Applied: here, Durable: here, Committed: here, Frozen: r.frozenUntil(), Flow: r.flow.show(),
	}
	r.roles.mu.Lock()
	s.Initiated = r.roles.initiated
	r.roles.mu.Unlock()
	if err := r.roles.fatal.Load(); err != nil {
		s.Fatal = *err
	}
	if r.self() != nil && s.Role != Removed {
		s.Self = int(id) - 1
	}
	first, _ := r.rlog.FirstIndex()
	r.rlog.mu.RLock()
	s.Log = LogStatus{First: first, Last: r.rlog.mu.last, Commit: max(r.rlog.mu.hard.GetCommit(), index), Applied: index,
		Bytes: r.rlog.mu.bytes - r.rlog.mu.cut}
	hard := r.rlog.mu.hard
	r.rlog.mu.RUnlock()
	r.election.mu.Lock()
	s.Elections = r.election.ElectionStatus
	r.election.mu.Unlock()
	s.Elections.LastVoteTerm, s.Elections.LastVotedFor = int64(hard.GetTerm()), int64(hard.GetVote())-1
	s.Snapshots = r.snaps.show()
	voting := r.voting()
	s.Voting = voting[id]
	if cfg != nil {
		s.Members = r.members(cfg, &s, voting)
	}
	return s
}

func opTime(ts storage.Timestamp, term uint64) OpTime {
	if ts == 0 {
		return OpTime{Term: -1}
	}
	return OpTime{TS: ts, Term: int64(term), Wall: time.Unix(int64(ts.Seconds()), 0)}
}

// voting returns the raft ids of the members in the quorum.
func (r *Raft) voting() map[uint64]bool {
	all := map[uint64]bool{}
	for _, id := range r.rlog.conf().state.GetVoters() {
		all[id] = true
	}
	return all
}

// members returns the members of a configuration as this one sees them.
func (r *Raft) members(cfg *SetConfig, s *Status, voting map[uint64]bool) (all []MemberStatus) {
	now := time.Now()
	limit := max(r.callTimeout(), r.electionTimeout())
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	for i := range cfg.Members {
		c := &cfg.Members[i]
		id := uint64(c.ID) + 1
		m := MemberStatus{ID: c.ID, Host: c.Host, Voting: voting[id], SyncSource: NoMember, Role: Unknown}
		if c.ID == s.Self {
			m.Self, m.Healthy, m.Role, m.Applied, m.Durable = true, true, s.Role, s.Applied, s.Durable
			m.ConfigVersion, m.ConfigTerm, m.Uptime = cfg.Version, cfg.Term, now.Sub(r.started)
			if m.Role == Primary {
				m.ElectedAt, m.ElectionTS = s.Elections.PrimarySince, s.Elections.LastElectionTS
			} else if s.Leader != c.ID {
				m.SyncSource = s.Leader
			}
		} else if x := r.peers.seen[id]; x != nil {
			m.fill(x, now, limit)
		}
		all = append(all, m)
	}
	return all
}

// fill copies what a member has reported about itself.
func (m *MemberStatus) fill(x *seen, now time.Time, limit time.Duration) {
	p := &x.report
	m.LastSent, m.LastReceived, m.Ping, m.Error = x.sent, x.received, x.ping, x.err
	if x.at.IsZero() {
		if x.err != "" {
			m.Role = Down
		}
		return
	}
	m.Applied = opTime(p.ts, p.indexTerm)
	m.Durable = m.Applied
	m.ConfigVersion, m.ConfigTerm = p.configVersion, p.configTerm
	if m.Healthy = now.Sub(x.at) < limit && (x.err == "" || now.Sub(x.at) < limit/2); !m.Healthy {
		m.Role = Down
		return
	}
	m.Role = p.role
	m.Uptime = time.Duration(p.uptimeMS) * time.Millisecond
	if p.role == Primary {
		m.ElectionTS, m.ElectedAt = p.electionTS, time.UnixMilli(int64(p.electionMS))
	} else if p.lead != raft.None {
		m.SyncSource = int(p.lead) - 1
	}
}

// show lists the snapshots under way.
func (s *snapshotState) show() (all []SnapshotStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.out {
		all = append(all, o.SnapshotStatus)
	}
	if in := s.in; in != nil {
		in.mu.Lock()
		if in.state != wantInstalled {
			x := SnapshotStatus{Member: int(in.from) - 1, Incoming: true, Index: in.rec.index, Started: in.started}
			for i, f := range in.manifest.Files {
				x.Total += f.Size
				x.Sent += in.have[i]
			}
			all = append(all, x)
		}
		in.mu.Unlock()
	}
	return all
}
