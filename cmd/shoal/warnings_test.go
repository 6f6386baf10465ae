package main

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/console"
)

// A server warns in its log, and warns every mongosh that connects, if it requires no authentication, runs as root, or listens on localhost only because it was
// given no address.
func TestStartupWarnings(t *testing.T) {
	warnings := func(c *config, euid int) []string {
		before, _, _ := console.Std.Ring("startupWarnings")
		startupWarnings(c, euid)
		after, lines, _ := console.Std.Ring("startupWarnings")
		return lines[len(lines)-(after-before):]
	}
	key := writeKey(t)
	for _, tc := range []struct {
		p    program
		args string
		euid int
		want []string // ids, in order
	}{
		{isMongod, "", 0, []string{"22120", "22138", "22140"}},
		{isMongod, "", 1000, []string{"22120", "22140"}},
		{isMongod, "--bind_ip 127.0.0.1", 1000, []string{"22120"}},
		{isMongod, "--auth --bind_ip_all", 1000, nil},
		{isMongod, "--keyFile " + key + " --transitionToAuth --bind_ip localhost", 1000, []string{"22120"}},
		{isMongod, "--noauth --keyFile " + key, 1000, []string{"22140"}},
		{isMongos, "--configdb c/h:1", 1000, []string{"22120", "22140"}},
		{isMongos, "--configdb c/h:1 --keyFile " + key, 0, []string{"22138", "22140"}},
		{isStart, "", 1000, []string{"22120", "22140"}},
		{isStart, "--auth --listen 127.0.0.1:0", 1000, nil},
	} {
		c, err := parse(tc.p, strings.Fields(tc.args))
		if err != nil {
			t.Fatalf("%v %s: %v", tc.p, tc.args, err)
		}
		got := warnings(c, tc.euid)
		for i, line := range got {
			if i >= len(tc.want) || !strings.Contains(line, `"id":`+tc.want[i]+`,`) || !strings.Contains(line, `"tags":["startupWarnings"]`) {
				t.Errorf("%v %s: %s", tc.p, tc.args, line)
			}
		}
		if len(got) < len(tc.want) {
			t.Errorf("%v %s: %q", tc.p, tc.args, got)
		}
	}
}

// An option that is refused is accepted where its value asks for nothing.
func TestRefusedOptionsThatAskForNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf")
	for _, tc := range []struct{ args, file string }{
		{args: "mongod --noauth"}, {args: "mongod", file: "security: {authorization: disabled}\n"}, {args: "mongod", file: "noauth=true\nrepair=false\n"},
	} {
		args := strings.Fields(tc.args)[1:]
		if tc.file != "" {
			if err := os.WriteFile(file, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--config", file)
		}
		if _, err := parse(isMongod, args); err != nil {
			t.Errorf("%s %q: %v", tc.args, tc.file, err)
		}
	}
}

// At the start there are warnings about certificates that expire soon or have expired, and about those that name no host.
func TestCertificateWarnings(t *testing.T) {
	soon := time.Now().Add(24 * time.Hour)
	for _, tc := range []struct {
		own  x509.Certificate
		want string
	}{
		{x509.Certificate{NotAfter: soon.AddDate(1, 0, 0), DNSNames: []string{"db.example"}}, ""},
		{x509.Certificate{NotAfter: soon.AddDate(1, 0, 0), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ""},
		{x509.Certificate{NotAfter: soon.AddDate(1, 0, 0), EmailAddresses: []string{"db@example"}}, "551190"},
		{x509.Certificate{NotAfter: soon, DNSNames: []string{"db.example"}}, "23784"},
		{x509.Certificate{NotAfter: soon.AddDate(-1, 0, 0), DNSNames: []string{"db.example"}}, "23785"},
	} {
		k := &keyring{}
		k.now.Store(&certificates{own: &tc.own})
		before, _, _ := console.Std.Ring("startupWarnings")
		k.near.Store(30)
		k.warn("main")
		after, lines, _ := console.Std.Ring("startupWarnings")
		got := strings.Join(lines[len(lines)-(after-before):], "\n")
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %q", tc.own, got)
		}
	}
}

// The addresses to listen on are given once: --bind_ip_all excludes --bind_ip (manual: net.bindIpAll).
func TestOneWayToBind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf")
	if err := os.WriteFile(file, []byte("net: {bindIp: 127.0.0.1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, ok := range map[string]bool{
		"--bind_ip 127.0.0.1 --bind_ip_all": false, "--bind_ip_all --bind_ip 127.0.0.1": false, "--bind_ip_all --config " + file: false,
		"--bind_ip_all": true, "--bind_ip *": true, "--bind_ip 127.0.0.1 --config " + file: true,
	} {
		if _, err := parse(isMongod, strings.Fields(args)); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "net.bindIpAll") {
			t.Errorf("%s: %v", args, err)
		}
	}
}
