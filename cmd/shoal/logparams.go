package main

import (
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
)

// configureLog applies the parameters of the log, and stores in them what the command line has set.
func (a *assembly) configureLog() {
	log, p := a.h.log, a.params
	if a.c.Log.Quiet {
		p.Store("quiet", value.NewBool(true))
	}
	if a.c.Log.Verbosity > 0 {
		p.Store("logLevel", value.NewInt32(int32(a.c.Log.Verbosity)))
	}
	p.OnChange("maxLogSizeKB", func(v value.Value) { log.SetMaxAttr(value.SafeInt64(v)) })
	p.OnChange("quiet", func(v value.Value) { log.SetQuiet(v.Bool()) })
	p.OnChange("redactClientLogData", func(v value.Value) { log.SetRedaction(v.Bool()) })
	p.OnChange("logComponentVerbosity", func(v value.Value) { setVerbosities(log, "", v.Doc()) })
	p.OnChange("logLevel", func(v value.Value) { log.SetVerbosity("", int(value.SafeInt64(v))) })
}

// setVerbosities sets the verbosities of a component and of those within it. Components that write no lines are ignored.
func setVerbosities(log *console.Log, path string, doc []byte) {
	for k, v := range value.Elements(doc) {
		switch {
		case k == "verbosity":
			log.SetVerbosity(path, int(min(value.SafeInt64(v), 5)))
		case path == "":
			setVerbosities(log, k, v.Doc())
		default:
			setVerbosities(log, path+"."+k, v.Doc())
		}
	}
}
