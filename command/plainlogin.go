package command

import (
	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/auth/saslauthd"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// startPlain runs a PLAIN conversation, which has one message. The daemon at saslauthdPath checks the password; no credentials are
// stored here. The user, with its roles, is one of $external. For a name that does not exist here the daemon is asked too,
// and the client receives the error of a wrong password.
func (a *Access) startPlain(op *Op, l *login, db string, payload value.Value) ([]byte, error) {
	if db != auth.External {
		return nil, mongoerr.New(mongoerr.ProtocolError, "PLAIN authentication must always use the $external database.")
	}
	if payload.T != value.Binary {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "Wrong type for field (payload). Expected binData")
	}
	user, password, err := auth.ParsePlain(payload.Bytes())
	name := auth.UserName{User: user, DB: db}
	if err != nil {
		return nil, &refusal{user: name, reason: err}
	}
	if err := saslauthd.Check(op, a.Params.Str("saslauthdPath"), a.Params.Str("saslServiceName"), user, password); err != nil {
		return nil, &refusal{user: name, reason: err}
	}
	id, err := a.identity(op, name)
	if err == errNoUser {
		return nil, &refusal{user: name, reason: mongoerr.Newf(mongoerr.UserNotFound, "Could not find user %s for db %s", user, db)}
	}
	if err != nil {
		return nil, err
	}
	if err := a.enter(op, id, auth.Plain); err != nil {
		return nil, err
	}
	return appendStep(nil, l.id, true, nil), nil
}
