package router

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A $merge without "on" identifies documents by _id and the shard key of its target. The router that chooses these fields may not have heard of the
// latest key. Its updates therefore carry the choice to where they are targeted, and are sent only under a placement whose key gives the same fields;
// the shards compare that placement's version. So no statement is executed by the fields of another key than the shard's.
//
// Rejected: refreshing the placement before the choice. It costs a request to the config server per $merge, and the key may change while the pipeline runs.

// identity is the choice of a $merge for its target.
type identity struct {
	ns string
	on []string
}

// identityKey is the context key of the identity that an update's statements were made by.
type identityKey struct{}

// defaultOn returns the fields that identify documents in a $merge that names none.
func defaultOn(info *cluster.CollectionInfo) []string {
	var on []string
	if info.Sharded() {
		for _, part := range info.Map.Key.Parts {
			on = append(on, part.Path)
		}
	}
	if !slices.Contains(on, "_id") {
		on = append(on, "_id")
	}
	return on
}

// identified checks that statements may be sent under a placement: that they were made by its shard key, if they are those of a $merge without "on".
func identified(op *command.Op, info *cluster.CollectionInfo) error {
	by, _ := op.Value(identityKey{}).(*identity)
	if by == nil || by.ns != info.NS || slices.Equal(by.on, defaultOn(info)) {
		return nil
	}
	return by.changed()
}

// changed returns the error of a statement that was not sent because the shard key has changed.
func (by *identity) changed() *mongoerr.Error {
	return mongoerr.Newf(mongoerr.StaleEpoch, "the shard key of %s is not the one that $merge has taken its \"on\" fields from", by.ns).
		WithDetails(value.Doc(value.F("ns", value.NewString(by.ns)), value.F("mergeOn", value.NewBool(true))))
}

// isChangedIdentity recognizes the error of identity.changed.
func isChangedIdentity(err error) bool {
	return mongoerr.CodeOf(err) == mongoerr.StaleEpoch && value.Lookup(mongoerr.From(err).Details, "mergeOn").Truthy()
}
