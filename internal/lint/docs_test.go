package lint

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The names in documents other than those of functions.
var (
	docCode    = regexp.MustCompile("`([^`\n]+)`")
	docFile    = regexp.MustCompile(`^[\w./-]+\.(?:go|txt|json|md|sh|js|py)$`)
	docMember  = regexp.MustCompile(`^\w+\.([A-Z]\w+)$`)
	docTest    = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*`)
	docSetting = regexp.MustCompile(`\bSHOAL_[A-Z_]+`)
	docGo      = regexp.MustCompile("(?:^|[` ])go (?:test|run|build|vet|generate|doc) ([^`\n#]+)")
	docMake    = regexp.MustCompile("(?m)(?:`|^    )make ([\\w-]+)")
	makeTarget = regexp.MustCompile(`(?m)^([\w-]+):`)
)

// tree holds the names in the repository that documents may use.
type tree struct {
	files, dirs, bases map[string]bool
	words              map[string]bool // identifiers of the code, and words of its strings
	targets            map[string]bool // of make
}

func readTree(t *testing.T) *tree {
	t.Helper()
	x := &tree{files: map[string]bool{}, dirs: map[string]bool{}, bases: map[string]bool{}, words: map[string]bool{}, targets: map[string]bool{}}
	out, err := exec.Command("git", "-C", root(t), "ls-files").Output()
	if err != nil {
		t.Skip("no repository")
	}
	for _, f := range strings.Fields(string(out)) {
		x.files[f], x.bases[path.Base(f)] = true, true
		for d := path.Dir(f); d != "."; d = path.Dir(d) {
			x.dirs[d] = true
		}
		if strings.HasPrefix(f, "compat-tests/") && strings.HasSuffix(f, ".go") { // a separate module
			text, err := os.ReadFile(filepath.Join(root(t), f))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range docTest.FindAllString(string(text), -1) {
				x.words[name] = true
			}
		}
	}
	word := regexp.MustCompile(`\w+`)
	eachFile(t, func(_ string, _ *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				x.words[n.Name] = true
			case *ast.BasicLit:
				for _, w := range word.FindAllString(n.Value, -1) {
					x.words[w] = true
				}
			}
			return true
		})
	})
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		x.targets[m[1]] = true
	}
	return x
}

// missing returns the names in a text that the tree does not have.
func (x *tree) missing(text string) (out []string) {
	for _, m := range docCode.FindAllStringSubmatch(text, -1) {
		name := strings.TrimSuffix(m[1], "/")
		first, _, inside := strings.Cut(name, "/")
		switch member := docMember.FindStringSubmatch(name); {
		case docFile.MatchString(name), inside && x.dirs[first] && regexp.MustCompile(`^[\w./-]+$`).MatchString(name):
			if !x.files[name] && !x.dirs[name] && (inside || !x.bases[name]) {
				out = append(out, "file "+name)
			}
		case member != nil && !x.words[member[1]]:
			out = append(out, name)
		}
	}
	for _, name := range append(docTest.FindAllString(text, -1), docSetting.FindAllString(text, -1)...) {
		if !x.words[name] {
			out = append(out, name)
		}
	}
	for _, m := range docGo.FindAllStringSubmatch(text, -1) {
		for _, w := range strings.Fields(m[1]) {
			dir, local := strings.CutPrefix(strings.Trim(w, "'\",;:)"), "./")
			if dir = strings.Trim(strings.TrimRight(dir, "."), "/"); local && dir != "" && !x.dirs[dir] && !x.files[dir] {
				out = append(out, "package "+w)
			}
		}
	}
	for _, m := range docMake.FindAllStringSubmatch(text, -1) {
		if !x.targets[m[1]] {
			out = append(out, "make "+m[1])
		}
	}
	return out
}

// Documents name files, tests, packages, members of packages, settings and targets of make; each must exist. The programs of the commands of
// docs/performance.md are in the tree: a reader who doubts a figure can measure it.
func TestDocumentsNameWhatExists(t *testing.T) {
	x := readTree(t)
	docs, err := filepath.Glob(filepath.Join(root(t), "docs", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, name := range []string{"CONTRIBUTING.md", "README.md", "SECURITY.md"} {
		docs = append(docs, filepath.Join(root(t), name))
	}
	for _, doc := range docs {
		if filepath.Base(doc) == "roadmap.md" { // it names things that do not exist yet, or no longer
			continue
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range x.missing(string(text)) {
			t.Errorf("%s names %s, which does not exist", filepath.Base(doc), name)
		}
		if filepath.Base(doc) != "performance.md" {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^    ([a-z]\S*)`).FindAllStringSubmatch(string(text), -1) {
			if m[1] != "go" && m[1] != "make" && m[1] != "bin/shoal" {
				t.Errorf("performance.md runs %s, which the tree does not have", m[1])
			}
		}
	}
}

func TestMissingNamesAreFound(t *testing.T) {
	x := readTree(t)
	for text, want := range map[string]string{
		"`router/target.go` and `query/agg`, `docs/security.md`, `internal/lint/`, `simple.go`": "",
		"`router/gone.go`":                "file router/gone.go",
		"`query/gone`":                    "file query/gone",
		"`gone.go`":                       "file gone.go",
		"`command.Spec` stands":           "",
		"`command.Gone" + "Spec`":         "command.Gone" + "Spec",
		"see TestDocumentsNameWhatExists": "",
		"see Test" + "GoneForGood":        "Test" + "GoneForGood",
		"    go test ./router -run X":     "",
		"    go test ./gone/... -run X":   "package ./gone/...",
		"    make test\nand `make nothing`, but to make sense it is not": "make nothing",
		"SHOAL_NOTHING" + "_AT_ALL=1":                                    "SHOAL_NOTHING" + "_AT_ALL",
	} {
		if got := strings.Join(x.missing(text), ", "); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
