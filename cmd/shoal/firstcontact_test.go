package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// asWritten is a server started with exactly these arguments, which name its port.
func asWritten(t *testing.T, port string, args ...string) *server {
	t.Helper()
	o := unstarted(t, nil, "server")
	o.port, _ = strconv.Atoi(port)
	o.args = args
	o.direct = connect(t, "mongodb://"+o.at()+"/?directConnection=true")
	o.start()
	return o
}

// The recipe of three processes in the README failed at its last line: rs.initiate() without a configuration used the
// machine's name for the shard's member, and sh.addShard got the address that it listens on.
func TestREADMEsRecipeOfProcesses(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	config := freePort(t)
	text = strings.NewReplacer("27017", freePort(t), "27018", freePort(t), "27019", config).Replace(text)
	text = strings.ReplaceAll(text, "/srv/", t.TempDir()+"/")
	var servers []*server
	for _, line := range regexp.MustCompile(`(?m)^    bin/shoal (mongo[ds] .*--port (\d+).*)$`).FindAllStringSubmatch(text, -1) {
		args := strings.Fields(line[1])
		for i, a := range args {
			if a == "--dbpath" {
				if err := os.MkdirAll(args[i+1], 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}
		if args[0] == "mongos" { // the recipe initiates the sets at this point
			for _, s := range servers {
				initiateBare(t, s)
			}
		}
		servers = append(servers, asWritten(t, line[2], args...))
	}
	shard := regexp.MustCompile(`sh\.addShard\("([^"]+)"\)`).FindStringSubmatch(text)
	if len(servers) != 3 || shard == nil {
		t.Fatalf("the README has %d such lines, and addShard %q", len(servers), shard)
	}
	router := servers[2].direct
	if err := router.Database("admin").RunCommand(t.Context(), bson.D{{Key: "addShard", Value: shard[1]}}).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := router.Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	// The addresses of other servers are still refused.
	err = router.Database("admin").RunCommand(t.Context(), bson.D{{Key: "addShard", Value: "s1/127.0.0.1:" + config}}).Err()
	if err == nil || !strings.Contains(err.Error(), "since it is a config server") {
		t.Errorf("the config server as a shard: %v", err)
	}
}

// initiateBare is rs.initiate() without a configuration: the member is called localhost, because it listens on nothing else.
func initiateBare(t *testing.T, s *server) {
	t.Helper()
	var r struct{ Me, Info2 string }
	if err := s.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "replSetInitiate", Value: bson.D{}}}).Decode(&r); err != nil {
		t.Fatal(err)
	}
	want := "localhost:" + strconv.Itoa(s.port)
	if r.Me != want || !strings.HasPrefix(r.Info2, "no configuration specified") {
		t.Errorf("rs.initiate() answers %+v", r)
	}
	await.True(t, "a primary", func() bool { return s.hello()["isWritablePrimary"] == true })
	if h := s.hello(); h["me"] != want || len(h["hosts"].(bson.A)) != 1 || h["hosts"].(bson.A)[0] != want {
		t.Errorf("hello has %v, %v", h["me"], h["hosts"])
	}
}

// rs.initiate() without a configuration chooses an address that the server listens on.
func TestInitiateWithoutConfigurationPicksAnAddress(t *testing.T) {
	for args, want := range map[string]string{
		"":                                   "localhost:7",
		"--bind_ip localhost":                "localhost:7",
		"--bind_ip 127.0.0.1":                "127.0.0.1:7",
		"--bind_ip /tmp/x.sock":              "localhost:7",
		"--bind_ip localhost,10.1.2.3":       "10.1.2.3:7",
		"--bind_ip localhost,db.example.net": "db.example.net:7",
		"--bind_ip ::1,fd00::1":              "[fd00::1]:7",
		"--bind_ip_all":                      "box:7",
		"--bind_ip 0.0.0.0":                  "box:7",
		"--bind_ip localhost,*":              "box:7",
		"--bind_ip_all --ipv6":               "box:7",
	} {
		c, err := parse(isMongod, append(strings.Fields(args), "--port", "7"))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.firstHost("box"); got != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}

// Launchers initiate a config server without configsvr: true, and other sets with configsvr: false, on servers whose ports
// the system chose: all were refused, the last with "maps to this node".
func TestInitiateAsLaunchersDo(t *testing.T) {
	launch := func(args ...string) *server {
		t.Helper()
		o := loneServer(t, append([]string{"mongod", "--replSet", "s", "--dbpath", t.TempDir()}, args...)...)
		o.args[len(o.args)-1] = "0"
		o.launch()
		port := regexp.MustCompile(`"id":23016.*"port":(\d+)`)
		await.True(t, "its log shows the port", func() bool {
			raw, _ := os.ReadFile(o.logFile())
			m := port.FindSubmatch(raw)
			if m != nil {
				o.port, _ = strconv.Atoi(string(m[1]))
			}
			return m != nil
		})
		o.direct = connect(t, "mongodb://"+o.at()+"/?directConnection=true")
		return o
	}
	initiate := func(more bson.D, servers ...*server) {
		t.Helper()
		members := bson.A{}
		for i, s := range servers {
			members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: s.at()}})
		}
		config := append(bson.D{{Key: "_id", Value: "s"}, {Key: "members", Value: members}}, more...)
		if err := servers[0].direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "replSetInitiate", Value: config}}).Err(); err != nil {
			t.Fatal(err)
		}
		set := &replicaSet{t: t, name: "s", members: servers}
		set.ready()
		var got struct{ Config struct{ Configsvr bool } }
		if err := servers[0].direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if want := strings.Contains(strings.Join(servers[0].args, " "), "--configsvr"); got.Config.Configsvr != want {
			t.Errorf("configsvr is %v", got.Config.Configsvr)
		}
	}
	initiate(nil, launch("--configsvr"), launch("--configsvr"))
	initiate(bson.D{{Key: "configsvr", Value: false}}, launch(), launch())
	other := launch()
	err := other.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "replSetInitiate", Value: bson.D{{Key: "_id", Value: "s"},
		{Key: "configsvr", Value: true}, {Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: other.at()}}}}}}}).Err()
	if err == nil || !strings.Contains(err.Error(), "must be started with the --configsvr flag") {
		t.Errorf("a set of other servers is made a config server: %v", err)
	}
}

// The options of `shoal start` were missing in getCmdLineOpts, the log's first line had another port, and config.shards
// had addresses that looked as if they could be dialed.
func TestStartShowsItsOptionsAndAddresses(t *testing.T) {
	port := freePort(t)
	o := unstarted(t, nil, "server")
	o.port, _ = strconv.Atoi(port)
	o.args = []string{"start", "--memory", "--shards", "1", "--listen", "127.0.0.1:" + port, "--set-parameter", "ttlMonitorSleepSecs=5", "--log-level", "1"}
	o.start()
	c := connect(t, "mongodb://"+o.at()+"/?directConnection=true")
	var opts struct{ Parsed bson.Raw }
	if err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "getCmdLineOpts", Value: 1}}).Decode(&opts); err != nil {
		t.Fatal(err)
	}
	want := `{"storage": {"inMemory": {"enabled": true}},"cluster": {"shards": {"$numberInt":"1"}},"net": {"listen": ["127.0.0.1:` + port +
		`"]},"setParameter": {"ttlMonitorSleepSecs": "5"},"systemLog": {"verbosity": "1"}}`
	if got := opts.Parsed.String(); got != want {
		t.Errorf("getCmdLineOpts:\n%s\nwant\n%s", got, want)
	}
	if !o.logHas(`"msg":"MongoDB starting"`, 1) || !o.logHas(`"port":`+port, 2) || !o.logHas(`"ttlMonitorSleepSecs":"5"`, 1) {
		raw, _ := os.ReadFile(o.logFile())
		t.Errorf("the log:\n%s", raw)
	}
	var shard struct{ Host string }
	if err := c.Database("config").Collection("shards").FindOne(t.Context(), bson.D{}).Decode(&shard); err != nil || shard.Host != "shard00/shard00(in-process):0" {
		t.Errorf("config.shards: %q, %v", shard.Host, err)
	}
}

// The port in the connection string of a standalone server was the requested one: 0.
func TestLoneServersConnectionString(t *testing.T) {
	o := loneServer(t)
	o.args = []string{"start", "--memory", "--topology", "standalone", "--listen", "127.0.0.1:0"}
	o.launch()
	await.True(t, "it listens", func() bool { return o.logHas(`"id":23016`, 1) })
	raw, _ := os.ReadFile(o.logFile())
	m := regexp.MustCompile(`(?m)^Connection string: mongodb://127\.0\.0\.1:([1-9]\d*)/$`).FindSubmatch(raw)
	if m == nil {
		t.Fatalf("%s", raw)
	}
	o.port, _ = strconv.Atoi(string(m[1]))
	o.listens()
}
