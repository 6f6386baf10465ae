package main

import (
	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
)

// warnOfPlain warns at the start if PLAIN is enabled and cannot work, or if passwords may cross the network unencrypted.
func (a *assembly) warnOfPlain() {
	named := false
	for _, m := range value.Values(a.params.Get("authenticationMechanisms").Value().Doc()) {
		named = named || m.T == value.String && m.Str() == auth.Plain
	}
	if !named {
		return
	}
	warn := func(text string) {
		a.h.log.Warning(console.Access, 9990010, a.c.Program.logCtx(), text).StartupWarning().Write()
	}
	if a.params.Str("saslauthdPath") == "" {
		warn("PLAIN is among authenticationMechanisms, but saslauthdPath is not set: nobody can authenticate with it")
		return
	}
	if a.c.TLS.Mode != tlsRequire {
		warn("PLAIN is among authenticationMechanisms, and connections without TLS are accepted: they carry unencrypted passwords")
	}
}
