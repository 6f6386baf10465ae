package main

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/chaos"
)

// text, number and truth make the set functions of options with common types.
func text(at func(*config) *string) func(*config, string) error {
	return func(c *config, v string) error { *at(c) = v; return nil }
}

func number(name string, low, high int64, put func(*config, int64)) func(*config, string) error {
	return func(c *config, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return usagef("Error parsing command line: the argument ('%s') for option '--%s' is invalid", v, name)
		}
		if n < low || n > high {
			return usagef("Error parsing command line: --%s has to be between %d and %d, not %d", name, low, high, n)
		}
		put(c, n)
		return nil
	}
}

func truth(put func(*config, bool)) func(*config, string) error {
	return func(c *config, v string) error {
		switch v {
		case "true", "1", "enabled":
			put(c, true)
		case "false", "0", "disabled":
			put(c, false)
		default:
			return usagef("Error parsing options: expected true or false, found '%s'", v)
		}
		return nil
	}
}

// only accepts one of the values; others would request something that this server does not have.
func only(name string, values ...string) func(*config, string) error {
	return func(_ *config, v string) error {
		for _, ok := range values {
			if v == ok {
				return nil
			}
		}
		return usagef("NotImplemented: --%s %s is not supported; supported: %s", name, v, strings.Join(values, ", "))
	}
}

// refused returns the set function of an option that is not implemented and must not be ignored: the server does not start.
func refused(name, why string) func(*config, string) error {
	return func(*config, string) error { return &refusal{"NotImplemented: --" + name + " is refused: " + why} }
}

func setAuthorization(c *config, v string) error {
	if v == "disabled" || v == "false" {
		c.Security.Auth = false
		return nil
	}
	if v == "enabled" || v == "true" {
		c.Security.Auth = true
		return nil
	}
	return usagef("Error parsing options: expected enabled or disabled for security.authorization, found '%s'", v)
}

func setClusterAuth(c *config, v string) error {
	c.Security.ClusterAuth = v
	return only("clusterAuthMode", "keyFile", "sendKeyFile", "sendX509", "x509")(c, v)
}

func setVerbosity(c *config, v string) error {
	if n, err := strconv.Atoi(v); err == nil {
		c.Log.Verbosity = n
		return nil
	}
	if strings.Trim(v, "v") != "" {
		return truth(func(c *config, on bool) {
			if on {
				c.Log.Verbosity = 1
			}
		})(c, v)
	}
	c.Log.Verbosity = min(c.Log.Verbosity+len(v), 5)
	return nil
}

func setParameter(c *config, v string) error {
	name, val, ok := strings.Cut(v, "=")
	if !ok || name == "" {
		return usagef("Error parsing command line: Illegal option assignment: \"%s\"", v)
	}
	c.Parameters = append(c.Parameters, pair{strings.TrimSpace(name), strings.TrimSpace(val)})
	return nil
}

// setSocketMode reads permissions, which are octal with or without a leading 0.
func setSocketMode(c *config, v string) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(v, "0o"), 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return usagef("Error parsing command line: --filePermissions has to be the permissions of a file, such as 0700, not %s", v)
	}
	c.Unix.Mode = os.FileMode(n)
	return nil
}

func setBindIP(c *config, v string) error {
	c.BindIP = nil
	for _, h := range strings.Split(v, ",") {
		switch h = strings.TrimSpace(h); h {
		case "":
			return usagef("BadValue: bind_ip has an empty host")
		case "*":
			c.BindAll = true
		default:
			c.BindIP = append(c.BindIP, h)
		}
	}
	return nil
}

func setRole(c *config, v string) error {
	switch v {
	case "shardsvr":
		c.ShardSvr = true
	case "configsvr":
		c.ConfigSvr = true
	default:
		return usagef("BadValue: sharding.clusterRole must be one of 'configsvr', 'shardsvr'")
	}
	return nil
}

func setCompressors(c *config, v string) error {
	c.Compressors = []string{}
	if v == "disabled" || v == "" {
		return nil
	}
	for _, name := range strings.Split(v, ",") {
		switch name = strings.TrimSpace(name); name {
		case "snappy", "zlib", "zstd":
			c.Compressors = append(c.Compressors, name)
		case "noop":
		default:
			return usagef("BadValue: Invalid network message compressor specified in configuration: %s", name)
		}
	}
	return nil
}

func setSlowRate(c *config, v string) (err error) {
	if c.SlowRate, err = strconv.ParseFloat(v, 64); err != nil || c.SlowRate < 0 || c.SlowRate > 1 {
		return usagef("BadValue: --slowOpSampleRate takes a number from 0 to 1")
	}
	return nil
}

const maxPort = 65535

// processOptions are the options of the process rather than of its storage.
var processOptions = []option{
	{name: "help", short: "h", kind: flagKind, on: isBoth | isStart, help: "Show this usage information", set: truth(func(c *config, v bool) { c.Help = v })},
	{name: "version", kind: flagKind, on: isBoth | isStart, help: "Show version information", set: truth(func(c *config, v bool) { c.Version = v })},
	{name: "config", short: "f", path: "config", kind: textKind, on: isBoth, help: "Configuration file specifying additional options", set: text(func(c *config) *string { return &c.File })},
	{name: "port", path: "net.port", kind: numberKind, on: isBoth | isStart, help: "Specify port number - 27017 by default", set: number("port", 0, maxPort, func(c *config, n int64) { c.Port = int(n) })},
	{name: "bind_ip", path: "net.bindIp", kind: textKind, on: isBoth | isStart, help: "Comma separated list of ip addresses to listen on - localhost by default", set: setBindIP},
	{name: "bind_ip_all", path: "net.bindIpAll", kind: flagKind, on: isBoth | isStart, help: "Bind to all ip addresses", set: truth(func(c *config, v bool) { c.BindAll = v })},
	{name: "ipv6", path: "net.ipv6", kind: flagKind, on: isBoth, help: "Enable IPv6 support (disabled by default)", set: truth(func(c *config, v bool) { c.IPv6 = v })},
	{name: "listenBacklog", path: "net.listenBacklog", kind: numberKind, on: isBoth, help: "Taken for compatibility: the backlog is always the system's maximum"},
	{name: "maxConns", path: "net.maxIncomingConnections", kind: numberKind, on: isBoth, help: "Max number of simultaneous connections", set: number("maxConns", 5, 1<<31-1, func(c *config, n int64) { c.MaxConns = int(n) })},
	{path: "net.maxIncomingConnectionsOverride", kind: textKind, on: isBoth, help: "Addresses, ranges and UNIX sockets exempt from the connection limit", set: setOverride},
	{name: "nounixsocket", path: "net.unixDomainSocket.enabled", yes: "false", kind: flagKind, on: isBoth, help: "Disable listening on unix sockets", set: truth(func(c *config, v bool) { c.Unix.On = v })},
	{name: "unixSocketPrefix", path: "net.unixDomainSocket.pathPrefix", kind: textKind, on: isBoth, help: "Alternative directory for UNIX domain sockets (defaults to /tmp)", set: text(func(c *config) *string { return &c.Unix.Dir })},
	{name: "filePermissions", path: "net.unixDomainSocket.filePermissions", kind: textKind, on: isBoth, help: "Permissions of UNIX domain sockets (defaults to 0700)", set: setSocketMode},
	{name: "networkMessageCompressors", path: "net.compression.compressors", kind: textKind, on: isBoth, help: "Comma-separated list of compressors to use for network messages", set: setCompressors},
	{name: "verbose", short: "v", path: "systemLog.verbosity", kind: countKind, on: isBoth, help: "Be more verbose (include multiple times for more verbosity e.g. -vvvvv)", set: setVerbosity},
	{name: "quiet", path: "systemLog.quiet", kind: flagKind, on: isBoth, help: "Quieter output", set: truth(func(c *config, v bool) { c.Log.Quiet = v })},
	{name: "logpath", path: "systemLog.path", kind: textKind, on: isBoth | isStart, help: "Log file to send write to instead of stdout - has to be a file, not directory", set: text(func(c *config) *string { return &c.Log.Path })},
	{name: "logappend", path: "systemLog.logAppend", kind: flagKind, on: isBoth, help: "Append to logpath instead of over-writing", set: truth(func(c *config, v bool) { c.Log.Append = v })},
	{name: "logRotate", path: "systemLog.logRotate", kind: textKind, on: isBoth, help: "Set the log rotation behavior (rename|reopen)", set: func(c *config, v string) error {
		c.Log.Reopen = v == "reopen"
		return only("logRotate", "rename", "reopen")(c, v)
	}},
	{name: "timeStampFormat", path: "systemLog.timeStampFormat", kind: textKind, on: isBoth, help: "Desired format for timestamps in log messages (iso8601-utc)", set: only("timeStampFormat", "iso8601-utc")},
	{name: "syslog", path: "systemLog.destination", yes: "syslog", kind: flagKind, on: isBoth, help: "Log to system's syslog facility instead of file or stdout", set: func(c *config, v string) error {
		c.Log.Syslog = v == "syslog"
		return only("syslog", "syslog", "file")(c, v)
	}},
	{name: "syslogFacility", path: "systemLog.syslogFacility", kind: textKind, on: isBoth, help: "syslog facility used for mongodb syslog message", set: only("syslogFacility", "user")},
	{name: "fork", path: "processManagement.fork", kind: flagKind, on: isBoth, help: "Fork server process", set: truth(func(c *config, v bool) { c.Fork = v })},
	{name: "pidfilepath", path: "processManagement.pidFilePath", kind: textKind, on: isBoth | isStart, help: "Full path to pidfile (if not set, no pidfile is created)", set: text(func(c *config) *string { return &c.PIDFile })},
	{name: "timeZoneInfo", path: "processManagement.timeZoneInfo", kind: textKind, on: isBoth, help: "Taken for compatibility: the time zone database is built in"},
	{name: "redactClientLogData", path: "security.redactClientLogData", kind: flagKind, on: isBoth, help: "Redact client data written to the diagnostics log", set: truth(func(c *config, v bool) {
		_ = setParameter(c, "redactClientLogData="+strconv.FormatBool(v))
	})},
	{name: "setParameter", path: "setParameter", kind: listKind, on: isBoth | isStart, help: "Set a configurable parameter", set: setParameter},
	{name: "keyFile", path: "security.keyFile", kind: textKind, on: isBoth | isStart, help: "Private key for cluster authentication", set: text(func(c *config) *string { return &c.Security.KeyFile })},
	{name: "clusterAuthMode", path: "security.clusterAuthMode", kind: textKind, on: isBoth, help: "Authentication mode used for cluster authentication (keyFile|sendKeyFile|sendX509|x509)", set: setClusterAuth},
	{name: "auth", path: "security.authorization", yes: "enabled", kind: flagKind, on: isMongod | isStart, help: "Run with security", set: setAuthorization},
	{name: "transitionToAuth", path: "security.transitionToAuth", kind: flagKind, on: isBoth, help: "For rolling upgrades to access control: accept both authenticated and unauthenticated connections, and enforce no authorization", set: truth(func(c *config, v bool) { c.Security.Transition = v })},
	{name: "noauth", path: "security.authorization", yes: "disabled", kind: flagKind, on: isMongod | isStart, help: "Run without security", set: setAuthorization},
	{name: "noscripting", path: "security.javascriptEnabled", yes: "false", kind: flagKind, on: isBoth, help: "Disable scripting engine", set: truth(func(c *config, v bool) { c.NoScripts = !v })},
	{name: "nohttpinterface", kind: flagKind, on: isBoth, help: "Taken for compatibility: there is no such interface"},
}

// storageOptions are the options of a data-bearing server or a router.
var storageOptions = []option{
	{name: "dbpath", path: "storage.dbPath", kind: textKind, on: isMongod, help: "Directory for datafiles - defaults to /data/db", set: text(func(c *config) *string { return &c.DBPath })},
	{name: "memory", path: "storage.inMemory.enabled", kind: flagKind, on: isMongod, help: "Keep everything in memory, nothing on disk", set: truth(func(c *config, v bool) { c.Memory = v })},
	{name: "replSet", path: "replication.replSetName", kind: textKind, on: isMongod, help: "arg is <setname>[/<optionalseedhostlist>]", set: text(func(c *config) *string { return &c.ReplSet })},
	{path: "replication.replSet", kind: textKind, on: isMongod, help: "The older name of replication.replSetName", set: text(func(c *config) *string { return &c.ReplSet })},
	{name: "oplogSize", path: "replication.oplogSizeMB", kind: numberKind, on: isMongod, help: "Size to use (in MB) for replication op log", set: number("oplogSize", 1, 1<<40, func(c *config, n int64) { c.OplogMB = n })},
	{name: "shardsvr", path: "sharding.clusterRole", yes: "shardsvr", kind: flagKind, on: isMongod, help: "Declare this is a shard db of a cluster; default port 27018", set: setRole},
	{name: "configsvr", path: "sharding.clusterRole", yes: "configsvr", kind: flagKind, on: isMongod, help: "Declare this is a config db of a cluster; default port 27019; default dir /data/configdb", set: setRole},
	{name: "configdb", path: "sharding.configDB", kind: textKind, on: isMongos, help: "Connection string for communicating with config servers: <config replset name>/<host1:port>,<host2:port>,[...]", set: text(func(c *config) *string { return &c.ConfigDB })},
	{name: "localThreshold", path: "replication.localPingThresholdMs", kind: numberKind, on: isMongos, help: "Taken for compatibility: secondaries are chosen without it"},
	{name: "shutdown", kind: flagKind, on: isMongod, help: "Kill a running server (for init scripts)", set: truth(func(c *config, v bool) { c.Shutdown = v })},
	{name: "repair", kind: flagKind, on: isMongod, help: "Validate all collections of a standalone server's directory, repair what is wrong in their indexes, and exit", set: truth(func(c *config, v bool) { c.Repair = v })},
	{name: "slowms", path: "operationProfiling.slowOpThresholdMs", kind: numberKind, on: isMongod, help: "Value of slow for profile and console log", set: number("slowms", -1<<31, 1<<31-1, func(c *config, n int64) { c.SlowMS = n })},
	{name: "slowOpSampleRate", path: "operationProfiling.slowOpSampleRate", kind: textKind, on: isMongod, help: "Fraction of slow ops to include in the profile and console log", set: setSlowRate},
	{name: "slowms", path: "operationProfiling.slowOpThresholdMs", kind: numberKind, on: isMongos, help: "Taken for compatibility: the shards log slow operations"},
	{name: "slowOpSampleRate", path: "operationProfiling.slowOpSampleRate", kind: textKind, on: isMongos, help: "Taken for compatibility: the shards log slow operations"},
	{name: "profile", kind: numberKind, on: isMongod, help: "0=off 1=slow, 2=all", set: number("profile", 0, 2, func(c *config, n int64) { c.Profile = int(n) })},
	{path: "operationProfiling.mode", kind: textKind, on: isMongod, help: "What the profiler records (off|slowOp|all)", set: func(c *config, v string) error {
		c.Profile = map[string]int{"slowOp": 1, "all": 2}[v]
		return only("operationProfiling.mode", "off", "slowOp", "all")(c, v)
	}},
	{name: "notablescan", kind: flagKind, on: isMongod, help: "Do not allow table scans", set: truth(func(c *config, v bool) { c.NoTabScan = v })},
	{name: "storageEngine", path: "storage.engine", kind: textKind, on: isMongod, help: "Taken for compatibility: there is one storage engine"},
	{name: "wiredTigerCacheSizeGB", path: "storage.wiredTiger.engineConfig.cacheSizeGB", kind: textKind, on: isMongod, help: "Taken for compatibility"},
	{name: "wiredTigerCacheSizePct", path: "storage.wiredTiger.engineConfig.cacheSizePct", kind: textKind, on: isMongod, help: "Taken for compatibility"},
	{name: "wiredTigerJournalCompressor", path: "storage.wiredTiger.engineConfig.journalCompressor", kind: textKind, on: isMongod, help: "Taken for compatibility"},
	{name: "wiredTigerCollectionBlockCompressor", path: "storage.wiredTiger.collectionConfig.blockCompressor", kind: textKind, on: isMongod, help: "Taken for compatibility"},
	{name: "wiredTigerIndexPrefixCompression", path: "storage.wiredTiger.indexConfig.prefixCompression", kind: textKind, on: isMongod, help: "Taken for compatibility"},
	{name: "wiredTigerDirectoryForIndexes", path: "storage.wiredTiger.engineConfig.directoryForIndexes", kind: flagKind, on: isMongod, help: "Taken for compatibility"},
	{name: "directoryperdb", path: "storage.directoryPerDB", kind: flagKind, on: isMongod, help: "Taken for compatibility"},
	{name: "journal", path: "storage.journal.enabled", kind: flagKind, on: isMongod, help: "Taken for compatibility: the journal is always on"},
	{name: "nojournal", path: "storage.journal.enabled", yes: "false", kind: flagKind, on: isMongod, help: "Taken for compatibility: the journal is always on"},
	{name: "journalCommitInterval", path: "storage.journal.commitIntervalMs", kind: numberKind, on: isMongod, help: "Taken for compatibility: writes are committed in groups at once"},
	{name: "syncdelay", path: "storage.syncPeriodSecs", kind: textKind, on: isMongod, help: "Taken for compatibility"},
	{name: "smallfiles", kind: flagKind, on: isMongod, help: "Taken for compatibility"},
	{name: "noprealloc", kind: flagKind, on: isMongod, help: "Taken for compatibility"},
	{name: "enableMajorityReadConcern", path: "replication.enableMajorityReadConcern", kind: textKind, on: isMongod, help: "Taken for compatibility: majority reads are always on"},
}

// startOptions are the options of `shoal start`.
var startOptions = []option{
	{name: "listen", path: "net.listen", kind: listKind, on: isStart, arg: "host:port", help: "Address to listen on, 127.0.0.1:27017 by default; may be given several times", set: func(c *config, v string) error {
		c.Listen = append(c.Listen, v)
		return nil
	}},
	{name: "data-dir", path: "storage.dbPath", kind: textKind, on: isStart, arg: "DIR", help: "Directory that holds the data, ./data by default; it is created", set: text(func(c *config) *string { return &c.DBPath })},
	{name: "dbpath", path: "storage.dbPath", kind: textKind, on: isStart, arg: "DIR", help: "The same as --data-dir", set: text(func(c *config) *string { return &c.DBPath })},
	{name: "memory", path: "storage.inMemory.enabled", kind: flagKind, on: isStart, help: "Keep everything in memory, nothing on disk", set: truth(func(c *config, v bool) { c.Memory = v })},
	{name: "topology", path: "cluster.topology", kind: textKind, on: isStart, arg: "sharded|replset|standalone", help: "What to run: a sharded cluster (default), one replica set rs0, or a standalone server", set: text(func(c *config) *string { return &c.Topology })},
	{name: "shards", path: "cluster.shards", kind: numberKind, on: isStart, arg: "N", help: "Number of shards, 2 by default; 0 with --config-shard alone", set: number("shards", 0, 100, func(c *config, n int64) { c.Shards = int(n) })},
	{name: "config-shard", path: "cluster.configShard", kind: flagKind, on: isStart, help: "The config server is a shard, too, in addition to --shards", set: truth(func(c *config, v bool) { c.ConfigShard = v })},
	{name: "routers", path: "cluster.routers", kind: numberKind, on: isStart, arg: "N", help: "Number of routers, on consecutive ports, 1 by default", set: number("routers", 1, 100, func(c *config, n int64) { c.Routers = int(n) })},
	{name: "replicas", path: "cluster.replicas", kind: numberKind, on: isStart, arg: "N", help: "Members of each replica set, 1 by default", set: number("replicas", 1, 7, func(c *config, n int64) { c.Replicas = int(n) })},
	{name: "node-port", path: "cluster.nodePort", kind: numberKind, on: isStart, arg: "BASE", help: "Members listen, too, on consecutive ports from this one", set: number("node-port", 1, maxPort, func(c *config, n int64) { c.NodePort = int(n) })},
	{name: "host", path: "cluster.host", kind: textKind, on: isStart, arg: "NAME", help: "Name or address by which clients reach the servers, for replica set configurations; by default that of --listen, or the machine's host name if it listens on all interfaces", set: text(func(c *config) *string { return &c.Host })},
	{name: "chaos", path: "chaos.profile", kind: textKind, on: isStart, arg: strings.ReplaceAll(chaos.ProfileNames(), ", ", "|"), help: "Inject faults while an application's tests run; requires enableTestCommands", set: text(func(c *config) *string { return &c.Chaos.Profile })},
	{name: "chaos-seed", path: "chaos.seed", kind: numberKind, on: isStart, arg: "N", help: "Seed of the random steps; random by default, and written to the log", set: number("chaos-seed", 0, math.MaxInt64, func(c *config, n int64) { c.Chaos.Seed = n })},
	{name: "chaos-replay", path: "chaos.replay", kind: textKind, on: isStart, arg: "FILE", help: "Repeat the steps of a chaos log", set: text(func(c *config) *string { return &c.Chaos.Replay })},
	{name: "chaos-log", path: "chaos.log", kind: textKind, on: isStart, arg: "FILE", help: "File for the steps of chaos; chaos.log in the data directory by default", set: text(func(c *config) *string { return &c.Chaos.Log })},
	{name: "set-parameter", path: "setParameter", kind: listKind, on: isStart, arg: "name=value", help: "Set a server parameter; may be given several times", set: setParameter},
	{name: "log-level", path: "systemLog.verbosity", kind: textKind, on: isStart, arg: "0..5|info|debug", help: "Verbosity of the log", set: setLogLevel},
	{name: "log-format", path: "systemLog.format", kind: textKind, on: isStart, arg: "json|text", help: "Format of the log; json by default, but on a terminal a few plain lines instead of the log", set: func(c *config, v string) error {
		c.Log.Text = v == "text"
		return only("log-format", "json", "text")(c, v)
	}},
	{name: "log-path", path: "systemLog.path", kind: textKind, on: isStart, arg: "FILE", help: "Write the log to a file instead of stdout", set: text(func(c *config) *string { return &c.Log.Path })},
	{name: "quiet", path: "systemLog.quiet", kind: flagKind, on: isStart, help: "No log lines for opened and closed connections", set: truth(func(c *config, v bool) { c.Log.Quiet = v })},
	{name: "pid-file", path: "processManagement.pidFilePath", kind: textKind, on: isStart, arg: "FILE", help: "Write the process id to a file", set: text(func(c *config) *string { return &c.PIDFile })},
}

func setLogLevel(c *config, v string) error {
	switch v {
	case "error", "warn", "warning", "info":
		c.Log.Verbosity = 0
		return nil
	case "debug":
		c.Log.Verbosity = 1
		return nil
	}
	return number("log-level", 0, 5, func(c *config, n int64) { c.Log.Verbosity = int(n) })(c, v)
}

var (
	mongodTable = newTable(slices.Concat(processOptions, encryptionOptions(), auditOptions, storageOptions), isMongod)
	mongosTable = newTable(slices.Concat(processOptions, encryptionOptions(), auditOptions, storageOptions), isMongos)
	startTable  = newTable(slices.Concat(startOptions, processOptions, encryptionOptions(), auditOptions), isStart)
)
