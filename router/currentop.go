package router

import (
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// currentOp shows the router's own operations and those of the shards, whose opid is "shard:id".
func (r *Router) currentOp(op *command.Op, dst []byte) ([]byte, error) {
	filter, fm := value.Begin(nil)
	first, local := true, false
	for k, v := range value.Elements(op.Req.Body) {
		switch {
		case first || k == "$truncateOps" || k == "$ownOps" || k == "$all" || command.IsGeneric(k):
		case k == "localOps":
			local = v.Truthy()
		default:
			filter = value.Append(filter, k, v)
		}
		first = false
	}
	m, err := match.Compile(value.End(filter, fm), &match.Options{})
	if err != nil {
		return dst, err
	}
	docs := command.DescribeOps(op, command.OpsView{Host: r.Host, Now: time.Now()})
	if !local {
		far, err := r.shardOps(op, nil)
		if err != nil {
			return dst, err
		}
		docs = append(docs, far...)
	}
	dst, am := value.BeginKey(dst, value.Array, "inprog")
	i := 0
	for _, d := range docs {
		ok, err := m.Match(d)
		if err != nil {
			return dst, err
		}
		if ok {
			dst = value.AppendIndex(dst, i, value.NewDocument(d))
			i++
		}
	}
	return value.End(dst, am), nil
}

// shardOps asks the shards for theirs. The operations of shards in this process are the router's own, and not repeated.
func (r *Router) shardOps(op *command.Op, spec []byte) ([][]byte, error) {
	ids, err := r.allShards(op)
	if err != nil {
		return nil, err
	}
	if spec == nil {
		spec = value.Doc()
	}
	stage := value.NewDocument(value.Doc(value.F("$currentOp", value.NewDocument(rebuild(spec, map[string]bool{"localOps": true, "targetAllNodes": true}, nil)))))
	body := value.Doc(value.F("aggregate", value.NewInt32(1)), value.F("pipeline", value.NewArray(value.ArrayOf(stage))),
		value.F("cursor", value.NewDocument(value.Doc(value.F("batchSize", value.NewInt32(1<<20))))), value.F("$db", value.NewString("admin")))
	replies := r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return body, nil })
	if err := firstError(replies); err != nil {
		return nil, err
	}
	var out [][]byte
	for i := range replies {
		for _, v := range value.Values(value.Lookup(value.Lookup(replies[i].body, "cursor").Doc(), "firstBatch").Doc()) {
			d, m := value.Begin(nil)
			d = value.Append(d, "shard", value.NewString(replies[i].shard))
			for k, e := range value.Elements(v.Doc()) {
				if n, ok := e.AsInt64(); k == "opid" && ok {
					e = value.NewString(replies[i].shard + ":" + strconv.FormatInt(n, 10))
				}
				d = value.Append(d, k, e)
			}
			out = append(out, value.End(d, m))
		}
	}
	return out, nil
}

// killOp kills an operation of the router by its number, or one of a shard by "shard:number".
func (r *Router) killOp(op *command.Op, dst []byte) ([]byte, error) {
	v := op.Arg("op")
	if v.T != value.String {
		return command.KillOp(op, dst)
	}
	shard, num, ok := strings.Cut(v.Str(), ":")
	id, err := strconv.ParseInt(num, 10, 32)
	if !ok || err != nil {
		return dst, mongoerr.Newf(mongoerr.BadValue, "The op argument to killOp must be of the format shardid:opid but found \"%s\"", v.Str())
	}
	_, err = r.call(op, shard, value.Doc(value.F("killOp", value.NewInt32(1)), value.F("op", value.NewInt64(id)), value.F("$db", value.NewString("admin"))), nil)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "info", value.NewString("attempting to kill op")), nil
}
