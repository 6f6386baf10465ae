package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// ownLogIDs is the prefix of the ids of lines in the log that the real server does not have.
const ownLogIDs = "99900"

// TestLogIDsAreUnique keeps the project's own log ids unique: each has one message, by which it is documented and searched for.
func TestLogIDsAreUnique(t *testing.T) {
	at := map[string][]string{}
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, id := range ownIDs(file) {
			at[id.Value] = append(at[id.Value], fmt.Sprintf("%s:%d", path, set.Position(id.Pos()).Line))
		}
	})
	if len(at) < 10 {
		t.Errorf("only %d ids are found", len(at))
	}
	for _, id := range slices.Sorted(maps.Keys(at)) {
		if len(at[id]) > 1 {
			t.Errorf("log id %s has several meanings: %s", id, strings.Join(at[id], ", "))
		}
	}
}

// What the rule is to find, and what it is to leave alone.
func TestOwnLogIDsAreFound(t *testing.T) {
	for src, want := range map[string]string{
		`console.Info(console.Control, 9990001, "-", "x").Write()`:   "9990001",
		`a.log.Debug(1, console.Control, 9990002, "-", "x").Write()`: "9990002",
		`const id = 9990003`: "9990003",
		`console.Info(console.Control, 20697, "-", "9990001"); _ = 99900; _ = 9.99`: "",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc _() {\n"+src+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, id := range ownIDs(file) {
			got = append(got, id.Value)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: found %q, want %q", src, s, want)
		}
	}
}

// ownIDs returns the own log ids in a file. They are written as numbers of seven digits, which mean nothing else.
func ownIDs(file *ast.File) (ids []*ast.BasicLit) {
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.INT && len(l.Value) == len("9990001") && strings.HasPrefix(l.Value, ownLogIDs) {
			ids = append(ids, l)
		}
		return true
	})
	return ids
}
