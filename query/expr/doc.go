// Package expr is the aggregation expression language: parsed and folded once per operation, evaluated against raw
// documents.
//
//	value ──Compile(v, scope)──► Expr (immutable tree of nodes, constants folded)
//	                               │
//	document ──Frame.SetRoot──► Expr.Eval(frame) ──► value.Value (borrowed, see 2)
//
// An expression's life: Compile distinguishes paths, variables, literals and operators (parseValue, parseString,
// parseObject); an operator's row in the registry determines how its operands are read (parsePositional, parseNamed, or a
// parser of its own). Then Scope.optimize folds constants, operands first, and lets operators drop unreachable parts and
// compile what they need (a pattern). Eval walks the tree; operators read operands through node.eval and build arrays and
// documents in the Frame (beginArray, beginDoc, finish).
//
// Invariants
//
//  1. An Expr is immutable and may be shared by goroutines; a Frame belongs to one.
//  2. A value from Eval borrows from the root document, from constants, from variables or from the frame's arena. It is
//     valid until the next SetRoot (which reuses the arena); a caller that keeps it longer calls Clone.
//  3. Missing is the value of an absent field and of $$REMOVE; null is a value. An operator that treats both alike uses IsNullish.
//  4. Time, randomness, collation and user data come from Env; nothing here reads a clock. Expressions that outlive one
//     operation are compiled with Env.Clock.
//  5. Every error is a *mongoerr.Error with the code that a client sees. Errors of folding begin with Env.FoldContext.
package expr
