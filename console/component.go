package console

import (
	"strings"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
)

// Component is the part of the server that a line comes from.
type Component uint8

// The components; a dotted one inherits its parent's verbosity.
const (
	Default Component = iota
	Access
	Command
	Control
	Election
	Executor
	Geo
	Index
	InitialSync
	Journal
	Migration
	Network
	Query
	QueryStats
	Recovery
	Replication
	Heartbeats
	Resharding
	Rollback
	Sharding
	CatalogRefresh
	Storage
	Transaction
	Write
	FTDC
	ConnPool
	numComponents
)

type componentInfo struct {
	short  string // in the field c
	path   string // in the parameter logComponentVerbosity
	parent Component
}

var components = [numComponents]componentInfo{
	Default:        {"-", "", Default},
	Access:         {"ACCESS", "accessControl", Default},
	Command:        {"COMMAND", "command", Default},
	Control:        {"CONTROL", "control", Default},
	Executor:       {"EXECUTOR", "executor", Default},
	Geo:            {"GEO", "geo", Default},
	Index:          {"INDEX", "index", Default},
	Network:        {"NETWORK", "network", Default},
	ConnPool:       {"CONNPOOL", "network.connectionPool", Network},
	Query:          {"QUERY", "query", Default},
	QueryStats:     {"QRYSTATS", "queryStats", Default},
	Replication:    {"REPL", "replication", Default},
	Election:       {"ELECTION", "replication.election", Replication},
	Heartbeats:     {"REPL_HB", "replication.heartbeats", Replication},
	InitialSync:    {"INITSYNC", "replication.initialSync", Replication},
	Rollback:       {"ROLLBACK", "replication.rollback", Replication},
	Sharding:       {"SHARDING", "sharding", Default},
	CatalogRefresh: {"SH_REFR", "sharding.shardingCatalogRefresh", Sharding},
	Migration:      {"MIGRATE", "sharding.migration", Sharding},
	Resharding:     {"RESHARD", "sharding.reshard", Sharding},
	Storage:        {"STORAGE", "storage", Default},
	Recovery:       {"RECOVERY", "storage.recovery", Storage},
	Journal:        {"JOURNAL", "storage.journal", Storage},
	Transaction:    {"TXN", "transaction", Default},
	Write:          {"WRITE", "write", Default},
	FTDC:           {"FTDC", "ftdc", Default},
}

const unset = -1 // takes the parent's verbosity

// levels holds the verbosities that are set, and the effective ones.
type levels struct {
	set       [numComponents]atomic.Int32
	effective [numComponents]atomic.Int32
}

func (l *levels) init() {
	for c := range l.set {
		l.set[c].Store(unset)
	}
	l.set[Default].Store(0)
	l.settle()
}

// settle computes the effective verbosity of every component.
func (l *levels) settle() {
	for c := range components {
		at := Component(c)
		v := l.set[at].Load()
		for v == unset {
			at = components[at].parent
			v = l.set[at].Load()
		}
		l.effective[c].Store(v)
	}
}

// findComponent finds a component by the path of logComponentVerbosity; "" or "default" is the root.
func findComponent(path string) (Component, bool) {
	if path == "default" {
		path = ""
	}
	for c := range components {
		if components[c].path == path {
			return Component(c), true
		}
	}
	return 0, false
}

// SetVerbosity sets a component's verbosity, 0 to 5, -1 to inherit; it reports whether there is such a component. The
// root has the path "".
func (l *Log) SetVerbosity(path string, v int) bool {
	c, ok := findComponent(path)
	if !ok {
		return false
	}
	l.levels.set[c].Store(int32(max(v, unset)))
	if c == Default && v < 0 {
		l.levels.set[c].Store(0)
	}
	l.levels.settle()
	return true
}

// Verbosity returns the verbosity that is set for a component: -1 if it inherits.
func (l *Log) Verbosity(path string) (int, bool) {
	c, ok := findComponent(path)
	if !ok {
		return 0, false
	}
	return int(l.levels.set[c].Load()), true
}

// AppendVerbosity appends the value of the parameter logComponentVerbosity, a document of nested components.
func (l *Log) AppendVerbosity(dst []byte) []byte { return l.appendChildren(dst, Default) }

func (l *Log) appendChildren(dst []byte, c Component) []byte {
	dst, mark := value.Begin(dst)
	dst = value.Append(dst, "verbosity", value.NewInt32(l.levels.set[c].Load()))
	for k := range components {
		child := Component(k)
		if child == Default || components[child].parent != c {
			continue
		}
		name := components[child].path
		name = name[strings.LastIndexByte(name, '.')+1:]
		dst = append(append(append(dst, byte(value.Document)), name...), 0)
		dst = l.appendChildren(dst, child)
	}
	return value.End(dst, mark)
}
