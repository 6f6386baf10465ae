package replication

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// Limits of a set, as documented.
const (
	MaxMembers       = 50
	MaxVotingMembers = 7
	maxPriority      = 1000
)

// SetConfig is the configuration of a replica set, the document of replSetGetConfig. A parsed one is complete
// (defaults filled in), valid by itself (ParseConfig checks it) and never changed: to change it, make a Clone.
type SetConfig struct {
	Name            string
	Version         int64
	Term            int64 // the term it was made in; NoTerm of a forced one
	ConfigServer    bool
	ProtocolVersion int64
	// MajorityJournal is writeConcernMajorityJournalDefault. False asks for less than what is done: the log of a set of
	// several members is always durable on a majority before a write is acknowledged.
	MajorityJournal bool
	Members         []MemberConfig
	Settings        SetSettings
}

// NoTerm is the term of a configuration that was not made by an elected primary.
const NoTerm = -1

// MemberConfig is one member of a configuration.
type MemberConfig struct {
	ID           int
	Host         string
	Priority     float64
	Votes        int
	Hidden       bool
	Tags         []Tag
	Horizons     []Tag // name → host:port, in the order given
	ArbiterOnly  bool
	BuildIndexes bool
	DelaySecs    int64
}

// Tag is a name and a value of a member's tags or horizons.
type Tag struct{ Name, Value string }

// SetSettings are the settings of a configuration.
type SetSettings struct {
	ChainingAllowed      bool
	HeartbeatInterval    time.Duration
	HeartbeatTimeout     time.Duration
	ElectionTimeout      time.Duration
	CatchUpTimeout       time.Duration // negative: no limit
	CatchUpTakeoverDelay time.Duration // negative: never
	Modes                []WriteMode
	ID                   [12]byte // replicaSetId; zero before the set is initiated
}

// WriteMode is a custom write concern: for each tag name, how many different values must have the write.
type WriteMode struct {
	Name  string
	Needs []TagNeed
}

// TagNeed is one constraint of a WriteMode.
type TagNeed struct {
	Tag   string
	Count int
}

// Voter reports whether the member votes.
func (m *MemberConfig) Voter() bool { return m.Votes > 0 }

// Electable reports whether the member may become primary.
func (m *MemberConfig) Electable() bool { return m.Votes > 0 && m.Priority > 0 && !m.ArbiterOnly }

// Tag returns the value of the member's tag of that name, or "".
func (m *MemberConfig) Tag(name string) string { return tagValue(m.Tags, name) }

// Horizon returns the address under which clients of that horizon know the member; its host if it has none.
func (m *MemberConfig) Horizon(name string) string {
	if h := tagValue(m.Horizons, name); h != "" {
		return h
	}
	return m.Host
}

func tagValue(tags []Tag, name string) string {
	for i := range tags {
		if tags[i].Name == name {
			return tags[i].Value
		}
	}
	return ""
}

// Member finds a member by its _id; nil if there is none.
func (c *SetConfig) Member(id int) *MemberConfig {
	for i := range c.Members {
		if c.Members[i].ID == id {
			return &c.Members[i]
		}
	}
	return nil
}

// delayOf returns the seconds by which a member is delayed.
func (c *SetConfig) delayOf(id int) uint32 {
	if m := c.Member(id); m != nil {
		return uint32(m.DelaySecs)
	}
	return 0
}

// ByHost finds a member by its host; nil if there is none.
func (c *SetConfig) ByHost(host string) *MemberConfig {
	for i := range c.Members {
		if c.Members[i].Host == host {
			return &c.Members[i]
		}
	}
	return nil
}

// Voters counts the voting members.
func (c *SetConfig) Voters() (n int) {
	for i := range c.Members {
		if c.Members[i].Voter() {
			n++
		}
	}
	return n
}

// Majority returns the number of voting members that form a majority.
func (c *SetConfig) Majority() int { return c.Voters()/2 + 1 }

// WritableVoters counts the voting members that hold data.
func (c *SetConfig) WritableVoters() (n int) {
	for i := range c.Members {
		if c.Members[i].Voter() && !c.Members[i].ArbiterOnly {
			n++
		}
	}
	return n
}

// Newer reports whether c replaces o: by term first, then by version. A forced configuration has no term and is
// compared by version alone.
func (c *SetConfig) Newer(o *SetConfig) bool {
	if o == nil {
		return true
	}
	if c.Term != NoTerm && o.Term != NoTerm && c.Term != o.Term {
		return c.Term > o.Term
	}
	return c.Version > o.Version
}

// Clone returns a copy that may be modified.
func (c *SetConfig) Clone() *SetConfig {
	n := *c
	n.Members = slices.Clone(c.Members)
	n.Settings.Modes = slices.Clone(c.Settings.Modes)
	return &n
}

// DefaultSettings returns the settings of a configuration that names none.
func DefaultSettings() SetSettings {
	return SetSettings{
		ChainingAllowed: true, HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 10 * time.Second,
		ElectionTimeout: 10 * time.Second, CatchUpTimeout: -time.Millisecond, CatchUpTakeoverDelay: 30 * time.Second,
	}
}

// NewConfig returns the first configuration of a set whose members have the default properties.
func NewConfig(name string, hosts ...string) *SetConfig {
	c := &SetConfig{Name: name, Version: 1, Term: NoTerm, ProtocolVersion: 1, MajorityJournal: true, Settings: DefaultSettings()}
	for i, h := range hosts {
		c.Members = append(c.Members, MemberConfig{ID: i, Host: h, Priority: 1, Votes: 1, BuildIndexes: true})
	}
	return c
}

// Doc returns the configuration as replSetGetConfig shows it.
func (c *SetConfig) Doc() []byte {
	out, m := value.Begin(nil)
	out = value.Append(out, "_id", value.NewString(c.Name))
	out = value.Append(out, "version", number(c.Version))
	out = value.Append(out, "term", value.NewInt64(c.Term))
	if c.ConfigServer {
		out = value.Append(out, "configsvr", value.NewBool(true))
	}
	out, am := value.BeginKey(out, value.Array, "members")
	for i := range c.Members {
		out = value.AppendIndex(out, i, value.NewDocument(c.Members[i].doc()))
	}
	out = value.End(out, am)
	out = value.Append(out, "protocolVersion", value.NewInt64(c.ProtocolVersion))
	out = value.Append(out, "writeConcernMajorityJournalDefault", value.NewBool(c.MajorityJournal))
	out = value.Append(out, "settings", value.NewDocument(c.Settings.doc()))
	return value.End(out, m)
}

func (m *MemberConfig) doc() []byte {
	out, mark := value.Begin(nil)
	out = value.Append(out, "_id", value.NewInt32(int32(m.ID)))
	out = value.Append(out, "host", value.NewString(m.Host))
	out = value.Append(out, "arbiterOnly", value.NewBool(m.ArbiterOnly))
	out = value.Append(out, "buildIndexes", value.NewBool(m.BuildIndexes))
	out = value.Append(out, "hidden", value.NewBool(m.Hidden))
	out = value.Append(out, "priority", priorityValue(m.Priority))
	out = value.Append(out, "tags", value.NewDocument(TagsDoc(m.Tags)))
	if len(m.Horizons) > 0 {
		out = value.Append(out, "horizons", value.NewDocument(TagsDoc(m.Horizons)))
	}
	out = value.Append(out, "secondaryDelaySecs", value.NewInt64(m.DelaySecs))
	out = value.Append(out, "votes", value.NewInt32(int32(m.Votes)))
	return value.End(out, mark)
}

func (s *SetSettings) doc() []byte {
	ms := func(d time.Duration) value.Value { return value.NewInt32(int32(d / time.Millisecond)) }
	modes, mm := value.Begin(nil)
	for _, m := range s.Modes {
		var needs []value.Field
		for _, n := range m.Needs {
			needs = append(needs, value.F(n.Tag, value.NewInt32(int32(n.Count))))
		}
		modes = value.Append(modes, m.Name, value.NewDocument(value.Doc(needs...)))
	}
	fields := []value.Field{
		value.F("chainingAllowed", value.NewBool(s.ChainingAllowed)), value.F("heartbeatIntervalMillis", ms(s.HeartbeatInterval)),
		value.F("heartbeatTimeoutSecs", value.NewInt32(int32(s.HeartbeatTimeout/time.Second))), value.F("electionTimeoutMillis", ms(s.ElectionTimeout)),
		value.F("catchUpTimeoutMillis", ms(s.CatchUpTimeout)), value.F("catchUpTakeoverDelayMillis", ms(s.CatchUpTakeoverDelay)),
		value.F("getLastErrorModes", value.NewDocument(value.End(modes, mm))),
	}
	if s.ID != [12]byte{} {
		fields = append(fields, value.F("replicaSetId", value.NewObjectID(s.ID)))
	}
	return value.Doc(fields...)
}

// TagsDoc returns tags as a document.
func TagsDoc(tags []Tag) []byte {
	out, m := value.Begin(nil)
	for _, t := range tags {
		out = value.Append(out, t.Name, value.NewString(t.Value))
	}
	return value.End(out, m)
}

func number(v int64) value.Value {
	if v == int64(int32(v)) {
		return value.NewInt32(int32(v))
	}
	return value.NewInt64(v)
}

func priorityValue(p float64) value.Value {
	if p == math.Trunc(p) {
		return value.NewInt32(int32(p))
	}
	return value.NewDouble(p)
}

// Satisfied reports whether the members for which has returns true satisfy wc. Members are identified by _id.
func (c *SetConfig) Satisfied(wc WriteConcern, has func(id int) bool) bool {
	if wc.Tag != "" {
		mode := c.mode(wc.Tag)
		return mode != nil && c.modeMet(mode, has)
	}
	n, voters := 0, 0
	for i := range c.Members {
		m := &c.Members[i]
		if m.ArbiterOnly || !has(m.ID) {
			continue
		}
		if n++; m.Voter() {
			voters++
		}
	}
	if wc.W < 0 {
		return voters >= min(c.Majority(), c.WritableVoters())
	}
	return n >= wc.W
}

// mode finds a custom write concern.
func (c *SetConfig) mode(name string) *WriteMode {
	for i := range c.Settings.Modes {
		if c.Settings.Modes[i].Name == name {
			return &c.Settings.Modes[i]
		}
	}
	return nil
}

// modeMet counts the different values of each tag among the members that have the write.
func (c *SetConfig) modeMet(mode *WriteMode, has func(id int) bool) bool {
	for _, need := range mode.Needs {
		var seen []string
		for i := range c.Members {
			m := &c.Members[i]
			v := m.Tag(need.Tag)
			if v != "" && !m.ArbiterOnly && !slices.Contains(seen, v) && has(m.ID) {
				seen = append(seen, v)
			}
		}
		if len(seen) < need.Count {
			return false
		}
	}
	return true
}

// MajorityOf returns the newest point (timestamp or index) that a majority of the voters has reached.
func MajorityOf[T ~uint64 | ~int64](c *SetConfig, point func(id int) T) (zero T) {
	var points []T
	for i := range c.Members {
		if c.Members[i].Voter() && !c.Members[i].ArbiterOnly {
			points = append(points, point(c.Members[i].ID))
		}
	}
	need := min(c.Majority(), len(points))
	if need == 0 {
		return zero
	}
	sort.Slice(points, func(i, j int) bool { return points[i] > points[j] })
	return points[need-1]
}
