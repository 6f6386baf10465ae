package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// compileFilter compiles a filter in an operation's language; nil stands for everything.
func compileFilter(filter []byte, l *lang, spec *collation.Spec) (*match.Matcher, error) {
	var scope *expr.Scope
	if l != nil {
		scope = l.scope
	}
	return exec.CompileFilter(filter, scope, spec)
}

// collationOf is the collation an operation runs under: its own, else the collection's.
func (n *Node) collationOf(arg value.Value, c *catalog.Collection) (*collation.Spec, error) {
	if arg.T == value.Document && len(arg.Doc()) > 5 {
		return collation.Parse(arg.Doc())
	}
	if c != nil && c.Collation != nil {
		m := n.meta(c)
		return m.collation, nil
	}
	return nil, nil
}

// nonNegative reads an integer argument of find and its like, which refuse negative numbers with BadValue.
func nonNegative(op *command.Op, name string) (int64, error) {
	i := op.Req.Int(name, 0)
	if i < 0 {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 0, actual value '%d'", name, i)
	}
	return i, nil
}
