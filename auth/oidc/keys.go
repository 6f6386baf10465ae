package oidc

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	fetchTimeout = 10 * time.Second
	maxAnswer    = 1 << 20 // bytes of a provider's answer
	// refreshPause is the shortest time between two requests to a provider that has not replied, or that is polled.
	refreshPause = 5 * time.Second
)

// issuer has the keys of one identity provider.
type issuer struct {
	url     string
	client  *http.Client
	clock   func() time.Time
	changes *atomic.Uint64 // the registry's
	quiesce *atomic.Int64  // the registry's

	mu struct {
		sync.Mutex
		keys     jose.JSONWebKeySet
		fetched  time.Time     // when they were last read
		tried    time.Time     // when that was last tried
		err      error         // why the last try failed
		fetching chan struct{} // while the provider is asked: closed when it has answered
	}
}

// key returns the key with an id. An unknown one may be new: the provider is asked for it, unless it was a moment ago. All waiting
// clients share its answer. The request ends with life and not with ctx: a client that disconnects must not end it for the others.
func (i *issuer) key(ctx, life context.Context, id string) (*jose.JSONWebKey, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if k := i.known(id); k != nil {
		return k, nil
	}
	// Tokens with made-up key ids must not make the server flood the provider.
	i.refresh(ctx, life, time.Duration(i.quiesce.Load()))
	if k := i.known(id); k != nil {
		return k, nil
	}
	if i.mu.err != nil {
		return nil, fmt.Errorf("the keys of %s cannot be read: %w", i.url, i.mu.err)
	}
	return nil, fmt.Errorf("%s has no key %q", i.url, id)
}

// known finds a key that can verify signatures.
func (i *issuer) known(id string) *jose.JSONWebKey {
	for _, k := range i.mu.keys.Key(id) {
		if k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			return &k
		}
	}
	return nil
}

// renew refreshes the keys if they are older than poll.
func (i *issuer) renew(ctx context.Context, poll time.Duration) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.mu.fetched.IsZero() && (poll == 0 || i.clock().Sub(i.mu.fetched) < poll) || !i.refresh(ctx, ctx, refreshPause) {
		return nil
	}
	return i.mu.err
}

// refresh reads the keys, unless they were read less than pause ago, or that has failed less than refreshPause ago; it reports whether it was tried.
// i.mu must be held; it is released meanwhile, so that tokens with known keys need not wait for a slow provider. One request serves all waiters. If
// it fails, the known keys stay: a provider that cannot be reached for a moment must not lock everybody out.
func (i *issuer) refresh(ctx, life context.Context, pause time.Duration) bool {
	if asked := i.mu.fetching; asked != nil {
		i.mu.Unlock()
		select {
		case <-asked:
		case <-ctx.Done():
		}
		i.mu.Lock()
		return false
	}
	if i.mu.err != nil {
		pause = refreshPause
	}
	if !i.mu.tried.IsZero() && i.clock().Sub(i.mu.tried) < pause {
		return false
	}
	i.mu.fetching = make(chan struct{})
	i.mu.Unlock()
	asking, cancel := context.WithTimeout(life, fetchTimeout)
	keys, err := i.fetch(asking)
	cancel()
	i.mu.Lock()
	close(i.mu.fetching)
	i.mu.fetching = nil
	i.mu.tried, i.mu.err = i.clock(), err
	if err == nil {
		i.mu.keys, i.mu.fetched = keys, i.mu.tried
		i.changes.Add(1)
	}
	return true
}

// has reports whether a key is still the issuer's.
func (i *issuer) has(key *jose.JSONWebKey) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.known(key.KeyID)
	if now == nil {
		return false
	}
	was, err1 := key.Thumbprint(crypto.SHA256)
	is, err2 := now.Thumbprint(crypto.SHA256)
	return err1 == nil && err2 == nil && bytes.Equal(was, is)
}

// fetch reads the issuer's metadata (RFC 8414), then the key set that they name.
func (i *issuer) fetch(ctx context.Context) (keys jose.JSONWebKeySet, err error) {
	var meta struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := i.get(ctx, trimSlash(i.url)+"/.well-known/openid-configuration", &meta); err != nil {
		return keys, err
	}
	if meta.Issuer != i.url {
		return keys, fmt.Errorf("the metadata are those of issuer %q", meta.Issuer)
	}
	if err := checkURL(meta.Keys); err != nil {
		return keys, fmt.Errorf("jwks_uri: %w", err)
	}
	// Keys are read one by one: one of a kind that this program does not know, such as those for encryption, is no reason to do without the others.
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := i.get(ctx, meta.Keys, &set); err != nil {
		return keys, err
	}
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if json.Unmarshal(raw, &k) == nil && k.Valid() {
			keys.Keys = append(keys.Keys, k)
		}
	}
	return keys, nil
}

func trimSlash(s string) string {
	for len(s) > 0 && s[len(s)-1] == '/' {
		s = s[:len(s)-1]
	}
	return s
}

// get reads a JSON document.
func (i *issuer) get(ctx context.Context, url string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := i.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("%s: more than %d bytes", url, maxAnswer)
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}
