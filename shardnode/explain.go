package shardnode

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func explainSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "explain", Roles: command.All, Kind: command.Read, ArgTypes: command.TObject | command.TOther, ReadConcern: true, API: true, Run: n.runExplain,
		Fields: []command.Field{command.Opt("verbosity", command.TString)},
	}
}

func parseVerbosity(v value.Value) (exec.Verbosity, error) {
	switch {
	case v.IsMissing():
		return exec.AllPlansExecution, nil
	case v.Str() == "queryPlanner":
		return exec.QueryPlanner, nil
	case v.Str() == "executionStats":
		return exec.ExecutionStats, nil
	case v.Str() == "allPlansExecution":
		return exec.AllPlansExecution, nil
	}
	return 0, mongoerr.New(mongoerr.BadValue, "verbosity string must be one of {'queryPlanner', 'executionStats', 'allPlansExecution'}")
}

// explanation is the explain of one command. The reply has two parts: head, written by the command's explainer,
// and the common trailer.
type explanation struct {
	n     *Node
	op    *command.Op // the explained command's
	verb  exec.Verbosity
	shape string // queryShapeHash
}

// explainers write the explain output of a command, by its name.
var explainers = map[string]func(x *explanation, dst []byte) ([]byte, error){
	"find": (*explanation).find, "count": (*explanation).count, "distinct": (*explanation).distinct, "aggregate": (*explanation).aggregate,
	"update": (*explanation).write, "delete": (*explanation).write, "findAndModify": (*explanation).write,
}

func (n *Node) runExplain(op *command.Op, dst []byte) ([]byte, error) {
	if t := op.Req.Cmd.T; t == value.Null || t == value.Undefined {
		return dst, command.MissingField("explain.explain")
	} else if t != value.Document {
		return dst, command.WrongType("explain.explain", t, command.TObject)
	}
	body := op.Req.Cmd.Doc()
	verb, err := parseVerbosity(op.Arg("verbosity"))
	if err != nil {
		return dst, err
	}
	it := value.Walk(body)
	name, _, _ := it.Next()
	spec := n.Service.Table.Lookup(string(name))
	if spec == nil {
		return dst, mongoerr.Newf(mongoerr.CommandNotFound, "Explain failed due to unknown command: %s", name)
	}
	explain, ok := explainers[spec.Name]
	if !ok {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot explain cmd: %s", name)
	}
	in, err := op.Nested(body)
	if err != nil {
		return dst, err
	}
	defer in.Close()
	x := &explanation{n: n, op: in, verb: verb}
	if dst, err = explain(x, dst); err != nil {
		return dst, err
	}
	return x.trailer(dst), nil
}

// trailer appends the fields at the end of every explain.
func (x *explanation) trailer(dst []byte) []byte {
	if x.shape != "" {
		dst = value.Append(dst, "queryShapeHash", value.NewString(x.shape))
	}
	cmd, m := value.Begin(nil)
	for it := value.Walk(x.op.Req.Body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		switch string(k) {
		case "$db", "lsid", "$clusterTime", "$readPreference":
		default:
			cmd = append(cmd, raw...)
		}
	}
	cmd = value.Append(cmd, "$db", value.NewString(x.op.DB()))
	dst = value.Append(dst, "command", value.NewDocument(value.End(cmd, m)))
	return x.n.appendServer(dst)
}

// appendServer appends serverInfo and serverParameters.
func (n *Node) appendServer(dst []byte) []byte {
	host, port := n.Host, int64(27017)
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		if p, err := strconv.ParseInt(host[i+1:], 10, 32); err == nil {
			host, port = host[:i], p
		}
	}
	dst = value.Append(dst, "serverInfo", value.NewDocument(value.Doc(
		value.F("host", value.NewString(host)), value.F("port", value.NewInt32(int32(port))),
		value.F("version", value.NewString(command.Version)), value.F("gitVersion", value.NewString(command.ThisBuild().GitVersion())))))
	const limit = 100 << 20
	dst, m := value.BeginKey(dst, value.Document, "serverParameters")
	for _, p := range []struct {
		name string
		v    int32 // used if this server does not have the parameter
	}{
		{"internalQueryFacetBufferSizeBytes", limit}, {"internalQueryFacetMaxOutputDocSizeBytes", limit},
		{"internalLookupStageIntermediateDocumentMaxSizeBytes", limit}, {"internalDocumentSourceGroupMaxMemoryBytes", limit},
		{"internalQueryMaxBlockingSortMemoryUsageBytes", limit}, {"internalQueryProhibitBlockingMergeOnMongoS", 0},
		{"internalQueryMaxAddToSetBytes", limit}, {"internalDocumentSourceSetWindowFieldsMaxMemoryBytes", limit},
	} {
		v := value.NewInt32(p.v)
		if n.Params != nil {
			if q, ok := n.Params.Lookup(p.name); ok {
				if v = q.Value(); v.T == value.Int64 && int64(int32(q.Int())) == q.Int() {
					v = value.NewInt32(int32(q.Int()))
				}
			}
		}
		dst = value.Append(dst, p.name, v)
	}
	dst = value.Append(dst, "internalQueryFrameworkControl", value.NewString(queryFramework(n.Params)))
	dst = value.Append(dst, "internalQueryPlannerIgnoreIndexWithCollationForRegex", value.NewInt32(1))
	return value.End(dst, m)
}

// queryFramework returns the engine for queries that have no settings of their own.
func queryFramework(p *cluster.Params) string {
	if p == nil {
		return "trySbeRestricted"
	}
	return p.Get("internalQueryFrameworkControl").Value().Str()
}
