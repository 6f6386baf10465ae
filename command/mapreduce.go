package command

import (
	"github.com/shoaldb/shoal/query/mapreduce"
	"github.com/shoaldb/shoal/query/value"
)

// MapReduceSpec returns the mapReduce command: a node runs it as the aggregate that it translates to, its own or,
// on a router, the router's.
func MapReduceSpec() Spec {
	return Spec{
		Name: "mapReduce", Aliases: []string{"mapreduce"}, Roles: All, Kind: Read, Namespace: true, WriteConcern: true, ArgTypes: TString, Run: runMapReduce,
		Fields: []Field{
			{Name: "map", Types: TAny, Required: true}, {Name: "reduce", Types: TAny, Required: true}, {Name: "out", Types: TAny, Required: true},
			Opt("query", TObject), Opt("sort", TObject), Opt("collation", TObject), Opt("limit", TNumber), Opt("finalize", TAny), Opt("scope", TObject),
			Opt("jsMode", TBool), Opt("verbose", TSafeBool), Opt("bypassDocumentValidation", TSafeBool),
		},
	}
}

func runMapReduce(op *Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	op.Stats.NS, op.Stats.Type = op.Req.NS(coll), "command"
	mr, err := mapreduce.Parse(coll, op.Arg)
	if err != nil {
		return dst, err
	}
	var extra []byte
	for _, name := range []string{"collation", "bypassDocumentValidation"} {
		if v := op.Arg(name); !v.IsNullish() {
			extra = value.Append(extra, name, v)
		}
	}
	for _, name := range []string{"readConcern", "$readPreference"} { // a router relays the fields of the aggregate, not those of this command
		extra = value.Append(extra, name, value.Lookup(op.Req.Body, name))
	}
	if op.Req.WriteConcern != nil && !mr.Inline {
		extra = value.Append(extra, "writeConcern", value.NewDocument(op.Req.WriteConcern.Doc))
	}
	in, err := op.Nested(mr.Aggregate(op.DB(), extra))
	if err != nil {
		return dst, err
	}
	defer in.Close()
	reply, mark := value.Begin(nil)
	if reply, err = in.Req.Spec.Run(in, reply); err != nil {
		return dst, err
	}
	if at := in.opTime.Load(); at != 0 {
		op.AdvanceOperationTime(at)
	}
	if in.wcError != nil {
		op.wcError = in.wcError
	}
	return mr.Reply(dst, value.End(reply, mark))
}
