package shardnode

import (
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
	return 0, command.OneOf("explain.verbosity", v, "queryPlanner", "executionStats", "allPlansExecution")
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
	return command.AppendServer(dst, x.n.Host, x.n.Params)
}
