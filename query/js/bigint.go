package js

import (
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"strings"

	"github.com/dop251/goja"
	"github.com/dop251/goja/ast"
	"github.com/dop251/goja/parser"
	jstoken "github.com/dop251/goja/token"
	"github.com/dop251/goja/unistring"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The interpreter computes with BigInts of any size, each operation in one native step: squaring one in a loop soon takes hours and all
// memory. So sources that use BigInt are changed before they are compiled: each operator that may make a larger BigInt, or read one from a
// string, becomes a call of a function in bigint.js that measures first. They run in a virtual machine of their own, since values could get
// from one function to another by globals, and sources that do not use BigInt keep their operators: their virtual machine has no BigInt.
// Rejected: the calls in all sources. They make arithmetic five times as expensive, for a type that hardly any script uses.

// maxBits is the size of the largest BigInt, that of the real server's JavaScript engine.
const maxBits = 1 << 20

var errBigInt = mongoerr.New(mongoerr.JSInterpreterFailure, "RangeError: BigInt is too large to allocate")

// boundedOperators has the name of the function in bigint.js for each operator.
var boundedOperators = map[jstoken.Token]string{
	jstoken.PLUS: "add", jstoken.MINUS: "subtract", jstoken.MULTIPLY: "multiply", jstoken.EXPONENT: "power", jstoken.SHIFT_LEFT: "left", jstoken.SHIFT_RIGHT: "right",
	jstoken.LESS: "less", jstoken.GREATER: "greater", jstoken.LESS_OR_EQUAL: "lessOrEqual", jstoken.GREATER_OR_EQUAL: "greaterOrEqual",
	jstoken.EQUAL: "equal", jstoken.NOT_EQUAL: "unequal",
}

// parse reads a source. The parser would read the file that a comment of the source names as its source map.
func parse(src string) (*ast.Program, error) {
	return goja.Parse("", src, parser.WithDisableSourceMaps)
}

// maybeLiteral matches whatever a BigInt literal may look like.
var maybeLiteral = regexp.MustCompile(`(?:^|[^\w$])[0-9]\w*n`)

// usesBigInt reports whether a source uses BigInt: by a literal, by the name, or by a literal in what it passes to eval or Function.
func usesBigInt(src string, p *ast.Program) bool {
	if strings.Contains(src, "BigInt") || strings.Contains(src, "BigUint") {
		return true
	}
	if !maybeLiteral.MatchString(src) {
		return false
	}
	for _, name := range []string{"eval", "Function", "constructor"} {
		if strings.Contains(src, name) {
			return true
		}
	}
	return hasLiteral(p)
}

func hasLiteral(p *ast.Program) bool {
	w := bounder{seen: map[any]bool{}, only: true}
	w.walk(reflect.ValueOf(p))
	return w.found
}

// compileBounded compiles a program with its operators replaced.
func compileBounded(p *ast.Program) (*goja.Program, error) {
	w := bounder{seen: map[any]bool{}}
	w.walk(reflect.ValueOf(p))
	if w.err != nil {
		return nil, w.err
	}
	return goja.CompileAST(p, false)
}

// bounder visits all nodes of a program, whatever their kinds: a kind that a list of kinds forgot would keep its operators.
type bounder struct {
	seen  map[any]bool // pointers: declarations are listed with their scope, too
	only  bool         // nothing is changed
	found bool         // there is a BigInt literal
	err   error
}

var (
	expressionType = reflect.TypeFor[ast.Expression]()
	nodePackage    = expressionType.PkgPath()
)

func (w *bounder) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		w.walk(v.Elem())
		if e, ok := v.Interface().(ast.Expression); ok && !w.only {
			w.replace(v, e)
		}
	case reflect.Pointer:
		if v.IsNil() || v.Type().Elem().PkgPath() != nodePackage || w.seen[v.Interface()] {
			return
		}
		w.seen[v.Interface()] = true
		if n, ok := v.Interface().(*ast.NumberLiteral); ok {
			w.literal(n)
		}
		w.walk(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			w.walk(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				w.walk(v.Field(i))
			}
		}
	}
}

func (w *bounder) literal(n *ast.NumberLiteral) {
	x, ok := n.Value.(*big.Int)
	w.found = w.found || ok
	if ok && x.BitLen() > maxBits {
		w.err = errBigInt
	}
}

// replace sets v to the replacement of e.
func (w *bounder) replace(v reflect.Value, e ast.Expression) {
	to, err := bounded(e)
	if err != nil {
		w.err = err
		return
	}
	if to == nil {
		return
	}
	if !v.CanSet() || v.Type() != expressionType {
		w.err = fmt.Errorf("an expression in a %s cannot be bounded", v.Type())
		return
	}
	v.Set(reflect.ValueOf(to))
}

// bounded returns the replacement of e, nil if e may stay.
func bounded(e ast.Expression) (ast.Expression, error) {
	switch e := e.(type) {
	case *ast.BinaryExpression:
		if name := boundedOperators[e.Operator]; name != "" {
			return helper(name, e.Left, e.Right), nil
		}
	case *ast.AssignExpression:
		if name := boundedOperators[e.Operator]; name != "" {
			return boundedAssignment(name, e)
		}
	}
	return nil, nil
}

// boundedAssignment assigns an operator's result. The object of a member expression is evaluated once, and before the operand.
func boundedAssignment(name string, e *ast.AssignExpression) (ast.Expression, error) {
	switch to := e.Left.(type) {
	case *ast.Identifier:
		return &ast.AssignExpression{Operator: jstoken.ASSIGN, Left: to, Right: helper(name, to, e.Right)}, nil
	case *ast.DotExpression:
		if !isSuper(to.Left) {
			key := &ast.StringLiteral{Idx: to.Identifier.Idx, Value: to.Identifier.Name}
			return helper("assign", helper("member", to.Left, key), helperName(name, e), e.Right), nil
		}
		return &ast.AssignExpression{Operator: jstoken.ASSIGN, Left: to, Right: helper(name, to, e.Right)}, nil
	case *ast.BracketExpression:
		if !isSuper(to.Left) {
			return helper("assign", helper("member", to.Left, to.Member), helperName(name, e), e.Right), nil
		}
	case *ast.PrivateDotExpression:
		switch to.Left.(type) {
		case *ast.Identifier, *ast.ThisExpression:
			return &ast.AssignExpression{Operator: jstoken.ASSIGN, Left: to, Right: helper(name, to, e.Right)}, nil
		}
	}
	return nil, mongoerr.New(mongoerr.JSInterpreterFailure, "SyntaxError: this form of assignment with an operator is not supported in functions that use BigInt")
}

func isSuper(e ast.Expression) bool {
	_, ok := e.(*ast.SuperExpression)
	return ok
}

// helperPrefix begins the names of the functions of bigint.js. No script can write such an identifier.
const helperPrefix = "\x00"

func helperName(name string, at ast.Expression) *ast.Identifier {
	return &ast.Identifier{Name: unistring.String(helperPrefix + name), Idx: at.Idx0()}
}

func helper(name string, args ...ast.Expression) *ast.CallExpression {
	last := args[len(args)-1]
	return &ast.CallExpression{Callee: helperName(name, args[0]), LeftParenthesis: args[0].Idx0(), ArgumentList: args, RightParenthesis: last.Idx1()}
}

// installBigInt defines what the functions of bigint.js need, and runs it.
func (r *Runtime) installBigInt() {
	syntaxError := r.vm.Get("SyntaxError")
	_ = r.vm.Set("shallowSource", r.shallowSource)
	_ = r.vm.Set("bigBits", func(c goja.FunctionCall) goja.Value {
		x, ok := c.Argument(0).Export().(*big.Int)
		if !ok {
			return r.vm.ToValue(0)
		}
		return r.vm.ToValue(x.BitLen())
	})
	_ = r.vm.Set("evaluateSource", func(c goja.FunctionCall) goja.Value {
		p, err := parse(c.Argument(0).String())
		var prog *goja.Program
		if err == nil {
			scopeDeclarations(p)
			prog, err = compileBounded(p)
		}
		if err != nil {
			o, _ := r.vm.New(syntaxError, r.vm.ToValue(err.Error()))
			panic(o) // an exception of JavaScript
		}
		v, err := r.vm.RunProgram(prog)
		if err != nil {
			panic(err) // an exception of JavaScript, or an interrupt
		}
		return v
	})
	if _, err := r.vm.RunProgram(bigintPrelude); err != nil {
		panic(err) // a constant of this package
	}
}

// scopeDeclarations wraps a program in a block if it has declarations that an eval keeps to itself.
func scopeDeclarations(p *ast.Program) {
	for _, s := range p.Body {
		switch s.(type) {
		case *ast.LexicalDeclaration, *ast.ClassDeclaration:
			p.Body = []ast.Statement{&ast.BlockStatement{LeftBrace: p.Body[0].Idx0(), List: p.Body, RightBrace: s.Idx1()}}
			return
		}
	}
}
