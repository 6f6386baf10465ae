package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// bareCodesLeft is the maximum number of bare codes. It is only ever lowered.
const bareCodesLeft = 0

// TestErrorCodesHaveNames keeps bare numbers of errors that have a name out of tests: a reader of a table, or of a comparison,
// sees NamespaceNotFound and not 26. The test examines struct fields, keys and variables whose name ends in "code", and values
// compared with a function or field of such a name. The table of errors has its own test, whose numbers are the point.
func TestErrorCodesHaveNames(t *testing.T) {
	names := codeNames(t)
	var found []string
	eachFile(t, func(path string, set *token.FileSet, file *ast.File) {
		path = filepath.ToSlash(path)
		if !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "compat-tests/") || strings.HasPrefix(path, "wire/mongoerr/") {
			return
		}
		for _, lit := range bareCodes(file) {
			if name := names[lit.Value]; name != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s is mongoerr.%s", path, set.Position(lit.Pos()).Line, lit.Value, name))
			}
		}
	})
	if len(found) > bareCodesLeft {
		t.Errorf("%d error codes in tests without their name, may not be more than %d:\n%s", len(found), bareCodesLeft, strings.Join(found, "\n"))
	}
}

// What the rule is to find, and what it is to leave alone.
func TestBareCodesAreFound(t *testing.T) {
	for src, want := range map[string]string{
		`if n.code("d", "{}") != 26 {}`:                                         "26",
		`if m["code"] != int32(11000) {}`:                                       "11000",
		`if codeOf(err) == 50 || n < 60 {}`:                                     "50",
		`if got := n.code("x"); got != 43 {}`:                                   "43",
		`_ = []struct{cmd string; code int32}{{"a", 26}, {"b", 0}}`:             "26 0",
		`_ = []struct{cmd string; code int32}{{cmd: "a", code: 72}}`:            "72",
		`for cmd, code := range map[string]int32{"a": 14} { _, _ = cmd, code }`: "14",
		`switch codeOf(err) { case 6, 7: }`:                                     "6 7",
		`_ = bson.M{"errorCode": 10107, "times": 3}`:                            "10107",
		`c.code = 50`: "50",
		`code := 50`:  "50",
		`err := mongoerr.New(mongoerr.Code(26), "x")`:                                                                  "26",
		`if err.HasErrorCode(11000) {}`:                                                                                "11000",
		`for _, want := range []int32{72, 0} { if n.code("x") != want {} }`:                                            "72 0",
		`for x, want := range map[string]int32{"a": 72} { if got := n.code(x); got != want {} }`:                       "72",
		`for _, tc := range []struct{x string; want int32}{{"a", 26}} { if n.code(tc.x) != tc.want {} }`:               "26",
		`for _, tc := range []struct{x string; want int}{{x: "a", want: 26}} { if n.code(tc.x) != int32(tc.want) {} }`: "26",
		`for _, tc := range []struct{x string; want int32}{{"a", 26}} { if n.count(tc.x) != tc.want {} }`:              "",
		`want := 72; if n.code("x") != want {}`:                                                                        "72",
		`if m["n"] != int32(26) {}`:                                                                                    "",
		`_ = []struct{cmd string; n int32}{{"a", 26}}`:                                                                 "",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\nfunc _() {\n"+src+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range bareCodes(file) {
			got = append(got, l.Value)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: found %q, want %q", src, s, want)
		}
	}
}

// codeNames maps the numbers of errors to their names.
func codeNames(t *testing.T) map[string]string {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(root(t), "wire/mongoerr/codes_gen.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+)\s+Code = ([1-9]\d*)$`).FindAllSubmatch(src, -1) {
		names[string(m[2])] = string(m[1])
	}
	if len(names) < 100 {
		t.Fatalf("only %d named errors in the table", len(names))
	}
	return names
}

var ofCode = regexp.MustCompile(`(?i)code(s|of)?$`)

// tellsCode reports whether an expression yields an error's code, by its name.
func tellsCode(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.Ident:
		if ofCode.MatchString(x.Name) {
			return true
		}
		return x.Obj != nil && assignedCode(x)
	case *ast.SelectorExpr:
		return ofCode.MatchString(x.Sel.Name)
	case *ast.ParenExpr:
		return tellsCode(x.X)
	case *ast.TypeAssertExpr:
		return tellsCode(x.X)
	case *ast.IndexExpr:
		return isCodeText(x.Index)
	case *ast.CallExpr:
		for _, a := range x.Args {
			if isCodeText(a) {
				return true
			}
		}
		return tellsCode(x.Fun)
	}
	return false
}

// assignedCode reports whether a variable was set to an error's code where it was declared.
func assignedCode(id *ast.Ident) bool {
	as, ok := id.Obj.Decl.(*ast.AssignStmt)
	if !ok || len(as.Lhs) != len(as.Rhs) {
		return false
	}
	for i, l := range as.Lhs {
		if v, ok := l.(*ast.Ident); ok && v.Name == id.Name {
			call, ok := as.Rhs[i].(*ast.CallExpr)
			return ok && tellsCode(call)
		}
	}
	return false
}

// isCodeText reports whether an expression is a string that names a field like "code".
func isCodeText(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && l.Kind == token.STRING && ofCode.MatchString(strings.Trim(l.Value, "\"`"))
}

// bareCodes lists the numbers in a file that are used as an error's code.
func bareCodes(file *ast.File) (out []*ast.BasicLit) {
	var add func(e ast.Expr)
	add = func(e ast.Expr) {
		switch x := e.(type) {
		case *ast.BasicLit:
			if x.Kind == token.INT {
				out = append(out, x)
			}
		case *ast.CallExpr: // int32(26)
			if f, ok := x.Fun.(*ast.Ident); ok && len(x.Args) == 1 && strings.HasPrefix(f.Name, "int") {
				add(x.Args[0])
			}
		case *ast.CompositeLit: // a list of codes
			if _, ok := x.Type.(*ast.ArrayType); ok {
				for _, v := range x.Elts {
					add(v)
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.BinaryExpr:
			if x.Op == token.EQL || x.Op == token.NEQ {
				if tellsCode(x.X) {
					add(x.Y)
					comparedCodes(file, x.Y, add)
				} else if tellsCode(x.Y) {
					add(x.X)
					comparedCodes(file, x.X, add)
				}
			}
		case *ast.AssignStmt:
			if len(x.Lhs) == 1 && len(x.Rhs) == 1 && tellsCode(x.Lhs[0]) {
				add(x.Rhs[0])
			}
		case *ast.CallExpr: // mongoerr.Code(26), err.HasErrorCode(26)
			if f, ok := x.Fun.(*ast.SelectorExpr); ok && len(x.Args) == 1 && ofCode.MatchString(f.Sel.Name) {
				add(x.Args[0])
			}
		case *ast.KeyValueExpr:
			if k, ok := x.Key.(*ast.Ident); isCodeText(x.Key) || ok && ofCode.MatchString(k.Name) {
				add(x.Value)
			}
		case *ast.SwitchStmt:
			if x.Tag != nil && tellsCode(x.Tag) {
				for _, s := range x.Body.List {
					for _, e := range s.(*ast.CaseClause).List {
						add(e)
					}
				}
			}
		case *ast.RangeStmt:
			rangeCodes(x, add)
		case *ast.CompositeLit:
			rowCodes(x, add)
		}
		return true
	})
	return out
}

// comparedCodes passes to add the values, in the file, of a variable or of a field of a table's rows that is compared with a code.
func comparedCodes(file *ast.File, e ast.Expr, add func(ast.Expr)) {
	for call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1; call, ok = e.(*ast.CallExpr) { // int32(want)
		e = call.Args[0]
	}
	switch x := e.(type) {
	case *ast.Ident:
		if x.Obj == nil {
			return
		}
		as, ok := x.Obj.Decl.(*ast.AssignStmt)
		if !ok || tellsCode(x) { // a value whose name ends in "code" is found where it is set
			return
		}
		for i, l := range as.Lhs {
			if v, ok := l.(*ast.Ident); !ok || v.Name != x.Name {
				continue
			}
			if over, ok := as.Rhs[0].(*ast.UnaryExpr); ok && over.Op == token.RANGE {
				elementsOf(over.X, i == 0, add)
			} else if len(as.Rhs) == len(as.Lhs) {
				add(as.Rhs[i])
			}
		}
	case *ast.SelectorExpr:
		row, ok := x.X.(*ast.Ident)
		if !ok || row.Obj == nil || ofCode.MatchString(x.Sel.Name) {
			return
		}
		if as, ok := row.Obj.Decl.(*ast.AssignStmt); ok {
			if over, ok := as.Rhs[0].(*ast.UnaryExpr); ok && over.Op == token.RANGE {
				if lit, ok := over.X.(*ast.CompositeLit); ok {
					columnCodes(lit, func(name string) bool { return name == x.Sel.Name }, true, add)
				}
			}
		}
	}
}

// elementsOf passes to add the keys or the values of a literal.
func elementsOf(e ast.Expr, keys bool, add func(ast.Expr)) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return
	}
	for _, v := range lit.Elts {
		if kv, ok := v.(*ast.KeyValueExpr); ok && keys {
			add(kv.Key)
		} else if ok {
			add(kv.Value)
		} else if !keys {
			add(v)
		}
	}
}

// rangeCodes passes to add the values of a literal over which a variable named as a code ranges.
func rangeCodes(x *ast.RangeStmt, add func(ast.Expr)) {
	lit, ok := x.X.(*ast.CompositeLit)
	if !ok {
		return
	}
	k, _ := x.Key.(*ast.Ident)
	v, _ := x.Value.(*ast.Ident)
	for _, e := range lit.Elts {
		kv, keyed := e.(*ast.KeyValueExpr)
		if keyed && k != nil && ofCode.MatchString(k.Name) {
			add(kv.Key)
		}
		if v != nil && ofCode.MatchString(v.Name) {
			if keyed {
				e = kv.Value
			}
			add(e)
		}
	}
}

// rowCodes passes to add the values in the columns of a table that are named as a code. Rows with field names are found by these.
func rowCodes(x *ast.CompositeLit, add func(ast.Expr)) {
	columnCodes(x, ofCode.MatchString, false, add)
}

// columnCodes passes to add the values in some columns of a table; with keyed, also those of rows with field names.
func columnCodes(x *ast.CompositeLit, meant func(name string) bool, keyed bool, add func(ast.Expr)) {
	var fields *ast.FieldList
	switch ty := x.Type.(type) {
	case *ast.ArrayType:
		fields = fieldsOf(ty.Elt)
	case *ast.MapType:
		fields = fieldsOf(ty.Value)
	}
	if fields == nil {
		return
	}
	columns := map[int]bool{}
	n := 0
	for _, f := range fields.List {
		for _, name := range f.Names {
			columns[n] = meant(name.Name)
			n++
		}
	}
	for _, e := range x.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
		}
		row, ok := e.(*ast.CompositeLit)
		if !ok {
			continue
		}
		for i, v := range row.Elts {
			if kv, ok := v.(*ast.KeyValueExpr); !ok && columns[i] {
				add(v)
			} else if key, _ := kvKey(kv); keyed && ok && meant(key) {
				add(kv.Value)
			}
		}
	}
}

// kvKey returns the name of a field in a literal.
func kvKey(kv *ast.KeyValueExpr) (name string, ok bool) {
	if kv == nil {
		return "", false
	}
	id, ok := kv.Key.(*ast.Ident)
	if !ok {
		return "", false
	}
	return id.Name, true
}

// fieldsOf returns the fields of a struct type that is a literal, or declared in the same file.
func fieldsOf(e ast.Expr) *ast.FieldList {
	switch x := e.(type) {
	case *ast.StructType:
		return x.Fields
	case *ast.Ident:
		if x.Obj != nil {
			if spec, ok := x.Obj.Decl.(*ast.TypeSpec); ok {
				return fieldsOf(spec.Type)
			}
		}
	}
	return nil
}
