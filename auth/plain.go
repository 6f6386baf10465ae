package auth

import (
	"bytes"
	"unicode/utf8"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Plain is the mechanism PLAIN: the password as it is, for a service outside the server that knows it.
const Plain = "PLAIN"

// maxPlain limits each part of a message of PLAIN (RFC 4616 §2).
const maxPlain = 255

// ParsePlain reads the only message of PLAIN (RFC 4616): an authorization identity, which may be empty, the user's name, and the
// password, separated by NUL.
func ParsePlain(msg []byte) (user, password string, err error) {
	parts := bytes.Split(msg, []byte{0})
	if len(parts) != 3 {
		return "", "", mongoerr.New(mongoerr.ProtocolError, "PLAIN: the payload is not an authorization identity, a user and a password")
	}
	for _, p := range parts {
		if len(p) > maxPlain || !utf8.Valid(p) {
			return "", "", mongoerr.New(mongoerr.ProtocolError, "PLAIN: a part of the payload is too long, or not in UTF-8")
		}
	}
	user = string(parts[1])
	if as := string(parts[0]); user == "" || len(parts[2]) == 0 || as != "" && as != user {
		return user, "", mongoerr.New(mongoerr.AuthenticationFailed, "PLAIN: a user and a password are needed, and a user cannot act as another")
	}
	return user, string(parts[2]), nil
}
