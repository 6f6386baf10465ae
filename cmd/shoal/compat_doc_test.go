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
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

var rewriteDoc = flag.Bool("rewrite", false, "write docs/compatibility.md anew")

const (
	compatDoc   = "../../docs/compatibility.md"
	beginMarker = "<!-- commands: made by go test ./cmd/shoal -run TestCompatibilityTable -rewrite -->\n"
	endMarker   = "<!-- end of commands -->\n"
)

// The table of commands in docs/compatibility.md is read from the tables that serve requests.
func TestCompatibilityTable(t *testing.T) {
	a := assembleHere(t)
	for _, s := range a.services {
		for _, spec := range s.Table.Specs() {
			if spec.Help() == "" {
				t.Errorf("command/help.txt has no line for %s", spec.Name)
			}
			if says := saysNotImplemented(t, s, spec); says && !spec.NotBuilt {
				t.Errorf("%s answers 238 on %v, and the table says that it is built", spec.Name, s.Role)
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

// dangerous are commands that would end or disturb the test if they were sent.
var dangerous = map[string]bool{"shutdown": true, "fsync": true, "_hashBsonElement": true, "sleep": true, "crash": true}

// saysNotImplemented asks a server whether it has a command, with an argument of each kind that it requires.
func saysNotImplemented(t *testing.T, s *command.Service, spec *command.Spec) bool {
	if dangerous[spec.Name] || spec.Internal || spec.TestOnly {
		return false
	}
	argument := func(types command.Types) value.Value {
		switch {
		case types&command.TString != 0:
			return value.NewString("asked.c")
		case types&(command.TNumber|command.TInt) != 0:
			return value.NewInt32(1)
		case types&command.TObject != 0:
			return value.NewDocument(value.Doc(value.F("x", value.NewInt32(1))))
		case types&command.TArray != 0:
			return value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("x", value.NewInt32(1))))))
		}
		return value.NewBool(true)
	}
	first := spec.ArgTypes
	if spec.Namespace {
		first = command.TString
	}
	fields := []value.Field{value.F(spec.Name, argument(first))}
	for _, f := range spec.Fields {
		if f.Required {
			fields = append(fields, value.F(f.Name, argument(f.Types)))
		}
	}
	db := "asked"
	if spec.AdminOnly {
		db = "admin"
	}
	fields = append(fields, value.F("$db", value.NewString(db)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	client := command.NewClient(0, "127.0.0.1:1", "127.0.0.1:2", func() context.Context { return ctx })
	reply, err := s.Direct(ctx, client, &wire.Message{OpCode: wire.OpMsg, Body: value.Doc(fields...)}, nil)
	code, _ := value.Lookup(reply, "code").AsInt64()
	return err == nil && code == int64(mongoerr.NotImplemented)
}

// commandTable lists user-facing commands with the support of each role for them.
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
