package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// Zones may be set for any namespace, whether there is a collection or not: they are used when it is sharded. A drop removes them, and a rename takes them
// along. The config server does that with the collection's entry. For a collection without an entry, which this shard alone drops or renames in one unit of work, a
// run is needed if there are zones, as for one that is sampled.

// zonedAmong begins to look which of the namespaces have zones, beside what else the operation reads: hardly any namespace without an entry has one, and its
// drop or rename need not wait for that.
func (r *run) zonedAmong(ctx context.Context, names ...string) (found func() (map[string]bool, error)) {
	var list []value.Value
	for _, ns := range names {
		list = append(list, value.NewString(ns))
	}
	in := value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(list...)))))
	var zoned map[string]bool
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		var docs [][]byte
		if docs, err = r.m.readCatalog(ctx, "tags", value.Doc(value.F("ns", in))); err != nil {
			return
		}
		zoned = map[string]bool{}
		for _, d := range docs {
			zoned[value.Lookup(d, "ns").Str()] = true
		}
	}()
	return func() (map[string]bool, error) {
		<-done
		return zoned, err
	}
}

// sourceZones decides what becomes of the zones of a source without an entry, and of the target's. An $out keeps the zones of its target, as it does options and
// indexes.
func (n *rename) sourceZones(zoned map[string]bool, target place) msg.RenamedZones {
	from, to := zoned[n.req.NS], zoned[n.req.To]
	return msg.RenamedZones{MoveZones: from, DropZones: to && !from && target.there && !n.req.Out}
}

// follows implements following: zones keep their name until the collection has been copied into another database, as the copy may fail.
func (n *rename) follows() string {
	if n.at.Copied {
		return "renameMetadata"
	}
	return ""
}

// renameZones renames the zones of a collection that has been copied.
func (n *rename) renameZones(ctx context.Context, r *run) error {
	run := r.name()
	_, err := r.onConfig(ctx, &msg.RenameMetadata{NS: n.req.NS, To: n.req.To, UUID: n.at.UUID, RenamedZones: n.at.RenamedZones, Run: &run})
	return err
}
