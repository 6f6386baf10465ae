package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
)

// checks has what the source of auth contains about checks of privileges: what each function (.name for a method) and variable of the package
// calls, and the fields of a command that it reads (Request.Arg, Request.statements).
type checks struct {
	mentions map[string][]string
	reads    map[string][]string
	rows     map[string][]string // of the table of rules: what the row of a command mentions
}

func readChecks(t *testing.T) checks {
	t.Helper()
	c := checks{mentions: map[string][]string{}, reads: map[string][]string{}, rows: map[string][]string{}}
	files, err := filepath.Glob("../../auth/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" {
					ast.Inspect(d, c.assignment)
					continue
				}
				if d.Recv != nil {
					c.read("."+d.Name.Name, d)
				} else {
					c.read(d.Name.Name, d)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && len(v.Values) == 1 && v.Names[0].Name == "rules" {
						ast.Inspect(v, c.row)
					}
				}
			}
		}
	}
	return c
}

// read records what a declaration mentions and reads.
func (c *checks) read(name string, d ast.Node) {
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if strings.HasPrefix(n.Name, "check") || n.Name == "stageRules" { // also where they are values
				c.mentions[name] = append(c.mentions[name], n.Name)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok {
				c.mentions[name] = append(c.mentions[name], f.Name)
			}
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			c.mentions[name] = append(c.mentions[name], "."+s.Sel.Name)
			if s.Sel.Name != "Arg" && s.Sel.Name != "statements" {
				return true
			}
			if lit, ok := n.Args[0].(*ast.BasicLit); ok {
				field, _ := strconv.Unquote(lit.Value)
				c.reads[name] = append(c.reads[name], field)
			} else if name != ".statements" {
				c.reads[name] = append(c.reads[name], listedTexts(d)...) // the name is one of a list
			}
		}
		return true
	})
}

// listedTexts lists the texts of a declaration's lists of strings.
func listedTexts(d ast.Node) (out []string) {
	ast.Inspect(d, func(n ast.Node) bool {
		if list, ok := n.(*ast.CompositeLit); ok {
			for _, e := range list.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					e = kv.Key
				}
				if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					out = append(out, text)
				}
			}
		}
		return true
	})
	return out
}

// row records a row of the table of rules.
func (c *checks) row(n ast.Node) bool {
	kv, ok := n.(*ast.KeyValueExpr)
	if !ok {
		return true
	}
	if lit, ok := kv.Key.(*ast.BasicLit); ok {
		command, _ := strconv.Unquote(lit.Value)
		c.rowOf(command, kv.Value)
	}
	return true
}

// assignment records rules["x"] = …, and the checks of stages.
func (c *checks) assignment(n ast.Node) bool {
	a, ok := n.(*ast.AssignStmt)
	if !ok || len(a.Lhs) != 1 {
		return true
	}
	switch l := a.Lhs[0].(type) {
	case *ast.IndexExpr:
		if lit, ok := l.Index.(*ast.BasicLit); ok {
			command, _ := strconv.Unquote(lit.Value)
			c.rowOf(command, a.Rhs[0])
		}
	case *ast.Ident:
		c.read(l.Name, a.Rhs[0])
	}
	return true
}

func (c *checks) rowOf(command string, rule ast.Expr) {
	ast.Inspect(rule, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && strings.HasPrefix(id.Name, "check") {
			c.rows[command] = append(c.rows[command], id.Name)
		}
		return true
	})
}

// fields lists the fields that a command's check reads.
func (c *checks) fields(command string) (out []string) {
	seen := map[string]bool{}
	for todo := c.rows[command]; len(todo) > 0; {
		name := todo[0]
		if todo = todo[1:]; seen[name] {
			continue
		}
		seen[name] = true
		out = append(out, c.reads[name]...)
		todo = append(slices.Clone(todo), c.mentions[name]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// The rows of the commands have each field that the check of their privileges reads, and refuse others: a request whose fields are misspelt for
// the check is refused, and does not run as something other than what was checked.
func TestCheckedFieldsAreFields(t *testing.T) {
	c := readChecks(t)
	for name, want := range map[string]string{"update": "updates", "aggregate": "pipeline", "mapReduce": "out", "createUser": "roles", "create": "bypassDocumentValidation"} {
		if got := c.fields(name); !slices.Contains(got, want) {
			t.Fatalf("the check of %s reads %q, as far as the source was understood", name, got)
		}
	}
	config := newConfig(isStart)
	config.Listen, config.Memory = []string{"127.0.0.1:0"}, true
	a, err := newAssembly(config, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.stop(context.Background()) }()
	if err := a.sharded(); err != nil {
		t.Fatal(err)
	}
	checked, onMembers := 0, map[string]bool{}
	for _, s := range a.services {
		for _, spec := range s.Table.Specs() {
			onMembers[spec.Name] = onMembers[spec.Name] || s.Role != command.Router
		}
	}
	for _, s := range a.services {
		for _, spec := range s.Table.Specs() {
			if s.Role == command.Router && spec.Lenient && onMembers[spec.Name] {
				continue // it relays the request as it is to members, whose rows are strict
			}
			if spec.NotBuilt || auth.RuleFor(spec.Name) == nil {
				continue
			}
			for _, field := range c.fields(spec.Name) {
				checked++
				switch spec.Name + " " + field {
				case "create bypassDocumentValidation", "collMod bypassDocumentValidation": // of an $out, which no view may have; refused as an unknown field
					continue
				case "applyOps bypassDocumentValidation": // spelt otherwise, it bypasses nothing and requires nothing
					continue
				case "currentOp $ownOps", "currentOp $all": // spelt otherwise, it asks for more and requires more
					continue
				}
				if !spec.Has(field) && !msg.Generic([]byte(field)) {
					t.Errorf("the check of %s reads %s, which is none of its fields", spec.Name, field)
				}
				if spec.Lenient && spec.Name != "cloneCollectionAsCapped" { // which requires its field
					t.Errorf("the check of %s reads %s, and the command tolerates fields that it does not know", spec.Name, field)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d fields were checked", checked)
	}
}
