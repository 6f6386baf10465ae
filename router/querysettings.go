package router

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// querySettings are the settings of query shapes as last read from the config server. The router looks up a query's
// settings, since only it sees the query as the client wrote it, and sends them with the command to the shards, which plan
// accordingly.
type querySettings struct {
	byShape atomic.Pointer[map[string][]byte]
}

const querySettingsField = "querySettings"

// load reads the cluster parameter querySettings.
func (q *querySettings) load(param []byte) {
	m := map[string][]byte{}
	for _, s := range value.Values(value.Lookup(param, "settingsArray").Doc()) {
		m[value.Lookup(s.Doc(), "queryShapeHash").Str()] = value.Lookup(s.Doc(), "settings").Doc()
	}
	q.byShape.Store(&m)
}

// changeQuerySettings implements setQuerySettings and removeQuerySettings: the config server runs them. This
// router applies the result at once, and informs the shards, for clients that connect to them directly; other
// routers read it periodically.
func (r *Router) changeQuerySettings(op *command.Op, dst []byte) ([]byte, error) {
	dst, err := r.toConfig(op, dst)
	if err != nil {
		return dst, err
	}
	return dst, r.sendParameter(op, querySettingsField)
}

// bySettings wraps a handler so that the settings of its query's shape apply.
func (r *Router) bySettings(run command.Handler) command.Handler {
	return func(op *command.Op, dst []byte) ([]byte, error) {
		dropSettings(op)
		if m := r.settings.byShape.Load(); m != nil && len(*m) > 0 {
			if err := r.takeSettings(op, *m); err != nil {
				return dst, err
			}
		}
		return run(op, dst)
	}
}

// dropSettings removes settings from a client's command: a shard trusts those that come from a router, and those
// must be settings that setQuerySettings has made.
func dropSettings(op *command.Op) {
	if op.Req.Spec.Name == "explain" {
		if !value.Lookup(op.Req.Cmd.Doc(), querySettingsField).IsMissing() {
			explainInstead(op, rebuild(op.Req.Cmd.Doc(), map[string]bool{querySettingsField: true}))
		}
	} else if !op.Req.Shared(querySettingsField).IsMissing() {
		op.Req.Body = rebuild(op.Req.Body, map[string]bool{querySettingsField: true})
	}
}

// explainInstead replaces the command that is to be explained.
func explainInstead(op *command.Op, body []byte) {
	op.Req.Cmd = value.NewDocument(body)
	b, mark := value.Begin(nil)
	b = append(value.Append(b, "explain", op.Req.Cmd), rebuildElements(op.Req.Body, map[string]bool{"explain": true})...)
	op.Req.Body = value.End(b, mark)
}

// takeSettings refuses a query that is rejected by settings, and adds the settings of its shape to the command.
func (r *Router) takeSettings(op *command.Op, byShape map[string][]byte) error {
	explain := op.Req.Spec.Name == "explain"
	body := op.Req.Body
	if explain {
		body = op.Req.Cmd.Doc()
	}
	it := value.Walk(body)
	if name, _, ok := it.Next(); !ok || !shape.TakesSettings(name) {
		return nil
	}
	doc, _ := shape.Command(nil, op.DB(), body)
	s := byShape[shape.Hash(doc)]
	switch {
	case s == nil:
		return nil
	case !explain && value.Lookup(s, "reject").Truthy():
		return mongoerr.New(mongoerr.QueryRejectedBySettings, "Query rejected by admin query settings")
	}
	body = rebuild(body, map[string]bool{querySettingsField: true}, value.Append(nil, querySettingsField, value.NewDocument(s)))
	if explain {
		explainInstead(op, body)
	} else {
		op.Req.Body = body
	}
	return nil
}

// querySettingsDocs returns the documents of $querySettings, which the config server keeps.
func (r *Router) querySettingsDocs(op *command.Op, stage value.Value) ([][]byte, error) {
	return cluster.FindAll(op, r.config, "admin", msg.Doc(&msg.Aggregate{On: msg.Whole(), Pipeline: value.ArrayOf(stage), Cursor: new(msg.Cursor)}))
}
