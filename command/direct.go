package command

import (
	"context"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// OfShard makes the access control of a shard refuse direct operations if the cluster has several shards, which several reports: users
// then have to go through a router, which knows the ranges that the shard owns. Only users with the role directShardOperations are
// exempt.
func (a *Access) OfShard(several func(context.Context) (bool, error)) { a.several.Store(&several) }

// checkDirect returns an error for a request that the user may send only through a router.
func (a *Access) checkDirect(op *Op, id *auth.Identity) error {
	several := a.several.Load()
	if several == nil {
		return nil
	}
	req := &op.Req
	name, coll, writes := directTarget(req)
	if auth.DirectCommand(name, req.DB, coll, writes) || id.MayDirect() {
		return nil
	}
	if yes, err := (*several)(op); err != nil || !yes {
		return err
	}
	ns := req.DB
	if coll != "" {
		ns += "." + coll
	}
	return mongoerr.Newf(mongoerr.Unauthorized, "You are connecting to a sharded cluster improperly by connecting directly to a shard. "+
		"Please connect to the cluster via a router (mongos). Command: %s, Namespace: %s", req.Spec.Name, ns)
}

// directTarget returns the command that a request runs (for an explain, the explained one), the collection that it names, and
// whether it is an aggregation that stores its result.
func directTarget(req *Request) (name, coll string, writes bool) {
	name, body := req.Spec.Name, req.Body
	if name == "getMore" {
		return name, value.Lookup(body, "collection").Str(), false
	}
	if name == "explain" && req.Cmd.T == value.Document {
		body = req.Cmd.Doc()
		it := value.Walk(body)
		key, _, _ := it.Next()
		name = string(key)
	}
	it := value.Walk(body)
	if _, v, ok := it.Next(); ok && v.T == value.String {
		coll = v.Str()
	}
	for _, stage := range value.Values(value.Lookup(body, "pipeline").Doc()) {
		writes = writes || stage.T == value.Document && (!value.Lookup(stage.Doc(), "$out").IsMissing() || !value.Lookup(stage.Doc(), "$merge").IsMissing())
	}
	return name, coll, writes
}
