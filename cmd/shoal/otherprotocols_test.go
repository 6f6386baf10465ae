package main

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// A TLS handshake on the port waited forever for the 33 MB that its first bytes announce as a message; a browser was
// disconnected silently. Now both are logged, and the connection is closed.
func TestOtherProtocolsOnThePort(t *testing.T) {
	o := loneServer(t, "mongod", "--dbpath", t.TempDir())
	o.start()
	if c, err := tls.Dial("tcp", o.at(), &tls.Config{InsecureSkipVerify: true}); err == nil {
		_ = c.Close()
		t.Error("TLS was accepted")
	}
	await.True(t, "a line about TLS", func() bool {
		return o.logHas(`"id":22988`, 1) && o.logHas(`"error":{"code":141,"codeName":"SSLHandshakeFailed","errmsg":"SSL handshake received but server is started without SSL support"}`, 1)
	})
	for i, request := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"} {
		c, err := net.Dial("tcp", o.at())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.0 200 OK\r\n") ||
			!strings.HasSuffix(string(answer), "\r\n\r\nIt looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n") {
			t.Errorf("%q, %v", answer, err)
		}
		_ = c.Close()
		await.True(t, "a line about HTTP", func() bool { return o.logHas(`"codeName":"ProtocolError"`, i+1) })
	}
	if o.hello() == nil {
		t.Error("the server does not answer any more")
	}
}

// Log lines about connections always showed a count of 0, and the clients' metadata was not in the log.
func TestLogCountsConnectionsAndNamesClients(t *testing.T) {
	o := loneServer(t, "mongod", "--dbpath", t.TempDir())
	o.start()
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + o.at() + "/?directConnection=true&appName=teller&compressors=zlib,nonsense"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	_ = c.Disconnect(t.Context())
	metadata := regexp.MustCompile(`"c":"NETWORK", *"id":51800,.*"ctx":"(conn\d+)".*"msg":"client metadata","attr":\{"remote":"127\.0\.0\.1:\d+","client":"conn\d+","negotiatedCompressors":\["zlib"\],"doc":\{.*"name":"teller"`)
	accepted := regexp.MustCompile(`"msg":"Connection accepted".*"connectionCount":([1-9]\d*)`)
	all := regexp.MustCompile(`"msg":"Connection (accepted|ended)","attr":\{.*"connectionCount":(\d+)`)
	await.True(t, "as many ends as beginnings", func() bool {
		raw, _ := os.ReadFile(o.logFile())
		m := all.FindAllStringSubmatch(string(raw), -1)
		return len(m) > 2 && len(m)%2 == 0 && m[len(m)-1][1] == "ended" && m[len(m)-1][2] == "0"
	})
	raw, _ := os.ReadFile(o.logFile())
	if !metadata.Match(raw) || len(accepted.FindAll(raw, -1)) != strings.Count(string(raw), `"msg":"Connection accepted"`) {
		t.Errorf("%s", raw)
	}
}

// listShards returned -1 as the version of every shard's configuration.
func TestListShardsReportsConfigVersions(t *testing.T) {
	o := loneServer(t)
	o.args = []string{"start", "--memory", "--listen", o.at()}
	o.start()
	c := connect(t, "mongodb://"+o.at()+"/?directConnection=true")
	var r struct {
		Shards []struct {
			Version int64 `bson:"replSetConfigVersion"`
		}
	}
	if err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "listShards", Value: 1}}).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if len(r.Shards) != 2 || r.Shards[0].Version != 1 || r.Shards[1].Version != 1 {
		t.Errorf("%+v", r)
	}
}

// The journals of an empty cluster took 212 MB of disk.
func TestAnEmptyClusterIsSmall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	launch(t, dir)
	var blocks int64
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil {
			blocks += blocksOf(info)
		}
		return nil
	})
	if mb := blocks * 512 >> 20; err != nil || mb >= 40 {
		t.Errorf("it takes %d MB, %v", mb, err)
	} else {
		t.Logf("it takes %d MB", mb)
	}
}

func blocksOf(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks
	}
	return 0
}
