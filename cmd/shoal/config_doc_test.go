package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/bsontext"
)

const configDoc = "../../docs/configuration.md"

// docs/configuration.md is generated from the tables that the programs and servers read.
func TestConfigurationDocument(t *testing.T) {
	want := configurationDocument()
	have, err := os.ReadFile(configDoc)
	if err == nil && string(have) == want {
		return
	}
	if !*rewriteDoc {
		t.Fatalf("%s is out of date: go test ./cmd/shoal -run TestConfigurationDocument -rewrite", configDoc)
	}
	if err := os.WriteFile(configDoc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func configurationDocument() string {
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- made by go test ./cmd/shoal -run TestConfigurationDocument -rewrite -->

Options are given on the command line (` + "`--port 27018`" + `) or in a file (` + "`--config`" + `): YAML by the path in the second column, or the older
` + "`key=value`" + `. What is not listed is refused.

`)
	for _, p := range []struct {
		title string
		on    program
	}{{"shoal start", isStart}, {"shoal mongod", isMongod}, {"shoal mongos", isMongos}} {
		fmt.Fprintf(&b, "## %s\n\n| option | in a file | what it does |\n|---|---|---|\n", p.title)
		writeOptions(&b, p.on.table().rows)
		b.WriteString("\n")
	}
	active, _ := cluster.ParamTables()
	b.WriteString("## Server parameters\n\nSet with `--setParameter name=value`, with `setParameter` in a file or, where the table says so, with the command " +
		"`setParameter` while the server runs.\n\n| parameter | what it does | type | default | range | when |\n|---|---|---|---|---|---|\n")
	writeParams(&b, active, func(p *cluster.ParamSpec) string {
		return fmt.Sprintf("| `%s`%s | %s | %s | %s | %s | %s |\n", p.Name, onlyTests(p), p.Does, paramKinds[p.Kind], paramDefault(p), paramRange(p), paramWhen(p))
	})
	b.WriteString("\nFurther parameters of the real server are stored, checked and given back without effect: " +
		"`docs/compatibility.md` lists them under \"Taken for compatibility\", each with the reason.\n")
	return b.String()
}

func writeOptions(b *strings.Builder, rows []option) {
	sorted := append([]option(nil), rows...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].name < sorted[j].name })
	for i := range sorted {
		o := &sorted[i]
		name := "only in files"
		if o.name != "" {
			name = "`--" + o.name + "`"
		}
		if o.short != "" {
			name += ", `-" + o.short + "`"
		}
		path := ""
		if o.path != "" {
			path = "`" + o.path + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, path, strings.ReplaceAll(o.help, "|", "\\|"))
	}
}

var paramKinds = map[cluster.ParamKind]string{
	cluster.ParamBool: "bool", cluster.ParamInt: "int", cluster.ParamLong: "long", cluster.ParamDouble: "double",
	cluster.ParamString: "string", cluster.ParamDocument: "object or array",
}

func writeParams(b *strings.Builder, rows []cluster.ParamSpec, row func(*cluster.ParamSpec) string) {
	var lines []string
	for i := range rows {
		lines = append(lines, row(&rows[i]))
	}
	sort.Slice(lines, func(i, j int) bool { return strings.ToLower(lines[i]) < strings.ToLower(lines[j]) })
	b.WriteString(strings.Join(lines, ""))
}

func onlyTests(p *cluster.ParamSpec) string {
	if p.TestOnly {
		return " (needs enableTestCommands)"
	}
	return ""
}

func paramDefault(p *cluster.ParamSpec) string {
	text := string(bsontext.Append(nil, p.Default))
	if p.Kind == cluster.ParamString && p.Default.Str() == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", "\\|") + "`"
}

func paramRange(p *cluster.ParamSpec) string {
	if p.Max <= p.Min {
		return ""
	}
	return fmt.Sprintf("%.12g to %.12g", p.Min, p.Max)
}

func paramWhen(p *cluster.ParamSpec) string {
	switch p.Set {
	case cluster.SetStartup:
		return "start"
	case cluster.SetRuntime:
		return "running"
	case cluster.SetBoth:
		return "start, running"
	}
	return "never: it is only read"
}
