package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/expr"
)

// Lang is the query language's environment in one operation: clock, variables, collation.
type Lang struct {
	Env   *expr.Env
	Scope *expr.Scope
	Coll  *collation.Spec
}

// NewLang makes the language environment of an operation. let is its variables, nil without.
func (e *Executor) NewLang(op *command.Op, spec *collation.Spec, let []byte) (*Lang, error) {
	both := new(struct {
		lang Lang
		env  expr.Env
	})
	l := &both.lang
	now, cluster := e.env.Now()
	l.Coll, l.Env = spec, &both.env
	both.env = expr.Env{NowMS: now, ClusterTime: cluster, Collator: spec.Collator(), Work: op.Work(), UserRoles: op.UserRoles(), NoScripts: e.noScripts()}
	l.Scope = expr.NewScope(l.Env)
	return l, l.Scope.DefineLet(let)
}

// Standing returns the language environment of filters that are kept for many operations: they read the clock
// at each evaluation.
func (e *Executor) Standing(spec *collation.Spec) *Lang {
	l := timeless(spec, e.env.Now)
	l.Env.NoScripts = e.noScripts()
	return l
}

func (e *Executor) noScripts() bool {
	k := e.knobs.Load()
	return k != nil && k.noScripts
}

// Timeless returns the language environment of filters that are compiled only to validate them, so that the time does not matter.
func Timeless(spec *collation.Spec) *Lang {
	return timeless(spec, func() (int64, uint64) { return 0, 0 })
}

func timeless(spec *collation.Spec, clock func() (int64, uint64)) *Lang {
	env := &expr.Env{Collator: spec.Collator(), Clock: clock}
	return &Lang{Env: env, Scope: expr.NewScope(env), Coll: spec}
}
