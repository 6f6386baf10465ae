package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire"
)

// asShoal makes the test binary behave as the real one, with roles that only listen.
const asShoal = "SHOAL_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	switch os.Getenv(asShoal) {
	case "":
		limitParallel()
	case asReaper:
		reap(os.Stdin)
		return
	case asWhole:
		os.Exit(run(os.Args, os.Stdout, os.Stderr, start))
	case asVolatile:
		os.Exit(run(os.Args, os.Stdout, os.Stderr, startVolatile))
	case asSlow:
		os.Exit(run(os.Args, os.Stdout, os.Stderr, endSlowly))
	default:
		os.Exit(run(os.Args, os.Stdout, os.Stderr, listenOnly))
	}
	os.Exit(m.Run())
}

// parallelTests is the number of parallel tests that run at a time. They wait for elections, timers and processes most of the time, while a test
// that measures time, memory or CPU is not parallel, and so runs before all of these, alone.
const parallelTests = 8

// limitParallel sets that number, unless the command line does.
func limitParallel() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(max(parallelTests, runtime.GOMAXPROCS(0))))
	}
}

type silent struct{ h *host }

func (s silent) Handle(_ *wire.Conn, m *wire.Message, r *wire.Reply) {
	if string(m.CommandName()) == "shutdown" {
		s.h.Shutdown()
	}
	r.Buf = append(r.Buf, m.Body...)
}
func (silent) HandleInline(*wire.Conn, *wire.Message, *wire.Reply) bool { return false }
func (silent) Opened(*wire.Conn)                                        {}
func (silent) Closed(*wire.Conn)                                        {}

// listenOnly stands in for the roles.
func listenOnly(c *config, h *host) (*roles, error) {
	addrs := c.Listen
	if c.Program != isStart {
		addrs = c.Addrs()
	}
	s, err := wire.Listen(wire.Options{Addrs: addrs}, silent{h})
	if err != nil {
		return nil, err
	}
	return &roles{Addrs: s.Addrs(), Stop: func(context.Context) error { s.Stop(time.Second); return nil }}, nil
}

func shoal(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Args[0] = name
	cmd.Env = append(os.Environ(), asShoal+"=1")
	return cmd
}

// started runs a program until it reports that it waits for connections.
func started(t *testing.T, name string, args ...string) (cmd *exec.Cmd, port int) {
	t.Helper()
	return startedWith(t, nil, name, args...)
}

// startedWith is started with more variables in the environment.
func startedWith(t *testing.T, env []string, name string, args ...string) (cmd *exec.Cmd, port int) {
	t.Helper()
	cmd = shoal(t, name, args...)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	reaped, err := reaps(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); reaped() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var l struct {
			ID   int
			Ctx  string
			Attr struct{ Port int }
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatalf("not JSON: %s", lines.Text())
		}
		if l.ID == 23016 {
			go func() {
				for lines.Scan() {
				}
			}()
			return cmd, l.Attr.Port
		}
	}
	t.Fatalf("%s %v ended before it was ready: %v", name, args, cmd.Wait())
	return nil, 0
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return -1
}

func TestCommandLines(t *testing.T) {
	for _, tc := range []struct {
		line string
		want func(*config) (got, want any)
	}{
		{"mongod", func(c *config) (any, any) {
			return []any{c.Port, c.DBPath, c.Addrs()}, []any{27017, "/data/db", []string{"127.0.0.1:27017", filepath.Join(os.TempDir(), "mongodb-27017.sock")}}
		}},
		{"mongod --configsvr --replSet cfg", func(c *config) (any, any) { return []any{c.Port, c.DBPath}, []any{27019, "/data/configdb"} }},
		{"mongod --shardsvr --replSet=rs0/a:1,b:2", func(c *config) (any, any) { return []any{c.Port, c.ReplSet}, []any{27018, "rs0"} }},
		{"mongod --bind_ip localhost,::1,10.0.0.1 --port 4 --nounixsocket", func(c *config) (any, any) {
			return c.Addrs(), []string{"127.0.0.1:4", "[::1]:4", "10.0.0.1:4"}
		}},
		{"mongod --bind_ip_all --nounixsocket --port 4", func(c *config) (any, any) { return c.Addrs(), []string{"0.0.0.0:4"} }},
		{"mongod --bind_ip_all --ipv6 --nounixsocket --port 4 --filePermissions 0770", func(c *config) (any, any) {
			return []any{c.Addrs(), c.Unix.Mode}, []any{[]string{"0.0.0.0:4", "[::]:4"}, os.FileMode(0o770)}
		}},
		{"mongod --filePermissions 644", func(c *config) (any, any) { return c.Unix.Mode, os.FileMode(0o644) }},
		{"mongod -vvv --setParameter a=1 --setParameter b=x=y", func(c *config) (any, any) {
			return []any{c.Log.Verbosity, c.Parameters}, []any{3, []pair{{"a", "1"}, {"b", "x=y"}}}
		}},
		{"mongod --storageEngine wiredTiger --wiredTigerCacheSizeGB 1 --noauth --syncdelay 0 --nojournal", func(c *config) (any, any) {
			return string(c.Parsed) != "", true
		}},
		{"mongos --configdb cfg/a:27019,b:27019 --port 0", func(c *config) (any, any) { return []any{c.ConfigDB, c.Port}, []any{"cfg/a:27019,b:27019", 0} }},
		{"start", func(c *config) (any, any) {
			return []any{c.Listen, c.DBPath, c.Topology, c.Shards}, []any{[]string{"127.0.0.1:27017"}, "data", "sharded", 2}
		}},
		{"start --port 5 --bind_ip 127.0.0.1,10.0.0.1 --dbpath d --setParameter a=1 --logpath l --pidfilepath p", func(c *config) (any, any) {
			return []any{c.Listen, c.DBPath, c.Parameters, c.Log.Path, c.PIDFile}, []any{[]string{"127.0.0.1:5", "10.0.0.1:5"}, "d", []pair{{"a", "1"}}, "l", "p"}
		}},
		{"start --bind_ip_all", func(c *config) (any, any) { return c.Listen, []string{"0.0.0.0:27017"} }},
		{"start --listen :1 --listen :2 --memory --topology replset --replicas 3 --node-port 30000 --set-parameter x=1 --log-level debug --log-format text", func(c *config) (any, any) {
			return []any{c.Listen, c.Memory, c.Replicas, c.NodePort, c.Parameters, c.Log.Verbosity, c.Log.Text},
				[]any{[]string{":1", ":2"}, true, 3, 30000, []pair{{"x", "1"}}, 1, true}
		}},
	} {
		words := strings.Fields(tc.line)
		c, err := parse(programs[words[0]], words[1:])
		if err != nil {
			t.Errorf("%s: %v", tc.line, err)
			continue
		}
		if got, want := tc.want(c); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", tc.line, got, want)
		}
	}
}

func TestWrongCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"mongod --nonsense":                          "Error parsing command line: unrecognised option '--nonsense'",
		"mongod --port":                              "Error parsing command line: the required argument for option '--port' is missing",
		"mongod --port abc":                          "Error parsing command line: the argument ('abc') for option '--port' is invalid",
		"mongod --port 1 --port 2":                   "Error parsing command line: Multiple occurrences of option \"--port\"",
		"mongod --fork=1":                            "Error parsing command line: option '--fork' does not take any arguments",
		"mongod extra":                               "Error parsing command line: too many positional options",
		"mongod --shardsvr":                          "BadValue: Cannot start a shardsvr as a standalone server",
		"start --listen :1 --port 2":                 "--listen gives whole addresses: it cannot be combined with --port, --bind_ip and --bind_ip_all",
		"mongod --fork":                              "BadValue: --fork has to be used with --logpath or --syslog",
		"mongod --tlsMode requireTLS":                "BadValue: need tlsCertificateKeyFile or tlsCertificateSelector when TLS is enabled",
		"mongod --tlsCAFile ca.pem":                  "BadValue: need to enable TLS via the sslMode/tlsMode flag when using TLS configuration parameters",
		"mongod --configdb a/b":                      "Error parsing command line: unrecognised option '--configdb'",
		"mongos":                                     "BadValue: error: no args for --configdb",
		"mongos --configdb a:1":                      "BadValue: configdb supports only replica set connection string",
		"start --topology ring":                      "--topology takes sharded, replset or standalone",
		"start --topology standalone --replicas 3":   "takes no --replicas",
		"start --shards 0":                           "--shards takes 0 with --config-shard",
		"start --shards 101":                         "--shards has to be between 0 and 100",
		"mongod --networkMessageCompressors bzip":    "BadValue: Invalid network message compressor",
		"mongod --config " + os.DevNull + "/nothing": "Error opening config file",
	} {
		words := strings.Fields(line)
		if _, err := parse(programs[words[0]], words[1:]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s", line, err, want)
		}
	}
}

func TestConfigurationFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	yaml := file("yaml", `
systemLog: {destination: file, path: /var/log/m.log, logAppend: true, verbosity: 2}
net:
  port: 4000
  bindIp: [127.0.0.1, "::1"]
  unixDomainSocket: {enabled: false}
storage:
  dbPath: /srv/data
  engine: wiredTiger
  wiredTiger: {engineConfig: {cacheSizeGB: 0.5}}
replication: {replSetName: rs1, oplogSizeMB: 100}
sharding: {clusterRole: shardsvr}
security: {authorization: disabled}
setParameter: {enableTestCommands: 1, ttlMonitorSleepSecs: 5}
`)
	ini := file("ini", "dbpath = /srv/data\nlogpath=/var/log/m.log # where\nlogappend = true\nport=4000\nverbose=vv\n"+
		"nounixsocket=true\nfork=false\nreplSet=rs1\nshardsvr=1\noplogSize=100\nbind_ip=127.0.0.1,::1\n"+
		"setParameter = enableTestCommands=1\nsetParameter = ttlMonitorSleepSecs=5\n")
	for _, path := range []string{yaml, ini} {
		c, err := parse(isMongod, []string{"--config", path, "--port", "5000"})
		if err != nil {
			t.Fatal(err)
		}
		got := []any{c.Addrs(), c.DBPath, c.Log.Path, c.Log.Append, c.Log.Verbosity, c.ReplSet, c.ShardSvr, c.OplogMB, c.Fork, c.Parameters}
		want := []any{[]string{"127.0.0.1:5000", "[::1]:5000"}, "/srv/data", "/var/log/m.log", true, 2, "rs1", true, int64(100), false,
			[]pair{{"enableTestCommands", "1"}, {"ttlMonitorSleepSecs", "5"}}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", path, got, want)
		}
		if v := bson.Raw(c.Parsed).Lookup("replication", "replSetName").StringValue(); v != "rs1" {
			t.Errorf("parsed: %s", bson.Raw(c.Parsed))
		}
	}
	bad := file("bad", "net: {prot: 1}\n")
	if _, err := parse(isMongod, []string{"-f", bad}); err == nil || err.Error() != "Unrecognized option: net.prot" {
		t.Errorf("unknown option in YAML: %v", err)
	}
}

func TestParsedOptionsAreNested(t *testing.T) {
	c, err := parse(isMongod, strings.Fields("--port 1 --dbpath /x --fork --logpath /l --shardsvr --replSet r --setParameter a=b --nounixsocket"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"net": {"port": {"$numberInt":"1"},"unixDomainSocket": {"enabled": false}},"storage": {"dbPath": "/x"},` +
		`"processManagement": {"fork": true},"systemLog": {"destination": "file","path": "/l"},` +
		`"sharding": {"clusterRole": "shardsvr"},"replication": {"replSetName": "r"},"setParameter": {"a": "b"}}`
	if got := bson.Raw(c.Parsed).String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHelpAndVersion(t *testing.T) {
	version := regexp.MustCompile(`(?im)^\s*db\s+version\s+v?(\d+\.\d+\.\d+)(-\d*)?(-[a-zA-Z0-9].*)?\s*$`)
	out, err := shoal(t, "mongod", "--version").Output()
	if err != nil || !version.Match(out) {
		t.Errorf("%v: %s", err, out)
	}
	out, err = shoal(t, "mongos", "--version").Output()
	if err != nil || !regexp.MustCompile(`(?i)(?:db version v?|MongoS version v?|mongos db version v?)(\d+\.)+\d+`).Match(out) {
		t.Errorf("%v: %s", err, out)
	}
	_, info, _ := bytes.Cut(out, []byte("Build Info: "))
	var shown, logged map[string]any
	if err := errors.Join(json.Unmarshal(info, &shown), json.Unmarshal(command.ThisBuild().Info(), &logged)); err != nil || !reflect.DeepEqual(shown, logged) {
		t.Errorf("--version has another build than the log, %v: %s", err, out)
	}
	for _, field := range []string{"version", "gitVersion", "modules", "allocator", "environment", "shoal"} {
		if shown[field] == nil {
			t.Errorf("the build has no %s: %s", field, out)
		}
	}
	out, err = shoal(t, "shoal", "mongod", "--help").Output()
	if err != nil || !regexp.MustCompile(`(?m)^\s*--replSet `).Match(out) || bytes.Contains(out, []byte("--configdb")) {
		t.Errorf("%v: %s", err, out)
	}
	for _, args := range [][]string{{"mongod", "--nonsense"}, {"shoal", "mongod", "--nonsense"}, {"shoal"}, {"shoal", "mongo"}} {
		if err := shoal(t, args[0], args[1:]...).Run(); exitCode(err) != exitBadOption {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestStartAndStop(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	cmd, port := started(t, "mongod", "--port", "0", "--dbpath", dir, "--pidfilepath", pidFile)
	if c, err := net.Dial("tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()); err != nil {
		t.Fatal(err)
	} else {
		c.Close()
	}
	for _, name := range []string{"mongod.lock", "storage.bson", "pid"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	out, err := shoal(t, "mongod", "--port", "0", "--dbpath", dir).CombinedOutput()
	if exitCode(err) != exitUncaught || !bytes.Contains(out, []byte("DBPathInUse")) {
		t.Errorf("a second server on the same directory: %v, %s", err, out)
	}
	out, err = shoal(t, "mongod", "--port", (&net.TCPAddr{Port: port}).String()[1:], "--dbpath", t.TempDir()).CombinedOutput()
	if exitCode(err) != exitNetError || !bytes.Contains(out, []byte(`"id":22856`)) || !bytes.Contains(bytes.ToLower(out), []byte("address already in use")) {
		t.Errorf("a second server on the same port: %v, %s", err, out)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); exitCode(err) != exitClean {
		t.Errorf("ended with %v", err)
	}
	if st, err := os.Stat(filepath.Join(dir, "mongod.lock")); err != nil || st.Size() != 0 {
		t.Errorf("lock file after a clean end: %v, %v", st, err)
	}
	if _, err := os.Stat(pidFile); err == nil {
		t.Error("the pid file is still there")
	}
}

func TestMissingDirectory(t *testing.T) {
	out, err := shoal(t, "mongod", "--port", "0", "--dbpath", filepath.Join(t.TempDir(), "none")).CombinedOutput()
	if exitCode(err) != exitUncaught || !bytes.Contains(out, []byte("DBException in initAndListen, terminating")) || !bytes.Contains(out, []byte("NonExistentPath")) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestForkAndShutdownOption(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	out, err := shoal(t, "mongod", "--fork", "--port", "0", "--dbpath", dir, "--logpath", log).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("child process started successfully, parent exiting")) {
		t.Fatalf("%v: %s", err, out)
	}
	if b, _ := os.ReadFile(log); !bytes.Contains(b, []byte("Waiting for connections")) {
		t.Errorf("the parent ended before the child listened: %s", b)
	}
	out, err = shoal(t, "mongod", "--shutdown", "--dbpath", dir).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("killing process with pid")) {
		t.Errorf("%v: %s", err, out)
	}
	out, err = shoal(t, "mongod", "--shutdown", "--dbpath", dir).CombinedOutput()
	if exitCode(err) != exitError {
		t.Errorf("nothing runs: %v, %s", err, out)
	}
	out, err = shoal(t, "mongod", "--fork", "--port", "0", "--dbpath", filepath.Join(dir, "none"), "--logpath", log).CombinedOutput()
	if exitCode(err) != exitUncaught || !bytes.Contains(out, []byte("ERROR: child process failed, exited with 100")) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestLogRotatesOnSignal(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	if out, err := shoal(t, "mongod", "--fork", "--port", "0", "--dbpath", dir, "--logpath", log).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer shoal(t, "mongod", "--shutdown", "--dbpath", dir).Run()
	raw, err := os.ReadFile(filepath.Join(dir, "mongod.lock"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := json.Unmarshal(bytes.TrimSpace(raw), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	await.State(t, "the log is rotated", func() ([]string, bool) { old, _ := filepath.Glob(log + ".*"); return old, len(old) == 1 })
}

func TestShutdownFromARole(t *testing.T) {
	cmd, port := started(t, "shoal", "start", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.TempDir(), "new"))
	body, err := bson.Marshal(bson.D{{Key: "shutdown", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(wire.AppendMessage(nil, &wire.Message{Body: body})); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
