package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// serveIMAP answers LOGIN as a mail server does, by which saslauthd can check passwords. It returns its port.
func serveIMAP(t *testing.T, user, password string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = fmt.Fprint(c, "* OK ready\r\n")
				for lines := bufio.NewScanner(c); lines.Scan(); {
					tag, rest, _ := strings.Cut(lines.Text(), " ")
					answer := "NO"
					if rest == fmt.Sprintf("LOGIN %q %q", user, password) {
						answer = "OK"
					}
					_, _ = fmt.Fprintf(c, "%s %s done\r\n", tag, answer)
				}
			}()
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// With the real saslauthd (Debian: sasl2-bin), which asks a mail server of this test, users log in by PLAIN as with the test's own daemon.
func TestPlainBySaslauthd(t *testing.T) {
	program := "/usr/sbin/saslauthd"
	if _, err := os.Stat(program); err != nil {
		t.Skip("no saslauthd on this machine; TestPlain speaks its protocol")
	}
	dir, err := os.MkdirTemp("", "sasl") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	daemon := exec.Command(program, "-a", "rimap", "-O", "127.0.0.1/"+serveIMAP(t, "ann", "so secret"), "-m", dir, "-n", "1", "-d")
	if err := daemon.Start(); err != nil {
		t.Skipf("saslauthd does not start: %v", err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	mux := filepath.Join(dir, "mux")
	await.True(t, "saslauthd listens", func() bool {
		c, err := net.Dial("unix", mux)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	g := startGuardedWith(t, "standalone", func(c *config) {
		c.Parameters = []pair{{"authenticationMechanisms", "SCRAM-SHA-256,PLAIN"}, {"saslauthdPath", mux}}
	})
	g.must(g.client("", "", ""), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
	g.must(g.client("root", "secret", ""), "$external", "createUser", "ann", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
	ann := g.connect(auth.External, "ann", "so secret", auth.Plain)
	g.must(ann, "shop", "find", "c")
	g.refused(ann, "shop", "insert", "c", "documents", bson.A{bson.D{}})
	if _, code, _ := run1(g.connect(auth.External, "ann", "wrong", auth.Plain), "shop", "find", "c"); code != int(mongoerr.AuthenticationFailed) {
		t.Errorf("a wrong password: %d", code)
	}
}
