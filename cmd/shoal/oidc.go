package main

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/auth/oidc"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
)

// checkProviders checks a value of oidcIdentityProviders.
func checkProviders(_, v value.Value) (value.Value, error) {
	_, err := oidc.Parse(v)
	return v, err
}

// watchProviders keeps the identity providers in line with oidcIdentityProviders, and their keys up to date. A provider that cannot be reached
// causes a warning only: it may be reachable later.
func (a *assembly) watchProviders() {
	a.providers = oidc.NewRegistry(time.Now)
	a.params.OnChange("oidcIdentityProviders", func(v value.Value) {
		if list, err := oidc.Parse(v); err == nil { // it has been checked
			a.providers.Set(list)
		}
	})
	a.params.OnChange("JWKSMinimumQuiescePeriodSecs", func(v value.Value) { a.providers.SetQuiesce(time.Duration(value.SafeInt64(v)) * time.Second) })
	a.background(func(ctx context.Context) {
		a.providers.Watch(ctx, func(issuer string, err error) {
			a.h.log.Warning(console.Access, 7070204, "OIDCKeyRefresher", "Could not read the keys of an identity provider").Str("issuer", issuer).Err(err).Write()
		})
	})
}
