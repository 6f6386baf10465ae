package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
)

// Registry has the identity providers of a process.
type Registry struct {
	client  *http.Client
	clock   func() time.Time
	changes atomic.Uint64 // counts changes of providers and of their keys
	quiesce atomic.Int64  // see SetQuiesce

	mu struct {
		sync.Mutex
		providers []*Provider
		issuers   map[string]*issuer
		changed   chan struct{}   // closed when the providers change
		life      context.Context // Watch's
	}
}

// NewRegistry returns a registry without providers.
func NewRegistry(clock func() time.Time) *Registry {
	r := &Registry{clock: clock}
	// A redirection may lead to where checkURL would not go.
	r.client = &http.Client{CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > 3 {
			return errors.New("too many redirections")
		}
		return checkURL(req.URL.String())
	}}
	r.mu.issuers, r.mu.changed, r.mu.life = map[string]*issuer{}, make(chan struct{}), context.Background()
	return r
}

// Set replaces the providers. Keys of issuers that stay are kept.
func (r *Registry) Set(list []*Provider) {
	r.mu.Lock()
	defer r.mu.Unlock()
	issuers := map[string]*issuer{}
	for _, p := range list {
		if i := r.mu.issuers[p.Issuer]; i != nil {
			issuers[p.Issuer] = i
		} else if issuers[p.Issuer] == nil {
			issuers[p.Issuer] = &issuer{url: p.Issuer, client: r.client, clock: r.clock, changes: &r.changes, quiesce: &r.quiesce}
		}
	}
	r.mu.providers, r.mu.issuers = list, issuers
	r.changes.Add(1)
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// SetQuiesce sets how long the keys of a provider are not read again for tokens with unknown keys (parameter JWKSMinimumQuiescePeriodSecs). Polling
// (JWKSPollSecs) is exempt: it detects withdrawn keys, and clients cannot make it more frequent.
func (r *Registry) SetQuiesce(d time.Duration) { r.quiesce.Store(int64(d)) }

// watchEvery is the interval at which Watch looks for keys that are due.
const watchEvery = time.Second

// Watch reads the keys of all providers, and again whenever they are JWKSPollSecs old, until ctx ends. failed is called for each issuer
// that does not answer.
func (r *Registry) Watch(ctx context.Context, failed func(issuer string, err error)) {
	r.mu.Lock()
	r.mu.life = ctx
	r.mu.Unlock()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		r.mu.Lock()
		providers, issuers, changed := r.mu.providers, r.mu.issuers, r.mu.changed
		r.mu.Unlock()
		var next <-chan time.Time
		for _, p := range providers {
			if err := issuers[p.Issuer].renew(ctx, p.Poll); err != nil && ctx.Err() == nil {
				failed(p.Issuer, err)
			}
			next = tick.C
		}
		select {
		case <-next: // never without providers
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Choose returns the provider from which a client should get its token; hint is a user name, or empty. The patterns only help clients find
// the right provider: Verify accepts a token from any of them.
func (r *Registry) Choose(hint string) (*Provider, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.providers {
		if !p.Humans {
			continue
		}
		if p.pattern == nil || hint == "" {
			return p, nil
		}
		if ok, err := p.pattern.Match([]byte(hint), nil); err == nil && ok {
			return p, nil
		}
	}
	if len(r.mu.providers) == 0 {
		return nil, errors.New("no identity provider is configured (oidcIdentityProviders)")
	}
	return nil, fmt.Errorf("no identity provider fits the principal name %q", hint)
}

// Info returns what a client needs to ask the provider for a token, as IdpInfo of the authentication specification.
func (p *Provider) Info() []byte {
	dst, mark := value.Begin(nil)
	dst = value.Append(dst, "issuer", value.NewString(p.Issuer))
	dst = value.Append(dst, "clientId", value.NewString(p.ClientID))
	if len(p.Scopes) > 0 {
		list := make([]value.Value, len(p.Scopes))
		for i, s := range p.Scopes {
			list[i] = value.NewString(s)
		}
		dst = value.Append(dst, "requestScopes", value.NewArray(value.ArrayOf(list...)))
	}
	return value.End(dst, mark)
}

// Login is the content of a valid token.
type Login struct {
	User    auth.UserName
	Roles   []auth.RoleName // of the authorization claim
	Stored  bool            // roles come from a stored user instead
	Expires time.Time
	Claims  []byte // those of logClaims, as a document; nil if there are none
	// Withdrawn reports whether the provider has withdrawn the key of the token since, or is not configured any more.
	Withdrawn func() bool
}

// algorithms are the accepted signature algorithms. Symmetric ones are excluded: the public key would be the shared secret.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// leeway is the accepted difference between the clocks of a provider and of this machine.
const leeway = 10 * time.Second

// Verify checks a token and returns its content.
func (r *Registry) Verify(ctx context.Context, token string) (*Login, error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, fmt.Errorf("not a signed token: %w", err)
	}
	changes := r.changes.Load() // before the key is looked up
	var claimed jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&claimed); err != nil {
		return nil, fmt.Errorf("the claims cannot be read: %w", err)
	}
	p, from, err := r.configured(&claimed)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	life := r.mu.life
	r.mu.Unlock()
	key, err := from.key(ctx, life, parsed.Headers[0].KeyID)
	if err != nil {
		return nil, err
	}
	if key.Algorithm != "" && key.Algorithm != parsed.Headers[0].Algorithm {
		return nil, fmt.Errorf("key %q is for %s, not for %s", key.KeyID, key.Algorithm, parsed.Headers[0].Algorithm)
	}
	var all map[string]any
	if err := parsed.Claims(key, &claimed, &all); err != nil {
		return nil, fmt.Errorf("the signature is not that of key %q: %w", key.KeyID, err)
	}
	if claimed.Expiry == nil {
		return nil, errors.New("the token never expires")
	}
	if err := claimed.ValidateWithLeeway(jwt.Expected{Issuer: p.Issuer, AnyAudience: jwt.Audience{p.Audience}, Time: r.clock()}, leeway); err != nil {
		return nil, err
	}
	l, err := p.login(claimed.Expiry.Time(), all)
	if err == nil {
		l.Withdrawn = r.withdrawal(changes, &claimed, key)
	}
	return l, err
}

// withdrawal returns Login.Withdrawn, which looks again only after a change.
func (r *Registry) withdrawal(changes uint64, claimed *jwt.Claims, key *jose.JSONWebKey) func() bool {
	claimed = &jwt.Claims{Issuer: claimed.Issuer, Audience: claimed.Audience}
	var seen atomic.Uint64
	var gone atomic.Bool
	seen.Store(changes)
	return func() bool {
		now := r.changes.Load()
		if now == seen.Load() || gone.Load() {
			return gone.Load()
		}
		_, from, err := r.configured(claimed)
		if err != nil || !from.has(key) {
			gone.Store(true) // for good: a later key with the same id is a different key
			return true
		}
		seen.Store(now)
		return false
	}
}

// configured finds the provider by a token's issuer and audience.
func (r *Registry) configured(claimed *jwt.Claims) (*Provider, *issuer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.providers {
		if p.Issuer == claimed.Issuer && slices.Contains(claimed.Audience, p.Audience) {
			return p, r.mu.issuers[p.Issuer], nil
		}
	}
	return nil, nil, fmt.Errorf("no identity provider is configured for issuer %q and audience %q", claimed.Issuer, []string(claimed.Audience))
}

// login reads the claims of a verified token.
func (p *Provider) login(expires time.Time, claims map[string]any) (*Login, error) {
	name, ok := claims[p.Principal].(string)
	if !ok || name == "" {
		return nil, fmt.Errorf("the token has no claim %q with a name", p.Principal)
	}
	l := &Login{User: auth.UserName{User: p.Prefix + "/" + name, DB: auth.External}, Expires: expires, Stored: p.Roles == ""}
	var shown bson.D
	for _, c := range p.LogClaims {
		if v, ok := claims[c]; ok {
			shown = append(shown, bson.E{Key: c, Value: v})
		}
	}
	if len(shown) > 0 {
		doc, err := bson.Marshal(shown)
		if err != nil {
			return nil, fmt.Errorf("logClaims: %w", err)
		}
		l.Claims = doc
	}
	if l.Stored {
		return l, nil
	}
	names, err := roleNames(claims[p.Roles])
	if err != nil {
		return nil, fmt.Errorf("claim %q: %w", p.Roles, err)
	}
	for _, n := range names {
		l.Roles = append(l.Roles, auth.RoleName{Role: p.Prefix + "/" + n, DB: "admin"})
	}
	return l, nil
}

// roleNames reads the authorization claim: a name, or a list of them.
func roleNames(claim any) ([]string, error) {
	switch c := claim.(type) {
	case string:
		return []string{c}, nil
	case []any:
		var out []string
		for _, e := range c {
			s, ok := e.(string)
			if !ok {
				return nil, fmt.Errorf("has something else than names: %v", e)
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, errors.New("is missing or is not a list of names")
}
