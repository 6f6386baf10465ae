package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/console"
)

// A server without access control warns every client that connects.
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
	c := newConfig(isMongod)
	c.Security.Auth = true
	before, _, _ := console.Std.Ring("startupWarnings")
	if startupWarnings(c, 1000); true {
		if after, _, _ := console.Std.Ring("startupWarnings"); after != before {
			t.Error("a server that asks who its clients are warns that it does not")
		}
	}
	if got := warnings(1000); len(got) != 1 || !says(got, "Access control is not enabled") {
		t.Errorf("as a user: %q", got)
	}
}

// Options that ask for a repair started an unrepaired server: now unimplemented ones refuse to start, in one line.
func TestRepairIsNotPretended(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "conf")
	for _, tc := range []struct{ args, file string }{
		{args: "mongod --repair"}, {args: "mongod", file: "repair=true\n"},
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
