package replset

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
)

func (r *Membership) runReplSetGetStatus(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	st, c := r.Status(), r.Config()
	dst = value.Append(dst, "set", value.NewString(r.Name))
	dst = value.Append(dst, "date", value.NewTime(r.conf.Now()))
	dst = value.Append(dst, "myState", value.NewInt32(int32(st.Role)))
	dst = value.Append(dst, "term", value.NewInt64(st.Term))
	dst = appendSyncSource(dst, c, syncSourceOf(&st, st.Self))
	if r.conf.ConfigServer {
		dst = value.Append(dst, "configsvr", value.NewBool(true))
	}
	dst = value.Append(dst, "heartbeatIntervalMillis", value.NewInt64(c.Settings.HeartbeatInterval.Milliseconds()))
	dst = value.Append(dst, "majorityVoteCount", value.NewInt32(int32(c.Majority())))
	dst = value.Append(dst, "writeMajorityCount", value.NewInt32(int32(min(c.Majority(), c.WritableVoters()))))
	dst = value.Append(dst, "votingMembersCount", value.NewInt32(int32(c.Voters())))
	dst = value.Append(dst, "writableVotingMembersCount", value.NewInt32(int32(c.WritableVoters())))
	dst = appendOpTimes(dst, &st)
	dst = value.Append(dst, "lastStableRecoveryTimestamp", st.Committed.TS.Value())
	dst = appendElection(dst, &st, c)
	dst, m := value.BeginKey(dst, value.Array, "members")
	for i := range st.Members {
		dst = value.AppendIndex(dst, i, value.NewDocument(r.memberStatus(&st, &st.Members[i], c)))
	}
	return value.End(dst, m), nil
}

// appendOpTimes appends the optimes that the member, and a majority, have reached.
func appendOpTimes(dst []byte, st *replication.Status) []byte {
	dst, m := value.BeginKey(dst, value.Document, "optimes")
	dst = appendOpTime(dst, "lastCommittedOpTime", st.Committed.TS, st.Committed.Term)
	dst = value.Append(dst, "lastCommittedWallTime", wallOf(st.Committed))
	dst = appendOpTime(dst, "readConcernMajorityOpTime", st.Committed.TS, st.Committed.Term)
	dst = appendOpTime(dst, "appliedOpTime", st.Applied.TS, st.Applied.Term)
	dst = appendOpTime(dst, "durableOpTime", st.Durable.TS, st.Durable.Term)
	dst = appendOpTime(dst, "writtenOpTime", st.Applied.TS, st.Applied.Term)
	dst = value.Append(dst, "lastAppliedWallTime", wallOf(st.Applied))
	dst = value.Append(dst, "lastDurableWallTime", wallOf(st.Durable))
	dst = value.Append(dst, "lastWrittenWallTime", wallOf(st.Applied))
	return value.End(dst, m)
}

// appendElection appends the metrics of the primary's election, or of a secondary's last vote.
func appendElection(dst []byte, st *replication.Status, c *replication.SetConfig) []byte {
	e := &st.Elections
	if st.Role == replication.Primary && !e.LastElection.IsZero() && len(c.Members) > 1 {
		reason := e.LastReason
		if reason == "" {
			reason = "electionTimeout"
		}
		dst, m := value.BeginKey(dst, value.Document, "electionCandidateMetrics")
		dst = value.Append(dst, "lastElectionReason", value.NewString(reason))
		dst = value.Append(dst, "lastElectionDate", value.NewTime(e.LastElection))
		dst = value.Append(dst, "electionTerm", value.NewInt64(st.Term))
		dst = appendOpTime(dst, "lastCommittedOpTimeAtElection", e.CaughtUpOpTime.TS, e.CaughtUpOpTime.Term)
		dst = value.Append(dst, "numVotesNeeded", value.NewInt32(int32(c.Majority())))
		if m := c.Member(st.Self); m != nil {
			dst = value.Append(dst, "priorityAtElection", value.NewDouble(m.Priority))
		}
		dst = value.Append(dst, "electionTimeoutMillis", value.NewInt64(c.Settings.ElectionTimeout.Milliseconds()))
		dst = value.Append(dst, "wMajorityWriteAvailabilityDate", value.NewTime(e.PrimarySince))
		return value.End(dst, m)
	}
	if voted := c.Member(int(e.LastVotedFor)); st.Role == replication.Secondary && voted != nil && e.LastVoteTerm > 0 {
		dst, m := value.BeginKey(dst, value.Document, "electionParticipantMetrics")
		dst = value.Append(dst, "votedForCandidate", value.NewBool(true))
		dst = value.Append(dst, "electionTerm", value.NewInt64(e.LastVoteTerm))
		dst = value.Append(dst, "electionCandidateMemberId", value.NewInt32(int32(voted.ID)))
		if m := c.Member(st.Self); m != nil {
			dst = value.Append(dst, "priorityAtElection", value.NewDouble(m.Priority))
		}
		return value.End(dst, m)
	}
	return dst
}

func syncSourceOf(st *replication.Status, id int) int {
	for i := range st.Members {
		if st.Members[i].ID == id {
			return st.Members[i].SyncSource
		}
	}
	return replication.NoMember
}

func appendSyncSource(dst []byte, c *replication.SetConfig, id int) []byte {
	host := ""
	if m := c.Member(id); m != nil {
		host = m.Host
	} else {
		id = replication.NoMember
	}
	dst = value.Append(dst, "syncSourceHost", value.NewString(host))
	return value.Append(dst, "syncSourceId", value.NewInt32(int32(id)))
}

// memberStatus returns one element of replSetGetStatus.members.
func (r *Membership) memberStatus(st *replication.Status, m *replication.MemberStatus, c *replication.SetConfig) []byte {
	role, health := m.Role, 1.0
	if !m.Healthy && !m.Self {
		health = 0
		if role != replication.Unknown {
			role = replication.Down
		}
	}
	uptime := m.Uptime
	if m.Self {
		uptime = r.conf.Now().Sub(r.conf.Service.Started)
	}
	applied := m.Applied
	if health == 0 {
		applied = replication.OpTime{Term: replication.NoTerm}
	}
	dst, mark := value.Begin(nil)
	dst = value.Append(dst, "_id", value.NewInt32(int32(m.ID)))
	dst = value.Append(dst, "name", value.NewString(m.Host))
	dst = value.Append(dst, "health", value.NewDouble(health))
	dst = value.Append(dst, "state", value.NewInt32(int32(role)))
	dst = value.Append(dst, "stateStr", value.NewString(role.String()))
	dst = value.Append(dst, "uptime", value.NewInt32(int32(uptime.Seconds())))
	dst = appendOpTime(dst, "optime", applied.TS, applied.Term)
	if !m.Self {
		dst = appendOpTime(dst, "optimeDurable", m.Durable.TS, m.Durable.Term)
	}
	dst = value.Append(dst, "optimeDate", wallOf(applied))
	if !m.Self {
		dst = value.Append(dst, "optimeDurableDate", wallOf(m.Durable))
	}
	dst = appendOpTime(dst, "optimeWritten", applied.TS, applied.Term)
	dst = value.Append(dst, "optimeWrittenDate", wallOf(applied))
	dst = value.Append(dst, "lastAppliedWallTime", wallOf(m.Applied))
	dst = value.Append(dst, "lastDurableWallTime", wallOf(m.Durable))
	dst = value.Append(dst, "lastWrittenWallTime", wallOf(m.Applied))
	if !m.Self {
		dst = value.Append(dst, "lastHeartbeat", dateOrZero(m.LastSent))
		dst = value.Append(dst, "lastHeartbeatRecv", dateOrZero(m.LastReceived))
		dst = value.Append(dst, "pingMs", value.NewInt64(m.Ping.Milliseconds()))
		dst = value.Append(dst, "lastHeartbeatMessage", value.NewString(m.Error))
	}
	dst = appendSyncSource(dst, c, m.SyncSource)
	dst = value.Append(dst, "infoMessage", value.NewString(""))
	if role == replication.Primary {
		dst = value.Append(dst, "electionTime", m.ElectionTS.Value())
		dst = value.Append(dst, "electionDate", dateOrZero(m.ElectedAt))
	}
	dst = value.Append(dst, "configVersion", value.NewInt32(int32(m.ConfigVersion)))
	dst = value.Append(dst, "configTerm", value.NewInt64(m.ConfigTerm))
	if m.Self {
		dst = value.Append(dst, "self", value.NewBool(true))
		dst = value.Append(dst, "lastHeartbeatMessage", value.NewString(""))
	}
	return value.End(dst, mark)
}

// dateOrZero returns a time, the epoch if it is zero.
func dateOrZero(t time.Time) value.Value {
	if t.IsZero() {
		return value.NewDateTime(0)
	}
	return value.NewTime(t)
}

// ElectionMetrics returns serverStatus.electionMetrics.
func (r *Membership) ElectionMetrics() []byte {
	if r.Name == "" {
		return nil
	}
	st := r.Status()
	e := &st.Elections
	count := func(name string, called, won int64) value.Field {
		return value.F(name, value.NewDocument(value.Doc(longField("called", called), longField("successful", won))))
	}
	return value.Doc(
		count("stepUpCmd", e.StepUpCalled, e.StepUpWon), count("priorityTakeover", e.TakeoverCalled, e.TakeoverWon), count("catchUpTakeover", 0, 0),
		count("electionTimeout", e.Called, e.Won), count("freezeTimeout", 0, 0), longField("numStepDownsCausedByHigherTerm", e.StepDowns),
		longField("numCatchUps", 0), longField("numCatchUpsSucceeded", 0), longField("numCatchUpsAlreadyCaughtUp", e.CaughtUp), longField("numCatchUpsSkipped", 0),
		longField("numCatchUpsTimedOut", 0), longField("numCatchUpsFailedWithError", 0), longField("numCatchUpsFailedWithNewTerm", 0),
		longField("numCatchUpsFailedWithReplSetAbortPrimaryCatchUpCmd", 0), value.F("averageCatchUpOps", value.NewDouble(0)))
}

// FlowControl returns serverStatus.flowControl.
func (r *Membership) FlowControl() []byte {
	if r.Name == "" {
		return nil
	}
	st := r.Status()
	f := &st.Flow
	rate := f.Tickets
	if rate == 0 {
		rate = unlimitedTickets
	}
	return value.Doc(value.F("enabled", value.NewBool(f.Enabled)), value.F("targetRateLimit", value.NewInt32(int32(rate))),
		longField("timeAcquiringMicros", f.AcquiredMS*1000), value.F("locksPerKiloOp", value.NewDouble(0)), value.F("sustainerRate", value.NewInt32(0)),
		value.F("isLagged", value.NewBool(f.Lagged)), value.F("isLaggedCount", value.NewInt32(int32(f.LaggedCount))), longField("isLaggedTimeMicros", f.LaggedMicros))
}

// unlimitedTickets is the rate limit that is shown if there is none.
const unlimitedTickets = 1000000000

func longField(name string, v int64) value.Field { return value.F(name, value.NewInt64(v)) }
