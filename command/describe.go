package command

import (
	"strconv"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// DescribeOps describes the running operations of self's service as currentOp shows them, those of this process's own
// making left out. Of a running operation only what does not change while it runs is read: its request and its client.
func DescribeOps(self *Op, host string, now time.Time, locks bool) (out [][]byte) {
	self.Service.EachOp(func(op *Op) {
		if !op.Client.InProcess || op == self {
			out = append(out, describeOp(op, host, now, locks))
		}
	})
	return out
}

func describeOp(op *Op, host string, now time.Time, locks bool) []byte {
	body := op.Req.Body
	name, ns := requestTarget(body)
	d, m := value.Begin(nil)
	d = value.Append(d, "type", value.NewString("op"))
	d = value.Append(d, "host", value.NewString(host))
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
	d = value.Append(d, "op", value.NewString(OpKind(name)))
	d = value.Append(d, "ns", value.NewString(ns))
	d = value.Append(d, "redacted", value.NewBool(false))
	d = value.Append(d, "command", value.NewDocument(Shown(body)))
	d = value.Append(d, "numYields", value.NewInt32(0))
	if locks {
		d = value.Append(d, "locks", value.NewDocument(value.Doc()))
		d = value.Append(d, "waitingForLock", value.NewBool(false))
		d = value.Append(d, "lockStats", value.NewDocument(value.Doc()))
		d = value.Append(d, "waitingForFlowControl", value.NewBool(false))
		d = value.Append(d, "flowControlStats", value.NewDocument(value.Doc()))
	}
	return value.End(d, m)
}

// requestTarget reads the command's name and namespace off a request.
func requestTarget(body []byte) (name, ns string) {
	it := value.Walk(body)
	k, v, ok := it.Next()
	if !ok {
		return "", ""
	}
	name = string(k)
	db := value.Lookup(body, "$db").Str()
	switch {
	case name == "getMore":
		return name, db + "." + value.Lookup(body, "collection").Str()
	case v.T == value.String && v.Str() != "":
		return name, db + "." + v.Str()
	case name == "aggregate":
		return name, db + ".$cmd.aggregate"
	}
	return name, db + ".$cmd"
}

// OpKind is a command as op in the profiler and currentOp.
func OpKind(name string) string {
	switch name {
	case "find":
		return "query"
	case "getMore":
		return "getmore"
	case "insert", "update", "bulkWrite":
		return name
	case "delete":
		return "remove"
	}
	return "command"
}

// Shown is a request as diagnostics show it: without what drivers add to every request.
func Shown(body []byte) []byte {
	out, m := value.Begin(make([]byte, 0, len(body)))
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return value.End(out, m)
		}
		if len(raw) > 50<<10 && (string(k) == "documents" || string(k) == "updates" || string(k) == "deletes") {
			continue
		}
		out = append(out, raw...)
	}
}
