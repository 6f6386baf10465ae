package command

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/shoaldb/shoal/cluster/msg"
)

// The arguments that the pipeline reads from every command are those that messages between nodes allow in any command.
func TestGenericArgumentsAreThoseOfMessages(t *testing.T) {
	ours, theirs := casesOf(t, "request.go", "generic"), casesOf(t, "../cluster/msg/desc.go", "Generic")
	for name := range ours {
		if !msg.Generic([]byte(name)) {
			t.Errorf("messages do not allow %s", name)
		}
	}
	for name := range theirs {
		if !ours[name] {
			t.Errorf("messages allow %s, which the pipeline does not know", name)
		}
	}
	if len(ours) < 20 {
		t.Errorf("only %v was found", slices.Sorted(maps.Keys(ours)))
	}
}

// casesOf collects the texts of a function's case clauses.
func casesOf(t *testing.T, path, function string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Name.Name != function {
			return false
		}
		if c, ok := n.(*ast.CaseClause); ok {
			for _, e := range c.List {
				if l, ok := e.(*ast.BasicLit); ok {
					s, err := strconv.Unquote(l.Value)
					if err != nil {
						t.Fatal(err)
					}
					out[s] = true
				}
			}
		}
		return true
	})
	return out
}
