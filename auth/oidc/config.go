package oidc

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Provider is one element of the parameter oidcIdentityProviders (manual: the parameter's page).
type Provider struct {
	Issuer   string
	Audience string
	Prefix   string // authNamePrefix: of user and role names
	ClientID string
	Scopes   []string // requestScopes
	// Principal is the claim with the user's name, and Roles the one with the roles' names; Roles is empty if roles come from a stored
	// user (useAuthorizationClaim: false).
	Principal, Roles string
	LogClaims        []string
	Poll             time.Duration // JWKSPollSecs; 0 for never
	Humans           bool          // supportsHumanFlows
	pattern          *regex.Regexp // matchPattern, nil for any name
	matched          string
}

// defaultPoll is the maximum age of keys if the configuration sets none.
const defaultPoll = 24 * time.Hour

// Parse reads the value of oidcIdentityProviders.
func Parse(v value.Value) ([]*Provider, error) {
	if v.T != value.Array {
		return nil, mongoerr.Newf(mongoerr.BadValue, "oidcIdentityProviders must be an array of objects, found %s", v.T.Name())
	}
	var out []*Provider
	for i, e := range value.Values(v.Doc()) {
		if e.T != value.Document {
			return nil, mongoerr.Newf(mongoerr.BadValue, "oidcIdentityProviders.%d must be an object, found %s", i, e.T.Name())
		}
		p, err := parseProvider(e.Doc())
		if err != nil {
			return nil, mongoerr.Newf(mongoerr.BadValue, "oidcIdentityProviders.%d: %v", i, err)
		}
		out = append(out, p)
	}
	return out, consistent(out)
}

func parseProvider(doc []byte) (*Provider, error) {
	p := &Provider{Principal: "sub", Poll: defaultPoll, Humans: true}
	useClaim := true
	for name, v := range value.Elements(doc) {
		var err error
		switch name {
		case "issuer":
			p.Issuer, err = text(v)
		case "audience":
			p.Audience, err = text(v)
		case "authNamePrefix":
			p.Prefix, err = text(v)
		case "clientId":
			p.ClientID, err = text(v)
		case "principalName":
			p.Principal, err = text(v)
		case "authorizationClaim":
			p.Roles, err = text(v)
		case "matchPattern":
			if p.matched, err = text(v); err == nil {
				p.pattern, err = regex.Compile(p.matched, "")
			}
		case "requestScopes":
			p.Scopes, err = texts(v)
		case "logClaims":
			p.LogClaims, err = texts(v)
		case "useAuthorizationClaim":
			useClaim, err = truth(v)
		case "supportsHumanFlows":
			p.Humans, err = truth(v)
		case "JWKSPollSecs":
			n, whole := v.AsInt64()
			if !whole || n < 0 {
				err = fmt.Errorf("expected a whole number of seconds, found %s", value.Show(v))
			}
			p.Poll = time.Duration(n) * time.Second
		default:
			err = fmt.Errorf("is an unknown field")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if useClaim && p.Roles == "" {
		return nil, fmt.Errorf("authorizationClaim is required unless useAuthorizationClaim is false")
	}
	if !useClaim {
		p.Roles = ""
	}
	return p, p.check()
}

// check refuses a configuration that lacks something or is unsafe.
func (p *Provider) check() error {
	for name, v := range map[string]string{"issuer": p.Issuer, "audience": p.Audience, "authNamePrefix": p.Prefix, "principalName": p.Principal} {
		if v == "" {
			return fmt.Errorf("%s is required", name)
		}
	}
	if p.Humans && p.ClientID == "" {
		return fmt.Errorf("clientId is required unless supportsHumanFlows is false")
	}
	if i := strings.IndexFunc(p.Prefix, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}); i >= 0 {
		return fmt.Errorf("authNamePrefix may contain letters, digits, hyphens and underscores only, found %q", p.Prefix)
	}
	return checkURL(p.Issuer)
}

// checkURL accepts https, and http within this machine: keys that are sent unencrypted could come from anyone.
func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if u.Scheme == "https" && u.Host != "" {
		return nil
	}
	addr, _ := netip.ParseAddr(u.Hostname())
	if u.Scheme == "http" && (u.Hostname() == "localhost" || addr.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("%q is neither an https URL nor an http URL of this machine", s)
}

// consistent checks what concerns several configurations.
func consistent(list []*Provider) error {
	humans, missing := 0, false
	for i, p := range list {
		if p.Humans {
			humans++
			missing = missing || p.pattern == nil
		}
		for _, q := range list[:i] {
			switch {
			case q.Issuer != p.Issuer:
				continue
			case q.Audience == p.Audience:
				return mongoerr.Newf(mongoerr.BadValue, "oidcIdentityProviders: issuer %s has audience %s twice", p.Issuer, p.Audience)
			case q.Poll != p.Poll:
				return mongoerr.Newf(mongoerr.BadValue, "oidcIdentityProviders: JWKSPollSecs differs for issuer %s", p.Issuer)
			}
		}
	}
	if humans > 1 && missing {
		return mongoerr.New(mongoerr.BadValue, "oidcIdentityProviders: several providers with supportsHumanFlows need a matchPattern each")
	}
	return nil
}

func text(v value.Value) (string, error) {
	if v.T != value.String {
		return "", fmt.Errorf("expected a string, found %s", v.T.Name())
	}
	return v.Str(), nil
}

func truth(v value.Value) (bool, error) {
	if v.T != value.Boolean {
		return false, fmt.Errorf("expected a bool, found %s", v.T.Name())
	}
	return v.Bool(), nil
}

func texts(v value.Value) (out []string, err error) {
	if v.T != value.Array {
		return nil, fmt.Errorf("expected an array of strings, found %s", v.T.Name())
	}
	for _, e := range value.Values(v.Doc()) {
		s, err := text(e)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
