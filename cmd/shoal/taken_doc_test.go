package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const (
	beginTaken = "<!-- taken: made by go test ./cmd/shoal -run TestOptionsAndParametersAct -rewrite -->\n"
	endTaken   = "<!-- end of taken -->\n"
)

// eachSource parses the code that may act on an option or a parameter: all but tests and the tables themselves.
func eachSource(t *testing.T, dir string, f func(dir string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "compat-tests" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2) {
			return max2(err, fs.SkipDir)
		}
		switch filepath.Base(path) {
		case "paramtable.go", "options.go":
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err == nil {
			f(filepath.ToSlash(filepath.Dir(path)), file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func max2(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// display are functions that only show parameters, or set them: a name in them does not mean that the parameter has an effect.
var display = map[string]bool{"command.AppendServer": true, "router.appendBalancing": true}

// readers lists, by the strings in their bodies, the functions that may act on a parameter of that name. A string in a table of a
// package reads nothing: whatever looks parameters up by a table's names is written as a switch over calls.
func readers(t *testing.T) map[string][]string {
	out := make(map[string][]string)
	note := func(name string, e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && !slices.Contains(out[s], name) {
				out[s] = append(out[s], name)
			}
		}
	}
	eachSource(t, "../..", func(dir string, file *ast.File) {
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := strings.TrimPrefix(dir, "../../") + "." + fn.Name.Name
			if display[name] {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.ValueSpec: // a name for the string
					for _, v := range x.Values {
						note(name, v)
					}
				case *ast.CallExpr:
					if sel, ok := x.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Append" || sel.Sel.Name == "Store") {
						return false // shows or sets it
					}
					for _, a := range x.Args {
						note(name, a)
					}
				case *ast.CaseClause: // one of the names that a reader looks for
					for _, e := range x.List {
						note(name, e)
					}
				case *ast.CompositeLit:
					for _, e := range x.Elts {
						note(name, e)
						if kv, ok := e.(*ast.KeyValueExpr); ok {
							note(name, kv.Key)
							note(name, kv.Value)
						}
					}
				}
				return true
			})
		}
	})
	return out
}

// Options and parameters were accepted that had no effect. Every option must set a field of the configuration that some
// code reads, and every parameter must have functions that read it, which testdata/parameters.txt lists: showing or
// setting it is not reading it. Those without effect are in the documents' list of those accepted for compatibility.
func TestOptionsAndParametersAct(t *testing.T) {
	literals, fields := readers(t), map[string]bool{}
	eachSource(t, ".", func(_ string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				fields[s.Sel.Name] = true
			}
			return true
		})
	})
	for _, field := range []string{"OplogMB", "NoTabScan", "SlowMS", "SlowRate", "Profile", "Compressors", "IPv6", "MaxConns", "NoScripts", "Unix", "PIDFile", "NodePort"} {
		if !fields[field] {
			t.Errorf("no code reads the configuration's field %s", field)
		}
	}
	var options, params []string
	for _, table := range []*table{mongodTable, mongosTable, startTable} {
		for _, o := range table.rows {
			if taken := o.set == nil; taken != strings.HasPrefix(o.help, "Taken for compatibility") {
				t.Errorf("--%s: help and code disagree on whether it acts", o.name)
			} else if name := takenAs(&o); taken && !slices.Contains(options, name) {
				options = append(options, name)
			}
		}
	}
	var listed []string
	active, accepted := cluster.ParamTables()
	seen := map[string]bool{}
	for i, row := range slices.Concat(active, accepted) {
		by := literals[row.Name]
		slices.Sort(by)
		switch acts := i < len(active); {
		case seen[row.Name]:
			t.Errorf("%s has two rows", row.Name)
		case row.Does == "":
			t.Errorf("%s has no line that describes it", row.Name)
		case acts && len(by) == 0:
			t.Errorf("%s is among the parameters that act, but nothing reads it", row.Name)
		case !acts && len(by) > 0:
			t.Errorf("%s is among the parameters without effect, but is read by %s", row.Name, strings.Join(by, " "))
		case acts:
			listed = append(listed, row.Name+": "+strings.Join(by, " ")+"\n")
		default:
			params = append(params, fmt.Sprintf("| `%s` | %s |\n", row.Name, row.Does))
		}
		seen[row.Name] = true
	}
	slices.Sort(listed)
	checkReaders(t, strings.Join(listed, ""))
	slices.Sort(options)
	slices.Sort(params)
	checkTaken(t, fmt.Sprintf("\nOptions: %s.\n\nServer parameters, which are stored, checked and given back:\n\n| parameter | why it has no effect |\n|---|---|\n%s\n",
		strings.Join(options, ", "), strings.Join(params, "")))
}

// checkReaders compares the parameters' readers with the list of them.
func checkReaders(t *testing.T, list string) {
	t.Helper()
	const path = "testdata/parameters.txt"
	have, err := os.ReadFile(path)
	switch {
	case *rewriteDoc:
		if err := os.WriteFile(path, []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
	case err != nil:
		t.Fatal(err)
	case string(have) != list:
		t.Errorf("%s is out of date: go test ./cmd/shoal -run TestOptionsAndParametersAct -rewrite", path)
	}
}

func takenAs(o *option) string {
	if o.on == isMongos {
		return "`--" + o.name + "` of mongos"
	}
	return "`--" + o.name + "`"
}

func checkTaken(t *testing.T, list string) {
	t.Helper()
	have, err := os.ReadFile(compatDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(have, []byte(beginTaken))
	_, after, ok2 := bytes.Cut(rest, []byte(endTaken))
	if !ok || !ok2 {
		t.Fatalf("%s has lost its markers", compatDoc)
	}
	want := string(before) + beginTaken + list + endTaken + string(after)
	switch {
	case want == string(have):
	case !*rewriteDoc:
		t.Errorf("%s is out of date: go test ./cmd/shoal -run TestOptionsAndParametersAct -rewrite", compatDoc)
	default:
		if err := os.WriteFile(compatDoc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Options that used to be ignored have an effect.
func TestOptionsReachTheServer(t *testing.T) {
	t.Parallel()
	c, err := parse(isMongod, strings.Fields("--memory --port 0 --slowms 7 --slowOpSampleRate 0.5 --profile 1 --notablescan --networkMessageCompressors zlib"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAssembly(c, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.stop(context.Background()) }()
	if err := a.mongod(); err != nil {
		t.Fatal(err)
	}
	client := connect(t, "mongodb://"+a.roles.Addrs[0].String()+"/?directConnection=true&compressors=snappy,zlib")
	var r struct {
		Was         int
		Slowms      int
		SampleRate  float64 `bson:"sampleRate"`
		Compression []string
	}
	for _, cmd := range []bson.D{{{Key: "profile", Value: -1}}, {{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"snappy", "zlib"}}}} {
		if err := client.Database("d").RunCommand(t.Context(), cmd).Decode(&r); err != nil {
			t.Fatal(err)
		}
	}
	for _, cmd := range []bson.D{{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "nonsense", Value: 1}}, {{Key: "logMessage", Value: 1}}} {
		var refused mongo.CommandError
		if err := client.Database("admin").RunCommand(t.Context(), cmd).Err(); !errors.As(err, &refused) || refused.Code != int32(mongoerr.CommandNotFound) {
			t.Errorf("%v without enableTestCommands: %v", cmd, err)
		}
	}
	if r.Was != 1 || r.Slowms != 7 || r.SampleRate != 0.5 || !slices.Equal(r.Compression, []string{"zlib"}) || !a.params.Bool("notablescan") {
		t.Errorf("%+v", r)
	}
}
