package command

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
)

// loginCounts counts the attempts to authenticate since the start, for serverStatus.
type loginCounts struct {
	negotiated atomic.Int64 // hellos with saslSupportedMechs
	mechs      [len(countedMechanisms)]struct{ speculative, member, ordinary attempts }
}

type attempts struct{ received, successful atomic.Int64 }

// countedMechanisms are the mechanisms that are counted.
var countedMechanisms = [...]string{auth.X509, auth.SHA1, auth.SHA256, auth.OIDC, auth.Plain}

// of returns the counters of a kind of attempt; nil for an unknown mechanism.
func (n *loginCounts) of(mech string, speculative, member bool) *attempts {
	for i := range countedMechanisms {
		if m := &n.mechs[i]; countedMechanisms[i] == mech {
			switch {
			case speculative:
				return &m.speculative
			case member:
				return &m.member
			}
			return &m.ordinary
		}
	}
	return nil
}

// attempted counts an attempt that begins.
func (n *loginCounts) attempted(c *Client, mech string, speculative, member bool) {
	if c.attempt = n.of(mech, speculative, member); c.attempt != nil {
		c.attempt.received.Add(1)
	}
}

// succeeded counts the success of the client's attempt.
func (c *Client) succeeded() {
	if c.attempt != nil {
		c.attempt.successful.Add(1)
		c.attempt = nil
	}
}

// doc returns the field authentication of serverStatus's section security. enabled selects the mechanisms to show.
func (n *loginCounts) doc(enabled func(mech string) bool) value.Field {
	kind := func(name string, a *attempts) value.Field {
		return subDoc(name, i64("received", a.received.Load()), i64("successful", a.successful.Load()))
	}
	var mechs []value.Field
	for i, name := range countedMechanisms {
		if m := &n.mechs[i]; enabled(name) {
			mechs = append(mechs, subDoc(name, kind("speculativeAuthenticate", &m.speculative), kind("clusterAuthenticate", &m.member), kind("authenticate", &m.ordinary)))
		}
	}
	return subDoc("authentication", i64("saslSupportedMechsReceived", n.negotiated.Load()), subDoc("mechanisms", mechs...))
}
