package main

import (
	"context"
	"os"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// auditOptions are those of the audit log (manual: auditLog Options).
var auditOptions = []option{
	{name: "auditDestination", path: "auditLog.destination", kind: textKind, on: isBoth | isStart, arg: "file|console|syslog", help: "Record what clients do in an audit log: to a file, the standard output, or the system's log",
		set: text(func(c *config) *string { return &c.Audit.Destination })},
	{name: "auditFormat", path: "auditLog.format", kind: textKind, on: isBoth | isStart, arg: "JSON|BSON", help: "Form of a file's events", set: text(func(c *config) *string { return &c.Audit.Format })},
	{name: "auditPath", path: "auditLog.path", kind: textKind, on: isBoth | isStart, arg: "FILE", help: "File of the audit log; an existing file is appended to", set: text(func(c *config) *string { return &c.Audit.Path })},
	{name: "auditFilter", path: "auditLog.filter", kind: textKind, on: isBoth | isStart, arg: "QUERY", help: "Record only the events that a query matches", set: text(func(c *config) *string { return &c.Audit.Filter })},
	{name: "auditSchema", path: "auditLog.schema", kind: textKind, on: isBoth | isStart, arg: "mongo|OCSF", help: "Form of events: MongoDB's own, or that of the Open Cybersecurity Schema Framework", set: text(func(c *config) *string { return &c.Audit.Schema })},
	{path: "auditLog.runtimeConfiguration", kind: textKind, on: isBoth | isStart, help: "Take filter and auditAuthorizationSuccess from the cluster parameter auditConfig", set: setRuntimeAudit},
}

// setRuntimeAudit reads auditLog.runtimeConfiguration.
func setRuntimeAudit(c *config, v string) error {
	on, err := strconv.ParseBool(v)
	if err != nil {
		return usagef("BadValue: auditLog.runtimeConfiguration: expected true or false, found %s", v)
	}
	c.Audit.Runtime = on
	return nil
}

// checkRuntimeAudit refuses the parameter that auditConfig replaces, at the start and later.
func (a *assembly) checkRuntimeAudit() {
	if a.c.Audit.Runtime {
		a.params.Checked("auditAuthorizationSuccess", func(_, v value.Value) (value.Value, error) {
			return v, mongoerr.New(mongoerr.BadValue, "auditAuthorizationSuccess cannot be set with auditLog.runtimeConfiguration: it is part of the cluster parameter auditConfig")
		})
	}
}

// openAudit opens the audit log of the process, if it is to have one. See auditStart for the first event.
func (a *assembly) openAudit() error {
	if a.c.Audit.Destination == "" {
		return nil
	}
	log, err := console.OpenAudit(a.c.Audit, os.Stdout)
	if err != nil {
		return err
	}
	a.audit = &command.Audit{Record: log.Record, Params: a.params}
	if a.c.Audit.Runtime {
		a.audit.Runtime = &command.AuditRuntime{Check: console.CheckAuditFilter, Use: log.SetFilter}
	} else if a.c.Audit.Filter != "" {
		a.audit.Filter, _ = console.ParseAuditFilter(a.c.Audit.Filter)
	}
	a.h.auditLog.Store(log)
	a.onStop(func(context.Context) error {
		a.audit.Wait()
		return nil
	})
	return nil
}

// auditStart records that the process has started, before any client can do anything. The cluster parameters are those that its first server has
// stored, or that its router reads from the config server.
func (a *assembly) auditStart() {
	log := a.h.auditLog.Load()
	if log == nil {
		return
	}
	a.started.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		params, err := a.initial(ctx)
		if err != nil {
			a.h.log.Warning(console.Access, 7193001, "-", "The audit log's startup event lacks the cluster parameters").Err(err).Write()
		}
		all := make([]value.Value, len(params))
		for i, doc := range params {
			all[i] = value.NewDocument(doc)
		}
		log.Record(command.SystemEvent("startup", value.F("startupOptions", value.NewDocument(a.c.Parsed)),
			value.F("initialClusterServerParameters", value.NewArray(value.ArrayOf(all...)))))
	})
}

// startedWith sets the function that reads the cluster parameters that the process has at its start. Only the first call has an effect.
func (a *assembly) startedWith(read func(context.Context) ([][]byte, error)) {
	if a.initial == nil {
		a.initial = read
	}
}

// rotateAudit begins a new file of the audit log, whose first record has the path of the former one.
func (h *host) rotateAudit() error {
	log := h.auditLog.Load()
	if log == nil {
		return nil
	}
	kept, rotated, err := log.Rotate()
	if err != nil || !rotated {
		return err
	}
	status := value.Doc(value.F("status", value.NewString("OK")), value.F("rotatedLogPath", value.NewString(kept)))
	system := value.Doc(value.F("name", value.NewString(osName())), value.F("version", value.NewString(osVersion())))
	log.Record(command.SystemEvent("rotateLog", value.F("pid", value.NewInt64(int64(os.Getpid()))), value.F("osInfo", value.NewDocument(system)),
		value.F("logRotationStatus", value.NewDocument(status))))
	return nil
}
