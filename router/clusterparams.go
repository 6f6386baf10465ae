package router

import (
	"bytes"
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// The cluster parameters that a router itself acts on: it reads them periodically, and learns of a change at once
// if they are set or read through it.

// loadClusterParams reads the parameters from the config server; they are returned by name.
func (r *Router) loadClusterParams(ctx context.Context) (map[string][]byte, error) {
	names := value.ArrayOf(value.NewString(querySettingsField), value.NewString(pauseParam), value.NewString(command.AuditConfig))
	reply, err := r.askConfig(ctx, value.Doc(value.F("getClusterParameter", value.NewArray(names)), value.F("$db", value.NewString("admin"))))
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
		switch name {
		case querySettingsField:
			r.settings.load(doc)
		case command.AuditConfig:
			r.Service.Audit.Configure(doc)
		case pauseParam:
			r.pauses.Store(value.Lookup(doc, "enabled").Truthy())
		}
	}
	return params
}

// getClusterParameter implements the command.
func (r *Router) getClusterParameter(op *command.Op, dst []byte) ([]byte, error) {
	from := len(dst)
	dst, err := r.toConfig(op, dst)
	if err == nil {
		r.takeClusterParams(dst[from-4:])
	}
	return dst, err
}

// setClusterParameter implements the command.
func (r *Router) setClusterParameter(op *command.Op, dst []byte) ([]byte, error) {
	dst, err := r.everywhere(op, dst)
	if err == nil {
		_, err = r.loadClusterParams(op)
	}
	return dst, err
}

// getAuditConfig tells the configuration of the router's audit log: its own, or that of the cluster.
func (r *Router) getAuditConfig(op *command.Op, dst []byte) ([]byte, error) {
	switch a := r.Service.Audit; {
	case a == nil:
		return dst, command.ErrNotAuditing
	case a.Runtime == nil:
		return command.AppendAuditConfig(dst, a.OwnConfig()), nil
	}
	return r.toConfig(op, dst)
}
