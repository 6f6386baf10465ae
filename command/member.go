package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"

	"github.com/xdg-go/scram"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Certificates verifies the certificates that peers show in TLS handshakes.
type Certificates interface {
	// Verified returns the peer's certificate if an authority has signed it, even if connections without such a certificate are accepted.
	Verified(state *tls.ConnectionState) (*x509.Certificate, error)
	// Member reports whether a certificate belongs to a member of this process's cluster.
	Member(cert *x509.Certificate) bool
	// Named reports whether each certificate with this subject does.
	Named(subject auth.DN) bool
}

// MemberMode is the way in which members authenticate to each other (manual: security.clusterAuthMode).
type MemberMode int32

// The modes, in the order in which a cluster migrates from a key file to certificates.
const (
	ByKey         MemberMode = iota
	SendKey                  // accepts both, presents the key
	SendX509                 // accepts both, presents the certificate
	ByCertificate            // only certificates
)

// MemberModes are the modes by name.
var MemberModes = map[string]MemberMode{"keyFile": ByKey, "sendKeyFile": SendKey, "sendX509": SendX509, "x509": ByCertificate}

// Members has the means by which the members of a cluster authenticate to each other.
type Members struct {
	Key          *auth.Key    // nil without a key file
	Certificates Certificates // nil without TLS
	mode         atomic.Int32
}

// SetMode changes the mode for new connections.
func (m *Members) SetMode(mode MemberMode) { m.mode.Store(int32(mode)) }

func (m *Members) by() MemberMode { return MemberMode(m.mode.Load()) }

func (m *Members) takesKey() bool { return m != nil && m.Key != nil && m.by() != ByCertificate }

func (m *Members) takesCertificates() bool {
	return m != nil && m.Certificates != nil && m.by() != ByKey
}

// named reports whether a user's name is the subject of a certificate that would be a member's: such a user could not be distinguished from a member.
func (m *Members) named(user auth.UserName) bool {
	if m == nil || m.Certificates == nil || user.DB != auth.External {
		return false
	}
	dn, err := auth.ParseDN(user.User)
	return err == nil && m.Certificates.Named(dn)
}

// Handshake begins a connection to another node: it claims that the sender is a member, and proves it with its certificate or with
// the key, if there is one. Several keys are tried in turn. With optional set, as during the introduction of a key to a running
// cluster, a node that accepts none of them is used nevertheless.
func Handshake(m *Members, optional bool) func(ctx context.Context, cc *wire.ClientConn) error {
	return func(ctx context.Context, cc *wire.ClientConn) error {
		err := cluster.Handshake(ctx, cc)
		switch {
		case err != nil || m == nil:
			return err
		case m.by() >= SendX509:
			err = proveByCertificate(ctx, cc)
		case m.Key != nil:
			for i := range m.Key.Len() {
				if err = proveMember(ctx, cc, m.Key.Client(i)); mongoerr.CodeOf(err) != mongoerr.AuthenticationFailed {
					break
				}
			}
		}
		if optional && cc.Usable() {
			return nil
		}
		return err
	}
}

// proveByCertificate asks the other side to authenticate the sender by the certificate that it presented.
func proveByCertificate(ctx context.Context, cc *wire.ClientConn) error {
	_, err := askMember(ctx, cc, &msg.Authenticate{DB: auth.External, Mechanism: auth.X509})
	return err
}

// proveMember runs one SCRAM conversation as the members' user.
func proveMember(ctx context.Context, cc *wire.ClientConn, conv *scram.ClientConversation) error {
	first, err := conv.Step("")
	if err != nil {
		return err
	}
	reply, err := askMember(ctx, cc, &msg.SASLStart{DB: auth.System.DB, Mechanism: auth.SHA256, Payload: []byte(first), SkipEmpty: true})
	if err != nil {
		return err
	}
	final, err := conv.Step(string(value.Lookup(reply, "payload").Bytes()))
	if err != nil {
		return mongoerr.New(mongoerr.AuthenticationFailed, err.Error())
	}
	reply, err = askMember(ctx, cc, &msg.SASLContinue{
		DB: auth.System.DB, Conversation: value.SafeInt64(value.Lookup(reply, "conversationId")), Payload: []byte(final),
	})
	if err != nil {
		return err
	}
	// The other side has to prove that it knows the key, too.
	if _, err := conv.Step(string(value.Lookup(reply, "payload").Bytes())); err != nil || !conv.Valid() {
		return mongoerr.New(mongoerr.AuthenticationFailed, "the other node does not have the key")
	}
	return nil
}

func askMember(ctx context.Context, cc *wire.ClientConn, m msg.Message) ([]byte, error) {
	reply, err := cc.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: msg.Doc(m)})
	if err != nil {
		return nil, err
	}
	return reply.Body, cluster.ReplyError(reply.Body)
}
