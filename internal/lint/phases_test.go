package lint

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// killedOtherwise lists operations whose phases are not those of a row of killedOperations.
var killedOtherwise = map[string]string{
	"forward": "createIndexes", // the same phases for four commands, of which one has a row
	"reshard": "",              // TestKilledResharding kills at the states of a resharding, which these phases await
}

// The drawings of docs/architecture.md show each operation's phases, in their order.
func TestEachPhaseOfADDLIsDrawn(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i, block := range strings.Split(string(text), "```") {
		if i%2 == 1 {
			lines = append(lines, strings.Split(block, "\n")...)
		}
	}
	phases, _, _ := phasesOfDDL(t)
	for op, list := range phases {
		if op == "reshard" { // its only phase is a separate protocol, which is drawn by its states
			continue
		}
		drawn := regexp.MustCompile(`\b` + strings.Join(list, `\b.*\b`) + `\b`)
		if !slices.ContainsFunc(lines, drawn.MatchString) {
			t.Errorf("docs/architecture.md does not draw the phases of %s: %s", op, strings.Join(list, " ► "))
		}
	}
}

// The drawings show the steps of each change of the list of shards, too, and the processes that take part are killed at each (TestKilledAlone).
func TestEachStepOfTheListOfShardsIsDrawnAndKilled(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := os.ReadFile(filepath.Join(root(t), "cmd", "shoal", "crash_router_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		if filepath.Dir(path) != "configsvr" {
			return
		}
		ast.Inspect(file, func(node ast.Node) bool {
			lit, ok := node.(*ast.CompositeLit)
			if !ok || len(lit.Elts) != 2 {
				return true
			}
			if of, ok := lit.Type.(*ast.Ident); !ok || of.Name != "step" {
				return true
			}
			for _, name := range literals(lit.Elts[0]) {
				n++
				if drawn := regexp.MustCompile(`(?m)^ \w+: .*\b` + name + `\b`); !drawn.Match(text) {
					t.Errorf("docs/architecture.md does not draw the step %s", name)
				}
				if killed := regexp.MustCompile(`atSteps\(.*"` + name + `"`); !killed.Match(rows) {
					t.Errorf("no process is killed at the step %s", name)
				}
			}
			return true
		})
	})
	if n < 10 {
		t.Errorf("%d steps were found: the code has changed", n)
	}
}

// The coordinator of a DDL operation is killed before each of its phases (TestKilledDDL): a new phase has to be added to each row of its operation:
// to that of killedOperations, and to that of the kinds of collections.
func TestEachPhaseOfADDLIsKilled(t *testing.T) {
	phases, names, killed := phasesOfDDL(t)
	if len(phases) < 8 || len(killed) < 7 {
		t.Fatalf("%d operations with phases, %d rows of killedOperations: the code has changed", len(phases), len(killed))
	}
	for op, list := range phases {
		row := names[op]
		if other, is := killedOtherwise[op]; is {
			if row = other; row == "" {
				continue
			}
		}
		want := append(slices.Clone(list), "done")
		if len(killed[row]) == 0 {
			t.Errorf("%s has the phases %s, and no row of killedOperations", op, want)
		}
		for _, have := range killed[row] {
			if !slices.Equal(have, want) {
				t.Errorf("%s has the phases %s, and a row %q of killed operations has %s", op, want, row, have)
			}
		}
	}
}

// phasesOfDDL returns the phases of each type of operation, the operations' names by type, and the lists of phases at which tests kill, by name.
func phasesOfDDL(t *testing.T) (phases map[string][]string, names map[string]string, killed map[string][][]string) {
	t.Helper()
	phases, names, killed = map[string][]string{}, map[string]string{}, map[string][][]string{}
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		if dir, name := filepath.Split(path); dir == filepath.Join("cmd", "shoal")+string(filepath.Separator) && (name == "crash_ddl_test.go" || name == "crash_kinds_test.go") {
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.CompositeLit); ok {
					if name, list := stringField(lit, "name"), stringField(lit, "phases"); len(name) == 1 && list != nil {
						killed[name[0]] = append(killed[name[0]], list)
					}
				}
				return true
			})
		}
		if filepath.Dir(path) != filepath.Join("shardnode", "coordinator") || strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			switch fn.Name.Name {
			case "name":
				if ret, ok := fn.Body.List[0].(*ast.ReturnStmt); ok && len(ret.Results) == 1 {
					if s := literals(ret.Results[0]); len(s) == 1 {
						names[receiver(fn)] = s[0]
					}
				}
			case "phases":
				ast.Inspect(fn, func(n ast.Node) bool {
					if lit, ok := n.(*ast.CompositeLit); ok {
						phases[receiver(fn)] = append(phases[receiver(fn)], stringField(lit, "name")...)
					}
					return true
				})
			}
		}
	})
	return phases, names, killed
}

// literals returns the strings of an expression that is a string, or a list of strings.
func literals(e ast.Expr) (out []string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{s}
		}
	case *ast.CompositeLit:
		for _, x := range e.Elts {
			out = append(out, literals(x)...)
		}
	}
	return out
}

// stringField returns the strings of a field of a composite literal.
func stringField(lit *ast.CompositeLit, field string) []string {
	for _, x := range lit.Elts {
		if kv, ok := x.(*ast.KeyValueExpr); ok {
			if k, ok := kv.Key.(*ast.Ident); ok && k.Name == field {
				return literals(kv.Value)
			}
		}
	}
	return nil
}
