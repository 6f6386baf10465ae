package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/command"
)

var rewriteDoc = flag.Bool("rewrite", false, "write docs/compatibility.md anew")

const (
	compatDoc   = "../../docs/compatibility.md"
	beginMarker = "<!-- commands: made by go test ./cmd/shoal -run TestCompatibilityTable -rewrite -->\n"
	endMarker   = "<!-- end of commands -->\n"
)

// The table of commands in docs/compatibility.md is read from the tables that serve requests.
func TestCompatibilityTable(t *testing.T) {
	c := newConfig(isStart)
	c.Listen, c.Memory = []string{"127.0.0.1:0"}, true
	a, err := newAssembly(c, &host{shutdown: make(chan struct{})})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.stop(context.Background()) }()
	if err := a.sharded(); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.services {
		for _, spec := range s.Table.Specs() {
			if spec.Help() == "" {
				t.Errorf("command/help.txt has no line for %s", spec.Name)
			}
		}
	}
	have, err := os.ReadFile(compatDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(have, []byte(beginMarker))
	_, after, ok2 := bytes.Cut(rest, []byte(endMarker))
	if !ok || !ok2 {
		t.Fatalf("%s has lost its markers", compatDoc)
	}
	want := string(before) + beginMarker + commandTable(a.services) + endMarker + string(after)
	if want == string(have) {
		return
	}
	if !*rewriteDoc {
		t.Fatalf("%s is out of date: go test ./cmd/shoal -run TestCompatibilityTable -rewrite", compatDoc)
	}
	if err := os.WriteFile(compatDoc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// commandTable lists user-facing commands with what each role says to them.
func commandTable(services []*command.Service) string {
	type row struct{ router, node string }
	rows := map[string]*row{}
	for _, s := range services {
		if s.Role == command.Config {
			continue
		}
		for _, spec := range s.Table.Specs() {
			if spec.Internal || strings.HasPrefix(spec.Name, "_") {
				continue
			}
			r := rows[spec.Name]
			if r == nil {
				r = &row{"", ""}
				rows[spec.Name] = r
			}
			mark := "yes"
			if spec.NotBuilt {
				mark = "not yet"
			}
			if s.Role == command.Router {
				r.router = mark
			} else {
				r.node = mark
			}
		}
	}
	names := make([]string, 0, len(rows))
	for n := range rows {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	b.WriteString("\n| command | router | member |\n|---|---|---|\n")
	for _, n := range names {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", n, rows[n].router, rows[n].node)
	}
	b.WriteString("\n")
	return b.String()
}
