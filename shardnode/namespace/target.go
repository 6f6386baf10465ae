package namespace

import (
	"bytes"
	"context"
	"slices"

	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Target describes the collection that an $out is to replace, if there is one, as it was when the $out began. The new collection gets its
// options and indexes: if these have changed by the end, the $out fails, so that the change is not lost.
type Target struct {
	there   bool
	options []byte
	indexes [][]byte
}

// TargetFrom returns the Target that another member has described.
func TargetFrom(there bool, options []byte, indexes [][]byte) Target {
	return Target{there, options, indexes}
}

// Described describes the target for another member.
func (t Target) Described() (there bool, options []byte, indexes [][]byte) {
	return t.there, t.options, t.indexes
}

// TargetOf describes a collection; nil is none.
func TargetOf(c *catalog.Collection) (t Target) {
	if c == nil {
		return t
	}
	t.there, t.options = true, bytes.Clone(c.Options)
	for _, x := range c.Indexes {
		t.indexes = append(t.indexes, bytes.Clone(x.Spec.Raw))
	}
	return t
}

// Check returns an error if what is under the name now has other options or indexes.
func (t Target) Check(ns string, c *catalog.Collection) error {
	now := TargetOf(c)
	switch {
	case t.there && !now.there:
		return TargetChanged(ns, "it was dropped")
	case now.there && !t.there:
		return TargetChanged(ns, "it was created")
	case !bytes.Equal(t.options, now.options):
		return TargetChanged(ns, "its options were changed")
	case !slices.EqualFunc(t.indexes, now.indexes, bytes.Equal):
		return TargetChanged(ns, "its indexes were changed")
	}
	return nil
}

// TargetChanged is the error of an $out whose target was changed while it was writing.
func TargetChanged(ns, how string) error {
	return mongoerr.Newf(mongoerr.CommandFailed, "the target collection %s of $out has changed while it was written: %s", ns, how)
}

type targetKey struct{}

// ExpectTarget has a rename check, under its locks, that its target is still this one.
func ExpectTarget(op interface{ Carry(key, val any) }, t Target) { op.Carry(targetKey{}, t) }

// CheckTarget makes that check, if ExpectTarget was called for the rename.
func CheckTarget(ctx context.Context, ns string, c *catalog.Collection) error {
	if t, ok := ctx.Value(targetKey{}).(Target); ok {
		return t.Check(ns, c)
	}
	return nil
}
