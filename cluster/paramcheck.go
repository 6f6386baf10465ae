package cluster

import (
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkDescriptor limits the length of automationServiceDescriptor.
func checkDescriptor(_, v value.Value) (value.Value, error) {
	if len(v.Bytes()) > 64 {
		return v, mongoerr.New(mongoerr.Overflow, "Value for parameter automationServiceDescriptor must be no more than 64 bytes")
	}
	return v, nil
}

// logComponents is the tree of log components, by the names the log and logComponentVerbosity use.
var logComponents = map[string][]string{
	"": {"accessControl", "assert", "command", "control", "executor", "geo", "globalIndex", "index", "network", "processHealth",
		"query", "queryStats", "replication", "resharding", "sharding", "storage", "streams", "write", "ftdc", "tracking",
		"transaction", "tenantMigration", "test"},
	"network":     {"asio", "bridge", "connectionPool"},
	"query":       {"optimizer", "ce", "rejected"},
	"replication": {"election", "heartbeats", "initialSync", "rollback"},
	"sharding":    {"rangeDeleter", "shardingCatalogRefresh", "migration", "reshard", "migrationPerf"},
	"storage":     {"journal", "recovery", "wt"},
}

func defaultLogVerbosity() []byte {
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "verbosity", value.NewInt32(0))
	for _, c := range logComponents[""] {
		var inner int
		dst, inner = value.BeginKey(dst, value.Document, c)
		dst = value.Append(dst, "verbosity", value.NewInt32(-1))
		for _, s := range logComponents[c] {
			dst = value.Append(dst, s, value.NewDocument(value.Doc(value.F("verbosity", value.NewInt32(-1)))))
		}
		dst = value.End(dst, inner)
	}
	return value.End(dst, m)
}

// checkLogVerbosity merges a (possibly partial) logComponentVerbosity into the old one; unknown components are refused.
func checkLogVerbosity(old, v value.Value) (value.Value, error) {
	if v.T != value.Document {
		return v, mongoerr.Newf(mongoerr.TypeMismatch, "log component verbosity is not a BSON object: %s", v.T.Name())
	}
	if err := checkComponents("", v.Doc()); err != nil {
		return v, err
	}
	return value.NewDocument(mergeVerbosity(old.Doc(), v.Doc())), nil
}

func checkComponents(parent string, doc []byte) error {
	for k, e := range value.Elements(doc) {
		if k == "verbosity" {
			if !e.T.Numeric() {
				return mongoerr.Newf(mongoerr.BadValue, "Expected verbosity to be a number, found %s", e.T.Name())
			}
			if f := e.AsFloat64(); !(f >= -1<<31 && f <= 1<<31-1) {
				return mongoerr.Newf(mongoerr.BadValue, "Verbosity %v is out of range", f)
			}
			continue
		}
		known := false
		for _, c := range logComponents[parent] {
			known = known || c == k
		}
		if !known {
			return mongoerr.Newf(mongoerr.BadValue, "Invalid component name %s", k)
		}
		switch {
		case e.T.Numeric():
		case e.T == value.Document:
			if err := checkComponents(k, e.Doc()); err != nil {
				return err
			}
		default:
			return mongoerr.Newf(mongoerr.BadValue, "Invalid type %s for component %s", e.T.Name(), k)
		}
	}
	return nil
}

// mergeVerbosity writes the members of change over those of base; a bare number means {verbosity: number}.
func mergeVerbosity(base, change []byte) []byte {
	dst, m := value.Begin(nil)
	for k, b := range value.Elements(base) {
		c := value.Lookup(change, k)
		switch {
		case c.IsMissing():
		case b.T == value.Document && c.T == value.Document:
			b = value.NewDocument(mergeVerbosity(b.Doc(), c.Doc()))
		case b.T == value.Document:
			b = value.NewDocument(mergeVerbosity(b.Doc(), value.Doc(value.F("verbosity", c))))
		default:
			b = value.NewInt32(int32(clampToInt64(c)))
		}
		dst = value.Append(dst, k, b)
	}
	return value.End(dst, m)
}

// checkMonitorProtocol accepts the two protocols for monitoring members of sets.
func checkMonitorProtocol(_, v value.Value) (value.Value, error) {
	if s := v.Str(); s != "streamable" && s != "sdam" {
		return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for replicaSetMonitorProtocol: %s, expected streamable or sdam", s)
	}
	return v, nil
}

func checkPoolMatching(_, v value.Value) (value.Value, error) {
	switch s := v.Str(); s {
	case "automatic", "disabled", "matchPrimaryNode", "matchBusiestNode":
		return v, nil
	default:
		return v, mongoerr.Newf(mongoerr.BadValue, "Unrecognized replica set matching policy '%s': it is automatic, disabled, matchPrimaryNode or matchBusiestNode", s)
	}
}

// checkRate refuses values that are not a rate; an infinite rate becomes the largest number.
func checkRate(_, v value.Value) (value.Value, error) {
	if f := v.AsFloat64(); f <= 0 {
		return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for a rate or its burst: %v is not greater than 0", f)
	}
	return value.NewDouble(min(v.AsFloat64(), math.MaxFloat64)), nil
}

// checkBypass checks {ranges: [addresses and ranges of them in CIDR notation]}.
func checkBypass(_, v value.Value) (value.Value, error) {
	if v.T != value.Document {
		return v, mongoerr.Newf(mongoerr.BadValue, "Expected an object with the field 'ranges', found %s", v.T.Name())
	}
	for k, e := range value.Elements(v.Doc()) {
		if k != "ranges" || e.T != value.Array && !e.IsNullish() {
			return v, mongoerr.Newf(mongoerr.BadValue, "Expected an object with the field 'ranges', an array, found '%s' of type %s", k, e.T.Name())
		}
		for _, r := range value.Values(e.Doc()) {
			if _, err := ParseRange(r.Str()); r.T != value.String || err != nil {
				return v, mongoerr.Newf(mongoerr.BadValue, "Neither an address nor a range of addresses in CIDR notation: %s", value.Show(r))
			}
		}
	}
	return v, nil
}

// ParseRange reads an address, or a range of addresses in CIDR notation. IPv4 addresses within IPv6 are those of IPv4.
func ParseRange(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	r, err := netip.ParsePrefix(text)
	if err == nil && r.Addr().Is4In6() && r.Bits() >= 96 {
		r = netip.PrefixFrom(r.Addr().Unmap(), r.Bits()-96)
	}
	return r, err
}

func checkQueryFramework(_, v value.Value) (value.Value, error) {
	switch s := v.Str(); s {
	case "forceClassicEngine", "trySbeRestricted", "trySbeEngine":
		return v, nil
	default:
		return v, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'internalQueryFrameworkControl' is not a valid value.", s)
	}
}

// ParseMemory reads an amount of memory: a percentage of total ("1%") or a number of KB, MB or GB ("200MB").
func ParseMemory(text string, total int64) (bytes int64, ok bool) {
	digits := strings.TrimRight(text, "%KMGBkmgb")
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if err != nil || !(n >= 0 && n < 1<<40) {
		return 0, false
	}
	switch strings.ToUpper(text[len(digits):]) {
	case "%":
		return int64(n / 100 * float64(total)), n <= 100
	case "KB":
		return int64(n * (1 << 10)), true
	case "MB":
		return int64(n * (1 << 20)), true
	case "GB":
		return int64(n * (1 << 30)), n < 1<<20
	}
	return 0, false
}

// checkMemory checks a parameter that is an amount of memory.
func checkMemory(_, v value.Value) (value.Value, error) {
	if _, ok := ParseMemory(v.Str(), 1<<30); !ok {
		return v, mongoerr.Newf(mongoerr.BadValue, "Unable to parse '%s' as an amount of memory: a percentage (1%%), or a number of KB, MB or GB", v.Str())
	}
	return v, nil
}

// checkMechanisms accepts names of mechanisms. Unknown ones enable nothing.
func checkMechanisms(_, v value.Value) (value.Value, error) {
	if v.T != value.Array {
		return v, mongoerr.Newf(mongoerr.BadValue, "authenticationMechanisms must be a list of names, found %s", v.T.Name())
	}
	for _, m := range value.Values(v.Doc()) {
		if m.T != value.String {
			return v, mongoerr.Newf(mongoerr.BadValue, "authenticationMechanisms must be a list of names, found %s", value.Show(v))
		}
	}
	return v, nil
}

// checkClusterAuthMode lets a running cluster migrate from a key file to certificates (manual: Upgrade from Keyfile Authentication to
// X.509), and nothing else.
func checkClusterAuthMode(old, v value.Value) (value.Value, error) {
	was, to := old.Str(), v.Str()
	next := map[string]string{"sendKeyFile": "sendX509", "sendX509": "x509"}
	if was != to && next[was] != to {
		return v, mongoerr.Newf(mongoerr.BadValue, "Illegal state transition for clusterAuthMode, change from %s to %s", was, to)
	}
	return v, nil
}

// checkTLSMode allows a server that accepts TLS connections to require more of them at run time, as an upgrade
// does (manual: Upgrade a Cluster to Use TLS/SSL), and nothing else: without certificates TLS cannot be enabled,
// and it cannot be relaxed again.
func checkTLSMode(old, v value.Value) (value.Value, error) {
	was, to := old.Str(), v.Str()
	next := map[string]string{"allowTLS": "preferTLS", "preferTLS": "requireTLS", "allowSSL": "preferSSL", "preferSSL": "requireSSL"}
	if was != to && next[was] != to {
		return v, mongoerr.Newf(mongoerr.BadValue, "Illegal state transition for tlsMode, attempt to change from %s to %s", was, to)
	}
	return v, nil
}
