package lint

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Things that are larger than they should be may shrink but not grow. A change that makes one smaller lowers its bound here, so
// that it stays smaller.

// nodeMethods bounds the number of methods of shardnode.Node. New code belongs in a room below shardnode, or on a type
// of its own.
const nodeMethods = 126

// longFunctions bounds the number of functions longer than softLines.
const (
	longFunctions = 1
	softLines     = 70
)

// maxFields is the maximum number of fields that a struct should have; wideStructs are those that have more, with their number.
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

// testSleeps bounds the number of calls of time.Sleep in tests whose clock is the machine's: a test waits for a condition
// (internal/await), or runs in a bubble of testing/synctest.
const testSleeps = 27

// simulated lists the types and functions that run only in a bubble, of packages whose tests start bubbles in one place.
var simulated = map[string]string{"replication": "simulation simTransport script fakeStore fakeMachine"}

func TestTestsSleepNoMore(t *testing.T) {
	type decl struct {
		at       string
		calls    map[string]bool // the functions of its package that it calls
		sleeps   int
		bubble   bool
		function string
	}
	packages := map[string][]*decl{}
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		for _, d := range file.Decls {
			x := &decl{at: path, calls: map[string]bool{}}
			if fn, ok := d.(*ast.FuncDecl); ok {
				if x.function = fn.Name.Name; fn.Recv != nil {
					x.bubble = slices.Contains(strings.Fields(simulated[dir]), receiver(fn))
					x.function = ""
				}
			}
			ast.Inspect(d, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch fun := call.Fun.(type) {
				case *ast.Ident:
					x.calls[fun.Name] = true
				case *ast.SelectorExpr:
					if of, ok := fun.X.(*ast.Ident); ok {
						x.bubble = x.bubble || of.Name == "synctest" && fun.Sel.Name == "Test"
						if of.Name == "time" && fun.Sel.Name == "Sleep" {
							x.sleeps++
						}
					}
				}
				return true
			})
			packages[dir] = append(packages[dir], x)
		}
	})
	sleeps := 0
	for _, decls := range packages {
		for changed := true; changed; { // a caller of a function that starts a bubble runs in one
			changed = false
			for _, by := range decls {
				for _, x := range decls {
					if by.bubble && !x.bubble && by.function != "" && !strings.HasPrefix(by.function, "Test") && x.calls[by.function] {
						x.bubble, changed = true, true
					}
				}
			}
		}
		for _, x := range decls {
			if !x.bubble && x.sleeps > 0 {
				sleeps += x.sleeps
				t.Logf("%s: %d", x.at, x.sleeps)
			}
		}
	}
	ratchet(t, "sleeps in tests", sleeps, testSleeps, 5)
}
