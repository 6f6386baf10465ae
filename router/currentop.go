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
	docs := r.ownOps(op)
	if !local {
		far, err := r.shardOps(op)
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

// ownOps describes the router's running operations. Only what does not change while one runs is read of it.
func (r *Router) ownOps(self *command.Op) [][]byte {
	var out [][]byte
	now := time.Now()
	r.Service.EachOp(func(op *command.Op) {
		if op.Client.InProcess && op != self {
			return
		}
		out = append(out, r.describeOp(op, now))
	})
	return out
}

func (r *Router) describeOp(op *command.Op, now time.Time) []byte {
	body := op.Req.Body
	it := value.Walk(body)
	_, arg, _ := it.Next()
	ns := value.Lookup(body, "$db").Str() + ".$cmd"
	if arg.T == value.String {
		ns = value.Lookup(body, "$db").Str() + "." + arg.Str()
	}
	d, m := value.Begin(nil)
	d = value.Append(d, "type", value.NewString("op"))
	d = value.Append(d, "host", value.NewString(r.Host))
	d = value.Append(d, "desc", value.NewString("conn"+strconv.FormatInt(op.Client.ID, 10)))
	d = value.Append(d, "connectionId", value.NewInt64(op.Client.ID))
	d = value.Append(d, "client", value.NewString(op.Client.Remote))
	if meta, app := op.Client.Metadata(); meta != nil {
		if app != "" {
			d = value.Append(d, "appName", value.NewString(app))
		}
		d = value.Append(d, "clientMetadata", value.NewDocument(meta))
	}
	d = value.Append(d, "active", value.NewBool(true))
	d = value.Append(d, "currentOpTime", value.NewString(now.Format("2006-01-02T15:04:05.000-07:00")))
	d = value.Append(d, "effectiveUsers", value.NewArray(value.ArrayOf()))
	d = value.Append(d, "threaded", value.NewBool(true))
	d = value.Append(d, "opid", value.NewInt32(op.ID))
	if lsid := value.Lookup(body, "lsid"); lsid.T == value.Document {
		d = value.Append(d, "lsid", lsid)
	}
	run := now.Sub(op.Start)
	d = value.Append(d, "secs_running", value.NewInt64(int64(run.Seconds())))
	d = value.Append(d, "microsecs_running", value.NewInt64(run.Microseconds()))
	d = value.Append(d, "op", value.NewString("command"))
	d = value.Append(d, "ns", value.NewString(ns))
	d = value.Append(d, "redacted", value.NewBool(false))
	d = value.Append(d, "command", value.NewDocument(rebuild(body, map[string]bool{"$clusterTime": true, "lsid": true})))
	d = value.Append(d, "numYields", value.NewInt32(0))
	return value.End(d, m)
}

// shardOps asks the shards for theirs. The operations of shards in this process are the router's own, and not repeated.
func (r *Router) shardOps(op *command.Op) ([][]byte, error) {
	ids, err := r.allShards(op)
	if err != nil {
		return nil, err
	}
	body := value.Doc(value.F("currentOp", value.NewInt32(1)), value.F("$db", value.NewString("admin")))
	replies := r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return body, nil })
	if err := firstError(replies); err != nil {
		return nil, err
	}
	var out [][]byte
	for i := range replies {
		for _, v := range value.Values(value.Lookup(replies[i].body, "inprog").Doc()) {
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
