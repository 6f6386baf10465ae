package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/console"
)

// A server that asks nobody who they are says so to everybody who connects.
func TestStartupWarnings(t *testing.T) {
	warnings := func(auth bool, euid int) []string {
		before, _, _ := console.Std.Ring("startupWarnings")
		c := newConfig(isMongod)
		c.Auth = auth
		startupWarnings(c, euid)
		after, lines, _ := console.Std.Ring("startupWarnings")
		return lines[len(lines)-(after-before):]
	}
	says := func(lines []string, what string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, what) })
	}
	if got := warnings(false, 0); len(got) != 2 || !says(got, "Access control is not enabled") || !says(got, "root user") {
		t.Errorf("open, as root: %q", got)
	}
	if got := warnings(true, 1000); len(got) != 0 {
		t.Errorf("with access control, as a user: %q", got)
	}
}
