// Package oidc verifies the access tokens of MONGODB-OIDC: JSON Web Tokens that an identity provider has signed.
//
//	client ── saslStart {n: hint} ──► Registry.Choose() ── issuer, clientId, requestScopes ──► client asks the provider for a token
//	client ── {jwt: token} ─────────► Registry.Verify()
//	                                    │ issuer and audience name the configuration (parameter oidcIdentityProviders)
//	                                    │ issuer.key(): the signing key of the token's kid
//	                                    │     └─ unknown: issuer.refresh() reads the issuer's metadata, then its key set
//	                                    └─ Login: user name, roles of the authorization claim, expiry
//
// Invariants:
//
//  1. Before its signature has been verified with a key of the issuer that it names, a token is trusted for nothing but the choice
//     of the configuration to verify it with.
//  2. Only asymmetric algorithms are accepted: a public key must not serve as a shared secret.
//  3. Keys are fetched by https, or from this machine; the metadata must name the issuer that was asked for.
//  4. However many tokens with unknown keys arrive, the provider is asked at most once per quiesce period (Registry.SetQuiesce).
package oidc
