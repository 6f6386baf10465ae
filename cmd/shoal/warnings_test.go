package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/console"
)

// A server that asks nobody who they are says so to everybody who connects.
func TestStartupWarnings(t *testing.T) {
	warnings := func(euid int) []string {
		before, _, _ := console.Std.Ring("startupWarnings")
		startupWarnings(newConfig(isMongod), euid)
		after, lines, _ := console.Std.Ring("startupWarnings")
		return lines[len(lines)-(after-before):]
	}
	says := func(lines []string, what string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, what) })
	}
	if got := warnings(0); len(got) != 2 || !says(got, "Access control is not enabled") || !says(got, "root user") {
		t.Errorf("as root: %q", got)
	}
	if got := warnings(1000); len(got) != 1 || !says(got, "Access control is not enabled") {
		t.Errorf("as a user: %q", got)
	}
}

// Options that ask for authentication, or for a repair, started an open server (without its warning) or an unrepaired
// one: what is not built refuses to start, in one line.
func TestAuthenticationAndRepairAreNotPretended(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "conf")
	for _, tc := range []struct{ args, file string }{
		{args: "mongod --auth"}, {args: "mongod --keyFile /nowhere/key"}, {args: "mongos --configdb c/a:1 --keyFile=/nowhere/key"},
		{args: "mongod --clusterAuthMode keyFile"}, {args: "mongod --repair"},
		{args: "mongod", file: "security: {authorization: enabled}\n"}, {args: "mongod", file: "security: {keyFile: /nowhere/key}\n"},
		{args: "mongod", file: "auth=true\n"}, {args: "mongod", file: "keyFile=/nowhere/key\n"}, {args: "mongod", file: "repair=true\n"},
	} {
		args := append(strings.Fields(tc.args), "--port", "0")
		if !strings.HasPrefix(tc.args, "mongos") {
			args = append(args, "--dbpath", dir)
		}
		if tc.file != "" {
			if err := os.WriteFile(file, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--config", file)
		}
		out, err := shoal(t, "shoal", args...).CombinedOutput()
		if exitCode(err) != exitBadOption || strings.Count(string(out), "\n") != 1 || !strings.HasPrefix(string(out), "NotImplemented: --") {
			t.Errorf("%s %q: %v, %s", tc.args, tc.file, err, out)
		}
	}
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
