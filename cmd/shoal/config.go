package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/console"
)

// pair is a server parameter given at startup.
type pair struct{ Name, Value string }

// config is the content of the command line and the configuration file. The server options and those of `shoal
// start` share it: a process is one or the other (Program).
type config struct {
	Program program
	Argv    []string
	Parsed  []byte // getCmdLineOpts.parsed

	// Where and what to listen on.
	Port    int      // -1: not given
	BindIP  []string // hosts, in order
	BindAll bool
	IPv6    bool
	Unix    struct { // a socket for every port
		On   bool
		Dir  string
		Mode os.FileMode
	}
	Listen []string // host:port, for `shoal start`
	admitted

	TLS tlsOptions

	Compressors []string

	// One server.
	DBPath    string
	Memory    bool // nothing on disk
	ReplSet   string
	ShardSvr  bool
	ConfigSvr bool
	ConfigDB  string // mongos: set/host:port,…
	OplogMB   int64
	NoScripts bool
	NoTabScan bool
	profiling

	inOneProcess

	Parameters []pair
	Security   security

	// The process.
	logs
	Fork    bool
	PIDFile string
	File    string // --config
	insteadOfServing
}

// insteadOfServing has the options by which a process does something else and ends.
type insteadOfServing struct {
	Help     bool
	Version  bool
	Shutdown bool
	Repair   bool
}

// inOneProcess describes a cluster in one process.
type inOneProcess struct {
	Topology string // sharded, replset, standalone
	Shards   int
	// ConfigShard makes the config server a shard. Without it one that is a shard already stays one.
	ConfigShard bool
	Routers     int
	Replicas    int
	Host        string // the name by which clients reach the servers; empty: see publicNames
	NodePort    int    // first port of the members; 0: reached only within the process
	Chaos       chaosOptions
}

// admitted limits connections.
type admitted struct {
	MaxConns         int
	MaxConnsOverride []string // exempt from MaxConns: addresses, ranges of them, and paths of UNIX sockets
}

// logs has the options of the process's logs.
type logs struct {
	Log   console.Options
	Audit console.AuditOptions
}

// profiling determines which operations are logged and recorded.
type profiling struct {
	SlowMS   int64
	SlowRate float64
	Profile  int
}

// security configures authentication and authorization.
type security struct {
	Auth       bool   // requests need authorization
	KeyFile    string // with which members authenticate
	Transition bool   // authenticated and unauthenticated connections are accepted
	// ClusterAuth is how members authenticate, one of command.MemberModes; empty if it is not set.
	ClusterAuth string
}

// enforced reports whether requests need authorization: a key file implies it.
func (s *security) enforced() bool {
	return (s.Auth || s.KeyFile != "" || s.byCertificate()) && !s.Transition
}

// byCertificate reports whether members may authenticate by certificates.
func (s *security) byCertificate() bool { return command.MemberModes[s.ClusterAuth] != command.ByKey }

// checkMembers refuses settings of members' authentication that are inconsistent.
func (c *config) checkMembers() error {
	s := &c.Security
	mode := command.MemberModes[s.ClusterAuth]
	switch {
	case s.ClusterAuth != "" && mode != command.ByCertificate && s.KeyFile == "":
		return errors.New("BadValue: clusterAuthMode " + s.ClusterAuth + " needs a key file")
	case mode != command.ByKey && c.TLS.Mode == tlsDisabled:
		return errors.New("BadValue: need to enable TLS via the sslMode/tlsMode flag for clusterAuthMode " + s.ClusterAuth)
	case mode >= command.SendX509 && (c.TLS.Mode == tlsAllow || c.TLS.Withhold):
		return errors.New("BadValue: clusterAuthMode " + s.ClusterAuth + " makes members present certificates: it needs tlsMode preferTLS or requireTLS, and no tlsWithholdClientCertificate")
	case mode >= command.SendKey && c.TLS.CAFile == "" && c.TLS.ClusterCAFile == "":
		return errors.New("BadValue: clusterAuthMode " + s.ClusterAuth + " needs a tlsCAFile with the authorities whose certificates are trusted")
	case s.Transition && s.KeyFile == "" && mode == command.ByKey:
		return errors.New("BadValue: --transitionToAuth must be used with keyFile or x509 authentication")
	case s.Auth && c.ReplSet != "" && s.KeyFile == "" && mode == command.ByKey:
		return errors.New("BadValue: security.keyFile is required when authorization is enabled with replica sets")
	}
	return nil
}

func newConfig(p program) *config {
	c := &config{
		Program: p, Port: -1, DBPath: "/data/db", profiling: profiling{SlowMS: 100, SlowRate: 1},
		inOneProcess: inOneProcess{Topology: "sharded", Shards: 2, Routers: 1, Replicas: 1, Chaos: chaosOptions{Seed: -1}}, Compressors: []string{"snappy", "zstd", "zlib"},
	}
	c.Unix.On, c.Unix.Dir, c.Unix.Mode = p != isStart, os.TempDir(), 0o700
	return c
}

// defaultPort returns the default port of a server of this role.
func (c *config) defaultPort() int {
	switch {
	case c.ConfigSvr:
		return 27019
	case c.ShardSvr:
		return 27018
	}
	return 27017
}

// finish checks options against each other and sets what follows from other options.
func (c *config) finish() error {
	if c.Port < 0 {
		c.Port = c.defaultPort()
	}
	if c.ConfigSvr && !c.Memory && c.DBPath == "/data/db" && !c.has("storage.dbPath") {
		c.DBPath = "/data/configdb"
	}
	if _, _, err := c.fileMask(); err != nil {
		return err
	}
	if err := c.TLS.check(c.Parameters); err != nil {
		return err
	}
	if err := c.checkMemberCertificates(); err != nil {
		return err
	}
	if c.Program == isMongod || c.Program == isStart && c.Topology != "sharded" {
		for _, p := range c.Parameters {
			if p.Name == "loadBalancerPort" && p.Value != "0" {
				return errors.New("BadValue: loadBalancerPort is for routers: this process has none")
			}
		}
	}
	c.Audit.Reopen = c.Log.Reopen
	if err := c.Audit.Check(); err != nil {
		return err
	}
	if c.Program == isStart {
		return c.finishStart()
	}
	switch {
	case c.ConfigSvr && c.ShardSvr:
		return errors.New("BadValue: can't be both a config server and a shard server")
	case (c.ConfigSvr || c.ShardSvr) && c.ReplSet == "":
		return errors.New("BadValue: Cannot start a " + map[bool]string{true: "configsvr", false: "shardsvr"}[c.ConfigSvr] +
			" as a standalone server. Please start this node as a replica set member: use the option --replSet")
	case c.Repair && c.ReplSet != "":
		return errors.New("BadValue: --repair is for standalone servers: start it without --replSet, or start the member with an empty directory, so that it copies " +
			"the data of the others")
	case c.Repair && c.Memory:
		return errors.New("BadValue: --repair has nothing to repair with --memory")
	case c.Program == isMongos && c.ConfigDB == "":
		return errors.New("BadValue: error: no args for --configdb")
	case c.BindAll && c.has("net.bindIpAll") && c.has("net.bindIp"):
		return errors.New("BadValue: net.bindIp and net.bindIpAll cannot both be given")
	case c.Fork && c.Log.Path == "" && !c.Log.Syslog:
		return errors.New("BadValue: --fork has to be used with --logpath or --syslog")
	}
	if err := c.checkMembers(); err != nil {
		return err
	}
	if c.Program == isMongos && !strings.Contains(c.ConfigDB, "/") {
		return errors.New("BadValue: configdb supports only replica set connection string")
	}
	if set, _, more := strings.Cut(c.ReplSet, "/"); more {
		c.ReplSet = set // set/host,host: the set's configuration has the hosts
	}
	return nil
}

func (c *config) finishStart() error {
	if len(c.Listen) > 0 && (c.has("net.port") || c.has("net.bindIp") || c.has("net.bindIpAll")) {
		return errors.New("--listen gives whole addresses: it cannot be combined with --port, --bind_ip and --bind_ip_all")
	}
	if len(c.Listen) == 0 {
		c.Listen = c.Addrs()
	}
	switch {
	case strings.ContainsAny(c.Host, " /") || strings.Contains(c.Host, ":") && net.ParseIP(c.Host) == nil:
		return fmt.Errorf("--host takes a host name or an address without a port, not %q", c.Host)
	case isWildcard(c.Host) && c.has("cluster.host"):
		return errors.New("--host takes a name or an address that clients can connect to")
	case c.Topology != "sharded" && c.Topology != "replset" && c.Topology != "standalone":
		return fmt.Errorf("--topology takes sharded, replset or standalone, not %q", c.Topology)
	case c.ConfigShard && c.Topology != "sharded":
		return errors.New("--config-shard is for --topology sharded: other topologies have no config server")
	case c.Shards < 1 && !c.ConfigShard || c.Routers < 1 || c.Replicas < 1:
		return errors.New("--shards, --routers and --replicas take at least 1; --shards takes 0 with --config-shard")
	case c.Replicas > 7:
		return errors.New("--replicas takes at most 7: a set has no more voting members")
	case c.Topology == "standalone" && c.Replicas > 1:
		return errors.New("--topology standalone is one server: it takes no --replicas")
	}
	return nil
}

// stores returns the number of data-bearing servers that the process runs.
func (c *config) stores() int {
	switch {
	case c.Program != isStart || c.Topology == "standalone":
		return 1
	case c.Topology == "replset":
		return c.Replicas
	}
	return (c.Shards + 1) * c.Replicas
}

// firstPort returns the port that the log's first line shows.
func (c *config) firstPort() int {
	if c.Program != isStart {
		return c.Port
	}
	_, port, err := net.SplitHostPort(c.Listen[0])
	if err != nil {
		return c.Port
	}
	n, _ := strconv.Atoi(port)
	return n
}

// Addrs returns the addresses that a server listens on: TCP ones, then UNIX sockets.
func (c *config) Addrs() []string {
	hosts := c.BindIP
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"}
	}
	if c.BindAll {
		hosts = []string{"0.0.0.0"}
		if c.IPv6 {
			hosts = append(hosts, "::")
		}
	}
	var out []string
	for _, h := range hosts {
		switch {
		case strings.HasPrefix(h, "/"):
			out = append(out, h)
		case strings.EqualFold(h, "localhost"):
			out = append(out, net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port)))
		case h == "*":
			out = append(out, net.JoinHostPort("0.0.0.0", strconv.Itoa(c.Port)))
		default:
			out = append(out, net.JoinHostPort(h, strconv.Itoa(c.Port)))
		}
	}
	if c.Unix.On && c.Port > 0 {
		out = append(out, fmt.Sprintf("%s/mongodb-%d.sock", strings.TrimSuffix(c.Unix.Dir, "/"), c.Port))
	}
	return dedup(out)
}

// firstHost returns the address for a set that is initiated without a configuration: the first address listened
// on that other machines may reach, this machine's name if that is the wildcard address, or a loopback address if
// there is nothing else.
func (c *config) firstHost(hostname string) string {
	if c.BindAll {
		return advertised(hostname, c.Port)
	}
	loopback := "localhost"
	for i, h := range c.BindIP {
		ip := net.ParseIP(h)
		local := strings.HasPrefix(h, "/") || strings.EqualFold(h, "localhost") || ip != nil && ip.IsLoopback()
		switch {
		case local && i == 0 && !strings.HasPrefix(h, "/"):
			loopback = h
		case local:
		case ip != nil && ip.IsUnspecified():
			return advertised(hostname, c.Port)
		default:
			return advertised(h, c.Port)
		}
	}
	return advertised(loopback, c.Port)
}

func dedup(list []string) []string {
	seen := map[string]bool{}
	out := list[:0]
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// oneProcess reports whether all members are in this process. If others may join, they need a key file.
func (c *config) oneProcess() bool { return c.Program == isStart && c.Security.KeyFile == "" }
