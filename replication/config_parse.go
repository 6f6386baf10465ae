package replication

import (
	"fmt"
	"math"
	"net"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ParseConfig reads a configuration document, fills in the defaults and checks that it is valid by itself. Errors are
// InvalidReplicaSetConfig, as the commands report them.
func ParseConfig(doc []byte) (*SetConfig, error) {
	c, err := parseConfig(doc)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		if mongoerr.CodeOf(err) == mongoerr.NotImplemented {
			return nil, err
		}
		return nil, mongoerr.New(mongoerr.InvalidReplicaSetConfig, mongoerr.From(err).Message)
	}
	return c, nil
}

// reader reads the fields of one document of a configuration; the first error sticks.
type reader struct {
	of  string // the document's type, for messages
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, format, args...)
	}
}

func (r *reader) wrong(key string, v value.Value, want string) {
	r.fail("BSON field '%s.%s' is the wrong type '%s', expected type%s", r.of, key, v.T.Name(), want)
}

const (
	anyNumber = "s '[long, int, decimal, double]'"
	anyBool   = "s '[bool, long, int, decimal, double]'"
)

func (r *reader) str(key string, v value.Value) string {
	if v.T != value.String {
		r.wrong(key, v, " 'string'")
		return ""
	}
	return v.Str()
}

func (r *reader) doc(key string, v value.Value) []byte {
	if v.T != value.Document {
		r.wrong(key, v, " 'object'")
		return nil
	}
	return v.Doc()
}

func (r *reader) flag(key string, v value.Value) bool {
	if v.T != value.Boolean && !v.T.Numeric() {
		r.wrong(key, v, anyBool)
		return false
	}
	return v.Truthy()
}

// integer reads a number in [low, high].
func (r *reader) integer(key string, v value.Value, low, high int64) int64 {
	if !v.T.Numeric() {
		r.wrong(key, v, anyNumber)
		return low
	}
	i, ok := v.Truncate()
	if !ok {
		i = math.MaxInt64
		if v.AsFloat64() < 0 {
			i = math.MinInt64
		}
	}
	switch {
	case i < low:
		r.fail("BSON field '%s' value must be >= %d, actual value '%d'", key, low, i)
	case i > high:
		r.fail("BSON field '%s' value must be <= %d, actual value '%d'", key, high, i)
	}
	return i
}

func (r *reader) millis(key string, v value.Value, low int64) time.Duration {
	return time.Duration(r.integer(key, v, low, math.MaxInt32)) * time.Millisecond
}

func (r *reader) unknown(key string) {
	r.fail("BSON field '%s.%s' is an unknown field.", r.of, key)
}

func (r *reader) required(have bool, key string) {
	if !have {
		r.fail("BSON field '%s.%s' is missing but a required field", r.of, key)
	}
}

func parseConfig(doc []byte) (*SetConfig, error) {
	r := &reader{of: "ReplSetConfig"}
	c := &SetConfig{Version: 1, Term: NoTerm, ProtocolVersion: 1, MajorityJournal: true, Settings: DefaultSettings()}
	var named, members bool
	for k, v := range value.Elements(doc) {
		switch k {
		case "_id":
			c.Name, named = r.str(k, v), true
		case "version":
			c.Version = r.integer(k, v, 1, math.MaxInt32)
		case "term":
			c.Term = r.integer(k, v, NoTerm, math.MaxInt64)
		case "configsvr":
			c.ConfigServer = r.flag(k, v)
		case "protocolVersion":
			c.ProtocolVersion = r.integer(k, v, 0, math.MaxInt32)
		case "writeConcernMajorityJournalDefault":
			c.MajorityJournal = r.flag(k, v)
		case "members":
			members = true
			if v.T != value.Array {
				r.wrong(k, v, " 'array'")
				break
			}
			for i, e := range value.Values(v.Doc()) {
				if d := r.doc(fmt.Sprintf("members.%d", i), e); d != nil && r.err == nil {
					m, err := parseMember(d)
					if err != nil {
						r.err = err
					}
					c.Members = append(c.Members, m)
				}
			}
		case "settings":
			if d := r.doc(k, v); d != nil && r.err == nil {
				c.Settings, r.err = parseSettings(d)
			}
		default:
			r.unknown(k)
		}
	}
	r.required(named, "_id")
	r.required(members, "members")
	return c, r.err
}

func parseMember(doc []byte) (MemberConfig, error) {
	r := &reader{of: "MemberConfig"}
	m := MemberConfig{Priority: 1, Votes: 1, BuildIndexes: true}
	var id, host, weighed bool
	for k, v := range value.Elements(doc) {
		switch k {
		case "_id":
			m.ID, id = int(r.integer(k, v, 0, 255)), true
		case "host":
			m.Host, host = withPort(r.str(k, v)), true
			if m.Host == "" && r.err == nil {
				r.fail("Empty host component parsing HostAndPort from \"\"")
			}
		case "priority":
			if weighed = true; !v.T.Numeric() {
				r.wrong(k, v, anyNumber)
			}
			m.Priority = v.AsFloat64()
		case "votes":
			m.Votes = int(r.integer(k, v, math.MinInt32, math.MaxInt32))
		case "hidden":
			m.Hidden = r.flag(k, v)
		case "arbiterOnly":
			m.ArbiterOnly = r.flag(k, v)
		case "buildIndexes":
			m.BuildIndexes = r.flag(k, v)
		case "secondaryDelaySecs":
			m.DelaySecs = r.integer(k, v, math.MinInt32, math.MaxInt32)
		case "slaveDelay":
			r.fail("slaveDelay was replaced by secondaryDelaySecs")
		case "tags":
			m.Tags = r.tags(k, v)
		case "horizons":
			m.Horizons = r.tags(k, v)
			for _, h := range m.Horizons {
				if _, _, err := net.SplitHostPort(h.Value); err != nil {
					r.fail("horizon field %s of member %d must be a host and a port, found %q", h.Name, m.ID, h.Value)
				}
			}
		case "newlyAdded":
		default:
			r.unknown(k)
		}
	}
	r.required(id, "_id")
	r.required(host, "host")
	if m.ArbiterOnly && !weighed {
		m.Priority = 0
	}
	return m, r.err
}

// withPort adds the default port to a host without one.
func withPort(host string) string {
	if host == "" || strings.HasSuffix(host, "]") || !strings.Contains(host, ":") {
		if host != "" {
			host += ":27017"
		}
	}
	return host
}

func (r *reader) tags(key string, v value.Value) (tags []Tag) {
	for k, v := range value.Elements(r.doc(key, v)) {
		if v.T != value.String {
			r.fail("%s.%s field has non-string value of type %s", key, k, v.T.Name())
		}
		tags = append(tags, Tag{k, v.Str()})
	}
	return tags
}

func parseSettings(doc []byte) (SetSettings, error) {
	r := &reader{of: "ReplSetConfigSettings"}
	s := DefaultSettings()
	for k, v := range value.Elements(doc) {
		switch k {
		case "chainingAllowed":
			s.ChainingAllowed = r.flag(k, v)
		case "heartbeatIntervalMillis":
			s.HeartbeatInterval = r.millis(k, v, 1)
		case "heartbeatTimeoutSecs":
			s.HeartbeatTimeout = time.Duration(r.integer(k, v, 1, math.MaxInt32)) * time.Second
		case "electionTimeoutMillis":
			s.ElectionTimeout = r.millis(k, v, 1)
		case "catchUpTimeoutMillis":
			s.CatchUpTimeout = r.millis(k, v, -1)
		case "catchUpTakeoverDelayMillis":
			s.CatchUpTakeoverDelay = r.millis(k, v, -1)
		case "getLastErrorModes":
			s.Modes = r.modes(v)
		case "getLastErrorDefaults":
			d := r.doc(k, v)
			if w := value.Lookup(d, "w"); !w.IsMissing() && !(w.T.Numeric() && w.AsFloat64() == 1) || value.Lookup(d, "wtimeout").AsFloat64() != 0 ||
				value.Lookup(d, "j").Truthy() {
				r.fail("Failed to parse 'getLastErrorDefaults': a default write concern other than {w: 1, wtimeout: 0} is set by the setDefaultRWConcern command")
			}
		case "replicaSetId":
			if v.T != value.ObjectID {
				r.wrong(k, v, " 'objectId'")
				break
			}
			if s.ID = v.ObjectID(); s.ID == [12]byte{} {
				r.fail("replicaSetId field value cannot be null")
			}
		default:
			r.unknown(k)
		}
	}
	return s, r.err
}

func (r *reader) modes(v value.Value) (modes []WriteMode) {
	for name, needs := range value.Elements(r.doc("getLastErrorModes", v)) {
		m := WriteMode{Name: name}
		if needs.T != value.Document {
			r.fail("Expected 'getLastErrorModes.%s' to be an object, but found type %s", name, needs.T.Name())
			return nil
		}
		for tag, n := range value.Elements(needs.Doc()) {
			count, ok := n.Truncate()
			switch {
			case !n.T.Numeric() || !ok:
				r.fail("Expected 'getLastErrorModes.%s.%s' to be a number, but found type %s", name, tag, n.T.Name())
			case count <= 0:
				r.fail("Value of 'getLastErrorModes.%s.%s' must be positive, but found %d", name, tag, count)
			}
			m.Needs = append(m.Needs, TagNeed{tag, int(min(count, math.MaxInt32))})
		}
		modes = append(modes, m)
	}
	return modes
}
