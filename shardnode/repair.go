package shardnode

import (
	"context"
	"reflect"
	"strings"

	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CollectionRepair is what Repair found in a collection and did.
type CollectionRepair struct {
	NS       string
	Records  int64
	Missing  int // index entries that were added
	Extra    int // index entries without a document, which were removed
	Corrupt  int // records that were no documents, which were removed
	Multikey int // indexes that were marked as having several keys for a document
	Counted  bool
	Left     []string // what cannot be repaired
}

// Changed reports whether something was repaired.
func (r *CollectionRepair) Changed() bool {
	return r.Missing+r.Extra+r.Corrupt+r.Multikey > 0 || r.Counted
}

// Repair validates every collection of a standalone server and brings indexes, multikey marks and counters in line with the documents, as validate
// with repair does for one. It calls note for each collection. Members of sets of several are refused: their data would differ from that of the others,
// from whom they can copy it.
func (s *Server) Repair(ctx context.Context, note func(*CollectionRepair)) error {
	if several, err := replication.HasRaft(replication.EngineStore(s.Engine)); err != nil || several {
		if err == nil {
			err = mongoerr.New(mongoerr.IllegalOperation, "the data belongs to a member of a replica set of several members, whose data is not repaired: "+
				"start the member with an empty directory, so that it copies the others' data")
		}
		return err
	}
	var left []string
	for _, c := range s.Engine.Catalog().All() {
		r, err := repairCollection(ctx, s.Engine, c.NS)
		if err != nil {
			return err
		}
		note(r)
		for _, what := range r.Left {
			left = append(left, r.NS+": "+what)
		}
	}
	if left != nil {
		return mongoerr.Newf(mongoerr.OperationFailed, "not everything could be repaired: %s", strings.Join(left, "; "))
	}
	return nil
}

// repairCollection validates and repairs until a validation finds nothing more: each lists a bounded number of faults.
func repairCollection(ctx context.Context, e *storage.Engine, ns string) (*CollectionRepair, error) {
	r := &CollectionRepair{NS: ns}
	var before *storage.Validation
	for {
		found, err := validateNow(ctx, e, ns)
		if err != nil || found == nil {
			return r, err
		}
		r.Records = found.Records
		if mendable(found) == 0 && !found.CountWrong || reflect.DeepEqual(found, before) {
			r.Left = unrepaired(found)
			return r, nil
		}
		if _, err := e.Repair(ctx, ns, found); err != nil {
			return r, err
		}
		r.add(found)
		before = found
	}
}

// validateNow returns what is wrong in a collection, nil if there is none of that name any more.
func validateNow(ctx context.Context, e *storage.Engine, ns string) (*storage.Validation, error) {
	snap := e.Snapshot()
	defer snap.Release()
	c := snap.Catalog().Lookup(ns)
	if c == nil {
		return nil, nil
	}
	return snap.Validate(ctx, c, nil)
}

// mendable returns the number of faults that storage.Engine.Repair mends, apart from the counters.
func mendable(found *storage.Validation) int {
	n := len(found.Corrupt) + len(found.Multikey)
	for _, x := range found.Indexes {
		n += len(x.Missing) + len(x.Extra)
	}
	return n
}

// add counts what has been repaired.
func (r *CollectionRepair) add(found *storage.Validation) {
	for _, x := range found.Indexes {
		r.Missing += len(x.Missing)
		r.Extra += len(x.Extra)
	}
	r.Corrupt += len(found.Corrupt)
	r.Multikey += len(found.Multikey)
	r.Counted = r.Counted || found.CountWrong
}

// unrepaired describes the faults that are left.
func unrepaired(found *storage.Validation) (out []string) {
	for _, x := range found.Indexes {
		switch {
		case x.Duplicate:
			out = append(out, "the unique index "+x.Name+" has a key of several documents: drop the index, or delete all but one of them")
		case x.Unordered:
			out = append(out, "the entries of the index "+x.Name+" are not in order: drop the index and create it again")
		case len(x.Missing)+len(x.Extra) > 0:
			out = append(out, "the index "+x.Name+" differs from the documents")
		}
	}
	if len(found.Corrupt) > 0 {
		out = append(out, "records that are no documents")
	}
	return out
}
