package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// spelledByHand lists the files that may write the element $db of a command, with the reason. Every other command that a node sends is a type
// of cluster/msg: its sender and its receiver cannot spell a field differently, and TestNodesKeepToThePublicCommands compares the fields
// with the table of commands.
var spelledByHand = map[string]string{
	"cluster/msg/codec.go":                   "the types themselves",
	"chaos/steps.go":                         "a step is a client's command, kept as a document so that a run can be repeated from its log",
	"command/sampling/commands.go":           "makes the stored copy of a client's command; it is not sent",
	"query/mapreduce/mapreduce.go":           "translates a client's mapReduce; the language knows no messages",
	"router/bulk.go":                         "passes the statements of a client's bulkWrite on as they are",
	"shardnode/coordinator/forward.go":       "passes a client's command on, with further elements",
	"shardnode/explain.go":                   "repeats a client's command in the reply to explain; it is not sent",
	"shardnode/write/applyops.go":            "executes the command of an oplog entry that a client supplies",
	"shardnode/write/writetest/writetest.go": "serves tests",
}

// Every command document has a $db, by which those that are written without a type are found.
func TestCommandsBetweenNodesHaveTypes(t *testing.T) {
	used := map[string]bool{}
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		path = filepath.ToSlash(path)
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, at := range databasesWritten(file) {
			if used[path] = true; spelledByHand[path] == "" {
				t.Errorf("%s:%d: a command is spelled by hand: use a type of cluster/msg", path, set.Position(at).Line)
			}
		}
	})
	for path := range spelledByHand {
		if !used[path] {
			t.Errorf("%s spells no command by hand: it needs no exception", path)
		}
	}
}

// What the rule is to find, and what it is to leave alone.
func TestHandSpelledCommandsAreFound(t *testing.T) {
	for src, want := range map[string]int{
		`_ = value.Doc(value.F("ping", one), value.F("$db", db))`: 1,
		`_ = value.Doc(fld("drop", c), fld("$db", db))`:           1,
		`b = value.Append(b, "$db", db)`:                          1,
		`_ = value.Field{Key: "$db", Val: db}`:                    1,
		`_ = value.Field{"$db", db}`:                              1,
		`_ = value.Lookup(body, "$db")`:                           0,
		`_ = map[string]bool{"$db": true}`:                        0,
		`if name == "$db" {}`:                                     0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc _() {\n"+src+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(databasesWritten(file)); got != want {
			t.Errorf("%s: found %d, want %d", src, got, want)
		}
	}
}

// databasesWritten returns where a file makes an element $db: in a call of a function that makes or appends an element, or as a field of one.
func databasesWritten(file *ast.File) (found []token.Pos) {
	isDB := func(e ast.Expr) bool {
		lit, ok := e.(*ast.BasicLit)
		return ok && lit.Value == `"$db"`
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if slices.Contains([]string{"F", "fld", "Append", "BeginKey"}, calleeName(n)) && slices.ContainsFunc(n.Args, isDB) {
				found = append(found, n.Pos())
			}
		case *ast.CompositeLit:
			if typ, ok := n.Type.(*ast.SelectorExpr); !ok || typ.Sel.Name != "Field" {
				break
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					e = kv.Value
				}
				if isDB(e) {
					found = append(found, n.Pos())
				}
			}
		}
		return true
	})
	return found
}

func calleeName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
