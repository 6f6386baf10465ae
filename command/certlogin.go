package command

import (
	"context"
	"crypto/x509"
	"slices"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// errNoCertificate is the only error for a certificate that matches no user: its bearer must not learn which names exist.
var errNoCertificate = mongoerr.New(mongoerr.AuthenticationFailed, "There is no x.509 client certificate matching the user.")

// unmatched is errNoCertificate for a client that did not name the user that it expects to be: the log shows the subject of its
// certificate.
func unmatched(want, name string) error {
	if want != "" {
		return errNoCertificate
	}
	return &refusal{user: auth.UserName{User: name, DB: auth.External}, reason: errNoCertificate, reply: errNoCertificate}
}

// runAuthenticate runs the command that authenticates by certificate; it supports no other mechanism.
func (a *Access) runAuthenticate(op *Op, dst []byte) ([]byte, error) {
	out, err := a.authenticate(op, op.Req.DB, op.Req.Body, false)
	if err != nil {
		return dst, a.failed(op, auth.UserName{User: op.Req.Str("user"), DB: op.Req.DB}, op.Req.Str("mechanism"), err)
	}
	return append(dst, out...), nil
}

// authenticate runs an authenticate document and returns the reply's elements.
func (a *Access) authenticate(op *Op, db string, cmd []byte, speculative bool) ([]byte, error) {
	mech, user := value.Lookup(cmd, "mechanism"), value.Lookup(cmd, "user")
	if mech.T != value.String || mech.Str() != auth.X509 {
		return nil, auth.Failed()
	}
	if !a.enabled(auth.X509) && !a.Members.takesCertificates() {
		return nil, unavailable(auth.X509)
	}
	a.counts.attempted(op.Client, auth.X509, speculative, !a.enabled(auth.X509))
	want := ""
	if user.T == value.String {
		want = user.Str()
	}
	name, err := a.certificate(op, db, want)
	if err != nil {
		return nil, err
	}
	return value.Append(value.Append(nil, "dbname", value.NewString(db)), "user", value.NewString(name)), nil
}

// certificate authenticates the client by its certificate: as a member of the cluster, or as the user named by the subject. want is
// the name that the client expects, empty for none.
func (a *Access) certificate(op *Op, db, want string) (user string, err error) {
	c := op.Client
	if c.TLS == nil || c.TLS() == nil || a.Members == nil || a.Members.Certificates == nil {
		return "", mongoerr.New(mongoerr.AuthenticationFailed, "SSL support is required for the MONGODB-X509 mechanism.")
	}
	if db != auth.External {
		return "", mongoerr.New(mongoerr.ProtocolError, "X.509 authentication must always use the $external database.")
	}
	cert, err := a.Members.Certificates.Verified(c.TLS())
	if err != nil {
		return "", errNoCertificate
	}
	names, err := auth.SubjectNames(cert)
	if err != nil || want != "" && !slices.Contains(names, want) {
		return "", errNoCertificate
	}
	name := names[len(names)-1]
	if a.separated() && a.Members.Certificates.Member(cert) {
		if !a.Members.takesCertificates() {
			return "", mongoerr.New(mongoerr.AuthenticationFailed, "The provided certificate can only be used for cluster authentication, not client authentication. "+
				"The current configuration does not allow x.509 cluster authentication, check the --clusterAuthMode flag")
		}
		a.becomeMember(op, auth.X509)
		return name, nil
	}
	if !a.enabled(auth.X509) {
		return "", unavailable(auth.X509)
	}
	if want != "" {
		names = []string{want}
	}
	id, err := a.bearer(op, names, cert)
	if err == errNoCertificate {
		err = unmatched(want, name)
	}
	if err != nil {
		return "", err
	}
	return id.Name.User, a.enter(op, id, auth.X509)
}

// separated reports whether bearers of members' certificates cannot be users. Without that members cannot authenticate by certificates.
func (a *Access) separated() bool { return a.Params.Bool("enforceUserClusterSeparation") }

// bearer returns the identity of a certificate's bearer: with the roles in the certificate if it has any, else those of the stored user, which may
// have any of the names.
func (a *Access) bearer(ctx context.Context, names []string, cert *x509.Certificate) (*auth.Identity, error) {
	if a.Params.Bool("allowRolesFromX509Certificates") {
		roles, named, err := auth.CertificateRoles(cert)
		if err != nil {
			return nil, err
		}
		if named {
			return a.lent(ctx, auth.UserName{User: names[len(names)-1], DB: auth.External}, roles)
		}
	}
	for _, name := range names {
		if id, err := a.identity(ctx, auth.UserName{User: name, DB: auth.External}); err != errNoUser {
			return id, err
		}
	}
	return nil, errNoCertificate
}

// lent returns an identity with roles that come from a certificate or a token instead of a stored user.
func (a *Access) lent(ctx context.Context, name auth.UserName, roles []auth.RoleName) (*auth.Identity, error) {
	generation := a.generation.Load()
	id, err := auth.NewIdentity(&auth.User{Name: name, Roles: roles}, a.roles(ctx))
	if err != nil {
		return nil, err
	}
	id.Generation, id.Lent = generation, true
	return id, nil
}

// renewLent reads the definitions of such an identity's roles again, which may have changed.
func (a *Access) renewLent(ctx context.Context, c *Client, id *auth.Identity) (*auth.Identity, error) {
	now, err := a.lent(ctx, id.Name, id.Roles)
	if err != nil {
		return nil, err
	}
	if !c.meets(now) {
		c.lose(id)
		return nil, nil
	}
	now.Mechanism, now.Expires, now.Withdrawn = id.Mechanism, id.Expires, id.Withdrawn
	c.login.CompareAndSwap(id, now)
	return now, nil
}
