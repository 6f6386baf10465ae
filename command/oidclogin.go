package command

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/auth/oidc"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// refusal is the error of a refused authentication: the reason is for the log alone, the client receives reply.
type refusal struct {
	user   auth.UserName // empty where it is not known
	reason error
	reply  error // the client's error; auth.Failed() if nil
}

func (e *refusal) Error() string { return e.reason.Error() }
func (e *refusal) Unwrap() error {
	if e.reply != nil {
		return e.reply
	}
	return auth.Failed()
}

// startOIDC begins a MONGODB-OIDC conversation (authentication specification). A client that has a token sends it at once; any other
// asks for the provider that issues one, and continues with the token.
func (a *Access) startOIDC(op *Op, l *login, db string, payload value.Value) ([]byte, error) {
	if db != auth.External {
		return nil, mongoerr.New(mongoerr.ProtocolError, "MONGODB-OIDC authentication must always use the $external database.")
	}
	doc, err := saslDocument(payload)
	if err != nil {
		return nil, err
	}
	if value.Lookup(doc, "jwt").T == value.String {
		return a.token(op, l, doc)
	}
	hint := value.Lookup(doc, "n")
	if !hint.IsMissing() && hint.T != value.String {
		return nil, WrongType("OIDCMechanismClientStep1.n", hint.T, TString)
	}
	name := ""
	if hint.T == value.String {
		name = hint.Str()
	}
	p, err := a.Providers.Choose(name)
	if err != nil {
		return nil, &refusal{reason: err}
	}
	op.beginLogin(l)
	return appendStep(nil, l.id, false, p.Info()), nil
}

// saslDocument returns the document in a payload.
func saslDocument(payload value.Value) ([]byte, error) {
	if payload.T != value.Binary {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "Wrong type for field (payload). Expected binData")
	}
	doc := payload.Bytes()
	if err := wire.Validate(doc); err != nil {
		return nil, mongoerr.Newf(mongoerr.InvalidBSON, "MONGODB-OIDC: the payload is not a document: %v", err)
	}
	return doc, nil
}

// token ends a conversation with the client's token, and sets the client's identity to the one that the token proves.
func (a *Access) token(op *Op, l *login, msg []byte) ([]byte, error) {
	doc, err := saslDocument(value.NewBinary(0, msg))
	if err != nil {
		return nil, err
	}
	jwt := value.Lookup(doc, "jwt")
	if jwt.T != value.String {
		return nil, mongoerr.New(mongoerr.ProtocolError, "MONGODB-OIDC: a document with the field jwt, a string, was expected")
	}
	claimed, err := a.Providers.Verify(op, jwt.Str())
	if err != nil {
		return nil, &refusal{reason: err}
	}
	id, err := a.tokenIdentity(op, claimed)
	if err != nil {
		return nil, err
	}
	op.Client.takeLogin()
	if err := a.enter(op, id, auth.OIDC); err != nil {
		return nil, err
	}
	return appendStep(nil, l.id, true, nil), nil
}

// tokenIdentity returns the identity that a token proves: with the roles of its authorization claim, or those of the stored user.
func (a *Access) tokenIdentity(ctx context.Context, claimed *oidc.Login) (*auth.Identity, error) {
	var id *auth.Identity
	var err error
	if claimed.Stored {
		id, err = a.identity(ctx, claimed.User)
		if err == errNoUser {
			return nil, &refusal{reason: mongoerr.Newf(mongoerr.UserNotFound, "Could not find user %s for db %s", claimed.User.User, claimed.User.DB)}
		}
	} else {
		id, err = a.lent(ctx, claimed.User, claimed.Roles)
	}
	if err != nil {
		return nil, err
	}
	mine := *id
	mine.Expires, mine.Withdrawn, mine.Claims = claimed.Expires, claimed.Withdrawn, claimed.Claims
	return &mine, nil
}

// errExpired makes drivers authenticate again with a new token (authentication specification: reauthentication).
var errExpired = mongoerr.New(mongoerr.ReauthenticationRequired, "Client must re-authenticate: its access token has expired, or its key was withdrawn")

// expired reports whether an identity's token has expired, or its key has been withdrawn by the provider.
func expired(id *auth.Identity) bool {
	return !id.Expires.IsZero() && (time.Now().After(id.Expires) || id.Withdrawn != nil && id.Withdrawn())
}
