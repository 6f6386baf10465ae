package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/shoaldb/shoal/"

// rooms lists each room with the rooms it may import, besides itself. A room within a room has a row of its own: the
// enclosing room imports it, not the reverse; of its siblings it may import those in its row, which must not import it.
// See docs/architecture.md.
var rooms = map[string]string{
	"wire":                    "",
	"query":                   "wire",
	"auth":                    "wire query",
	"storage/keystring":       "query", // keys as bytes, built from values alone: chunk maps are searched by them too
	"storage":                 "wire query storage/keystring",
	"replication":             "wire query storage",
	"cluster":                 "wire query storage/keystring",
	"command":                 "wire query auth storage replication cluster",
	"shardnode":               "wire query auth storage replication cluster command shardnode/coordinator shardnode/ddl shardnode/exec shardnode/migration shardnode/namespace shardnode/profile shardnode/queryanalysis shardnode/replset shardnode/resharding shardnode/settings shardnode/statedoc shardnode/streams shardnode/txn shardnode/write",
	"shardnode/coordinator":   "wire query storage replication cluster command shardnode/migration shardnode/namespace shardnode/statedoc",
	"shardnode/ddl":           "wire query storage replication cluster command shardnode/exec shardnode/namespace shardnode/statedoc shardnode/write",
	"shardnode/exec":          "wire query storage storage/keystring cluster command",
	"shardnode/migration":     "wire query storage storage/keystring replication cluster command shardnode/statedoc shardnode/tables",
	"shardnode/namespace":     "wire query storage command shardnode/exec",
	"shardnode/profile":       "wire query storage replication command",
	"shardnode/queryanalysis": "query cluster command wire",
	"shardnode/replset":       "wire query storage replication cluster command",
	"shardnode/resharding":    "wire query storage replication cluster command shardnode/migration shardnode/statedoc",
	"shardnode/settings":      "wire query storage cluster command replication shardnode/exec shardnode/namespace shardnode/statedoc",
	"shardnode/statedoc":      "wire query storage replication",
	"shardnode/streams":       "wire query storage cluster",
	"shardnode/tables":        "wire query storage storage/keystring replication cluster shardnode/statedoc",
	"shardnode/txn":           "wire query storage replication cluster command shardnode/statedoc",
	"shardnode/write":         "wire query storage replication cluster command shardnode/exec shardnode/migration shardnode/namespace shardnode/statedoc shardnode/txn",
	"configsvr":               "wire query auth cluster command",
	"router":                  "wire query auth storage cluster command",
	"chaos":                   "wire query cluster command",
	"console":                 "wire query cluster command",
	"internal":                "",
	"packaging":               "",
	"compat-tests":            "",
}

// testRooms are the rooms that a room's external tests may import in addition: they assemble whole clusters.
var testRooms = map[string]string{
	"router": "shardnode shardnode/migration configsvr replication",
}

// testTools is the room that any test may import.
const testTools = "internal"

func TestRoomsImportDownhill(t *testing.T) {
	for _, p := range listPackages(t) {
		room := roomOf(p.ImportPath)
		if room == "cmd" {
			continue // the only room that may import all others
		}
		allowed, known := rooms[room]
		if !known {
			t.Errorf("package %s is in no room", p.ImportPath)
			continue
		}
		checkImports(t, p.ImportPath, p.Imports, room, allowed)
		checkImports(t, "the tests within "+p.ImportPath, p.TestImports, room, allowed+" "+testTools)
		checkImports(t, "the tests of "+p.ImportPath, p.XTestImports, room, allowed+" "+testTools+" "+testRooms[room])
	}
}

// A room within shardnode without a row used to count as shardnode itself, and could import everything; the picture in CONTRIBUTING.md and
// the table in docs/architecture.md lacked some rooms.
func TestRoomsAreListedAndDrawn(t *testing.T) {
	for _, p := range listPackages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "shardnode/") && strings.Count(path, "/") == 1 && rooms[path] == "" {
			t.Errorf("%s has no row in rooms", path)
		}
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	table, picture := read("docs/architecture.md"), read("CONTRIBUTING.md")
	for room := range rooms {
		if room == "internal" || room == "packaging" || room == "storage/keystring" {
			continue
		}
		if !strings.Contains(table, "| `"+room+"`") && !strings.Contains(table, "| `"+room+"/`") {
			t.Errorf("docs/architecture.md has no row of %s", room)
		}
		if !strings.Contains(room, "/") && room != "compat-tests" && !regexp.MustCompile(`(?m)^    .*\b`+room+`\b`).MatchString(picture) {
			t.Errorf("the picture in CONTRIBUTING.md lacks %s", room)
		}
	}
}

// Each package is described in a doc.go.
func TestEachPackageHasDoc(t *testing.T) {
	for _, p := range listPackages(t) {
		dir := filepath.Join(root(t), strings.TrimPrefix(p.ImportPath, strings.TrimSuffix(module, "/")))
		if _, err := os.Stat(filepath.Join(dir, "doc.go")); err != nil {
			t.Errorf("%s has no doc.go", p.ImportPath)
		}
	}
}

func checkImports(t *testing.T, who string, imports []string, room, allowed string) {
	t.Helper()
	for _, imp := range imports {
		to := roomOf(imp)
		if !strings.HasPrefix(imp, module) || to == room || slices.Contains(strings.Fields(allowed), to) {
			continue
		}
		t.Errorf("%s: %s may not be imported, room %s may import only %q", who, imp, room, allowed)
	}
}

type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string // of tests in a package of their own
}

func listPackages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// roomOf returns the innermost room of a package.
func roomOf(path string) string {
	for room := strings.TrimPrefix(path, module); ; {
		if _, known := rooms[room]; known {
			return room
		}
		i := strings.LastIndexByte(room, '/')
		if i < 0 {
			return room
		}
		room = room[:i]
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// maxLines is the length above which a function has to be split. Tables of data in a function's body count too.
const maxLines = 80

// eachFile parses the repository's own Go files.
func eachFile(t *testing.T, f func(path string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	dir := root(t)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "compat-tests") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		f(rel, set, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFunctionsStayShort(t *testing.T) {
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_gen.go") {
			return
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line; n > maxLines {
				t.Errorf("%s: %s has %d lines", path, fn.Name.Name, n)
			}
		}
	})
}

var promises = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

func TestNoPromisesInComments(t *testing.T) {
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		for _, g := range file.Comments {
			for _, c := range g.List {
				if promises.MatchString(c.Text) && !strings.HasPrefix(path, "internal/lint") {
					t.Errorf("%s: %s", set.Position(c.Pos()), c.Text)
				}
			}
		}
	})
}

var functionName = regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)\\(\\)`")

// docs name functions as `name()` or `Type.name()`; each must exist.
func TestDocumentsNameExistingFunctions(t *testing.T) {
	have := map[string]bool{}
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				have[fn.Name.Name] = true
				if fn.Recv != nil {
					have[receiver(fn)+"."+fn.Name.Name] = true
				}
			}
		}
	})
	docs, err := filepath.Glob(filepath.Join(root(t), "docs", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, name := range []string{"CONTRIBUTING.md", "README.md"} {
		docs = append(docs, filepath.Join(root(t), name))
	}
	for _, path := range docs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range functionName.FindAllStringSubmatch(string(text), -1) {
			if object, _, _ := strings.Cut(m[1], "."); !have[m[1]] && object != "sh" && object != "rs" && object != "db" { // the shell's
				t.Errorf("%s names %s(), which does not exist", filepath.Base(path), m[1])
			}
		}
	}
}

var (
	docName = regexp.MustCompile(`\b(?:[A-Z]\w*\.)?[a-z]+[A-Z]\w*\b|\b[A-Z]\w+\.[A-Za-z]\w+\b`)
)

// The call paths in doc.go files consist of function names: each must be an identifier in the code, or a word of a
// string there. Eleven used to be old names of functions.
func TestPackageCommentsNameWhatExists(t *testing.T) {
	have := map[string]bool{}
	comments := map[string]string{}
	word := regexp.MustCompile(`\w+`)
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		if filepath.Base(path) == "doc.go" {
			comments[path] = file.Doc.Text()
		}
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				have[n.Name] = true
			case *ast.BasicLit:
				for _, w := range word.FindAllString(n.Value, -1) {
					have[w] = true
				}
			}
			return true
		})
	})
	for path, text := range comments {
		for _, name := range docName.FindAllString(text, -1) {
			if name == "convertShardKeyToHashed" { // the shell's
				continue
			}
			if _, last, ok := strings.Cut(name, "."); ok && !have[last] || !ok && !have[name] {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	}
}

func receiver(fn *ast.FuncDecl) string {
	e := fn.Recv.List[0].Type
	if s, ok := e.(*ast.StarExpr); ok {
		e = s.X
	}
	if x, ok := e.(*ast.IndexExpr); ok {
		e = x.X
	}
	return fmt.Sprint(e)
}

// The properties of a stage are in its own row (agg.Trait): there used to be six lists of stage names in five packages, and a new stage had to be added to each.
func TestStagesAreListedOnce(t *testing.T) {
	stages := map[string]bool{} // quoted
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File) {
		if filepath.ToSlash(filepath.Dir(path)) != "query/agg" || strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 1 {
				if f, ok := call.Fun.(*ast.Ident); ok && (f.Name == "register" || f.Name == "info") {
					if name, ok := call.Args[0].(*ast.BasicLit); ok {
						stages[name.Value] = true
					}
				}
			}
			return true
		})
	})
	if len(stages) < 40 {
		t.Fatalf("only %d stages were found", len(stages))
	}
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if m, ok := lit.Type.(*ast.MapType); !ok || fmt.Sprint(m.Value) != "bool" {
				return true
			}
			listed := 0
			for _, e := range lit.Elts {
				kv, _ := e.(*ast.KeyValueExpr)
				if key, ok := kv.Key.(*ast.BasicLit); ok && stages[key.Value] {
					listed++
				}
			}
			if listed > 1 {
				t.Errorf("%s lists %d stages: make it a trait", set.Position(lit.Pos()), listed)
			}
			return true
		})
	})
}
