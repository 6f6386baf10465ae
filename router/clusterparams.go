package router

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// clusterParams are the cluster parameters as last read by the router: periodically, and whenever they are set or read through it.
type clusterParams struct {
	mu    sync.Mutex
	known map[string][]byte // guarded by mu

	pauses atomic.Bool // pauseMigrationsDuringMultiUpdates
}

// ClusterParameters reads the values of all parameters, sorted by name. A router needs them when it starts.
func (r *Router) ClusterParameters(ctx context.Context) (all [][]byte, err error) {
	params, err := r.loadClusterParams(ctx)
	for _, name := range slices.Sorted(maps.Keys(params)) {
		all = append(all, params[name])
	}
	return all, err
}

// loadClusterParams reads the parameters from the config server; they are returned by name.
func (r *Router) loadClusterParams(ctx context.Context) (map[string][]byte, error) {
	reply, err := r.askConfig(ctx, msg.Doc(&msg.GetClusterParameter{Name: "*"}))
	if err == nil {
		err = cluster.ReplyError(reply)
	}
	if err != nil {
		return nil, err
	}
	return r.takeClusterParams(reply), nil
}

// takeClusterParams adopts the content of a reply to getClusterParameter.
func (r *Router) takeClusterParams(reply []byte) map[string][]byte {
	params := make(map[string][]byte)
	for _, p := range value.Values(value.Lookup(reply, "clusterParameters").Doc()) {
		name, doc := value.Lookup(p.Doc(), "_id").Str(), bytes.Clone(p.Doc())
		params[name] = doc
		r.noteClusterParam(name, doc)
		switch name {
		case querySettingsField:
			r.settings.load(doc)
		case command.AuditConfig:
			r.Service.Audit.Configure(doc)
		case pauseParam:
			r.params.pauses.Store(value.Lookup(doc, "enabled").Truthy())
		}
	}
	return params
}

// noteClusterParam stores a parameter, and records a change in the audit log. Concurrent reads may arrive in another order: a value that is older than the
// stored one is ignored.
func (r *Router) noteClusterParam(name string, doc []byte) {
	p := &r.params
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.known[name]
	switch then, now := value.Lookup(was, clusterParamTime), value.Lookup(doc, clusterParamTime); {
	case was == nil:
	case bytes.Equal(was, doc), then.T == value.Timestamp && now.T == value.Timestamp && now.TimestampU64() <= then.TimestampU64():
		return
	default:
		r.Service.Audit.ParameterUpdated(nil, was, doc)
	}
	if p.known == nil {
		p.known = map[string][]byte{}
	}
	p.known[name] = doc
}

const clusterParamTime = "clusterParameterTime"

// getClusterParameter implements the command.
func (r *Router) getClusterParameter(op *command.Op, dst []byte) ([]byte, error) {
	from := len(dst)
	dst, err := r.toConfig(op, dst)
	if err == nil {
		r.takeClusterParams(dst[from-4:])
	}
	return dst, err
}

// setClusterParameter implements the command: the config server stores the parameter, and has the shards store the same value with the same time. The router
// reads it at once.
func (r *Router) setClusterParameter(op *command.Op, dst []byte) ([]byte, error) {
	it := value.Walk(op.Req.Cmd.Doc())
	name, _, ok := it.Next()
	if op.Req.Cmd.T != value.Document || !ok || string(name) == command.AuditConfig {
		return r.setAuditConfig(op, dst)
	}
	dst, err := r.toConfig(op, dst)
	if err != nil {
		return dst, err
	}
	_, err = r.loadClusterParams(op)
	return dst, err
}

// setAuditConfig implements the command. Each node checks whether its own audit log can be configured.
func (r *Router) setAuditConfig(op *command.Op, dst []byte) ([]byte, error) {
	dst, err := r.everywhere(op, dst)
	if err == nil {
		_, err = r.loadClusterParams(op)
	}
	return dst, err
}

// sendParameter sends the shards a parameter as the config server has it.
func (r *Router) sendParameter(op *command.Op, name string) error {
	if err := r.Registry.Reload(op); err != nil { // a shard that joins now takes over what the config server has
		return err
	}
	params, err := r.loadClusterParams(op)
	if err != nil {
		return err
	}
	ids, err := r.allShards(op)
	if err != nil {
		return err
	}
	body := msg.Doc(&msg.SetClusterParameter{Param: params[name]})
	return firstError(r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return body, nil }))
}

// getAuditConfig returns the configuration of the router's audit log: its own, or that of the cluster.
func (r *Router) getAuditConfig(op *command.Op, dst []byte) ([]byte, error) {
	switch a := r.Service.Audit; {
	case a == nil:
		return dst, command.ErrNotAuditing
	case a.Runtime == nil:
		return command.AppendAuditConfig(dst, a.OwnConfig()), nil
	}
	return r.toConfig(op, dst)
}
