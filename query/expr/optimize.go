package expr

import (
	"strings"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// optimize folds constants, operands first. Errors found in the process fail the operation even if no document would
// have reached them, as on the real server; in an unfailing scope they are raised during evaluation.
func (s *Scope) optimize(n node) (node, error) {
	switch n := n.(type) {
	case *object:
		if err := s.optimizeAll(n.vals); err != nil {
			return nil, err
		}
		return s.fold(n, n.vals)
	case *array:
		if err := s.optimizeAll(n.elems); err != nil {
			return nil, err
		}
		return s.fold(n, n.elems)
	case *call:
		if n.op.optimize != nil {
			return n.op.optimize(n, s)
		}
		if err := s.optimizeAll(n.args); err != nil {
			return nil, err
		}
		if n.op.prepare != nil {
			if err := n.op.prepare(n, s); err != nil {
				return s.failed(n, err)
			}
		}
		if n.op.volatile || n.op.unfolded {
			return n, nil
		}
		return s.fold(n, n.args)
	}
	return n, nil
}

// optimizeAll optimizes operands in place.
func (s *Scope) optimizeAll(args []node) error {
	for i, a := range args {
		if a == nil {
			continue
		}
		n, err := s.optimize(a)
		if err != nil {
			return err
		}
		args[i] = n
	}
	return nil
}

// fold evaluates n now if all its operands are constants.
func (s *Scope) fold(n node, args []node) (node, error) {
	for _, a := range args {
		if a == nil {
			continue
		}
		if _, ok := a.(*constant); !ok {
			return n, nil
		}
	}
	v, err := n.eval(NewFrame(s))
	if err != nil {
		return s.failed(n, err)
	}
	return &constant{v: v}, nil
}

// failed handles a node that could not be folded.
func (s *Scope) failed(n node, err error) (node, error) {
	if s.late && (s.env.Work == nil || s.env.Work.Check() == nil) {
		return n, nil
	}
	return nil, s.foldError(err)
}

// WhileFolding reports whether an error was raised while constants of a pipeline were folded, which happens
// after parsing: its stage does not prefix it.
func WhileFolding(err error) bool {
	return strings.HasPrefix(mongoerr.From(err).Message, pipelineFoldContext)
}

// foldError adds the context of folding to an error.
func (s *Scope) foldError(err error) error {
	if s.env.Work != nil && s.env.Work.Check() != nil {
		return err // the operation has to stop
	}
	ctx := s.env.FoldContext
	if ctx == "" {
		ctx = pipelineFoldContext
	}
	return mongoerr.From(err).Prefix(ctx + " :: caused by :: ")
}
