package lint

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// What is larger than it should be may shrink but not grow. A change that makes it smaller lowers the bound here, so
// that it stays that way.

// nodeMethods bounds the number of methods of shardnode.Node. New code belongs in a room below shardnode, or on a type
// of its own.
const nodeMethods = 126

// longFunctions bounds the number of functions longer than softLines.
const (
	longFunctions = 1
	softLines     = 70
)

// maxFields is how many fields a struct should have at most; wideStructs are those that have more, with their number.
const maxFields = 20

var wideStructs = map[string]int{
	"cmd/shoal.config": 32, "command.Spec": 22, "query/match.Node": 21, "shardnode/exec.Query": 28,
}

// ratchet reports a number over its bound, and a bound that can be lowered by more than slack.
func ratchet(t *testing.T, what string, have, bound, slack int) {
	t.Helper()
	switch {
	case have > bound:
		t.Errorf("%s: %d, may not be more than %d", what, have, bound)
	case have < bound-slack:
		t.Errorf("%s: only %d are left of %d: lower the bound", what, have, bound)
	}
}

// eachSource is eachFile for the files that are neither generated nor tests.
func eachSource(t *testing.T, f func(path string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, "_gen.go") {
			f(path, set, file)
		}
	})
}

func TestNodeHasNoMoreMethods(t *testing.T) {
	methods := 0
	eachSource(t, func(path string, _ *token.FileSet, file *ast.File) {
		if filepath.ToSlash(filepath.Dir(path)) != "shardnode" {
			return
		}
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && receiver(fn) == "Node" {
				methods++
			}
		}
	})
	ratchet(t, "methods of shardnode.Node", methods, nodeMethods, 10)
}

func TestNoMoreLongFunctions(t *testing.T) {
	long := 0
	eachSource(t, func(_ string, set *token.FileSet, file *ast.File) {
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && set.Position(fn.End()).Line-set.Position(fn.Pos()).Line > softLines {
				long++
			}
		}
	})
	ratchet(t, "functions of more than 70 lines", long, longFunctions, 5)
}

func TestNoStructGetsWider(t *testing.T) {
	seen := map[string]int{}
	eachSource(t, func(path string, _ *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			fields := 0
			for _, f := range s.Fields.List {
				fields += max(len(f.Names), 1)
			}
			if fields > maxFields {
				seen[filepath.ToSlash(filepath.Dir(path))+"."+spec.Name.Name] = fields
			}
			return true
		})
	})
	for name, fields := range seen {
		if wideStructs[name] == 0 {
			t.Errorf("%s has %d fields: past %d, divide it by role", name, fields, maxFields)
			continue
		}
		ratchet(t, "fields of "+name, fields, wideStructs[name], 3)
	}
	for name := range wideStructs {
		if seen[name] == 0 {
			t.Errorf("%s is no longer among the wide structs: take it off the list", name)
		}
	}
}

// testSleeps bounds the number of calls of time.Sleep in tests that do not run under synctest: a test waits for a condition.
const testSleeps = 225

func TestTestsSleepNoMore(t *testing.T) {
	sleeps := 0
	calls := func(n ast.Node, pkg, name string) (count int) {
		ast.Inspect(n, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg {
						count++
					}
				}
			}
			return true
		})
		return count
	}
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, d := range file.Decls {
			if calls(d, "synctest", "Test") == 0 {
				sleeps += calls(d, "time", "Sleep")
			}
		}
	})
	ratchet(t, "sleeps in tests", sleeps, testSleeps, 20)
}
