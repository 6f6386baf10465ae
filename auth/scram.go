package auth

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"sync"

	"github.com/xdg-go/scram"
	"github.com/xdg-go/stringprep"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The supported mechanisms.
const (
	SHA1   = "SCRAM-SHA-1"
	SHA256 = "SCRAM-SHA-256"
)

// Mechanisms lists the mechanisms in the order in which they are shown for users.
var Mechanisms = []string{SHA1, SHA256}

// Credentials are the stored form of a password.
type Credentials struct {
	Iterations                 int
	Salt, StoredKey, ServerKey []byte
}

// Equal reports whether both are the same derivation of the same password.
func (c Credentials) Equal(other Credentials) bool {
	return c.Iterations == other.Iterations && bytes.Equal(c.Salt, other.Salt) && bytes.Equal(c.StoredKey, other.StoredKey) && bytes.Equal(c.ServerKey, other.ServerKey)
}

func hashOf(mech string) scram.HashGeneratorFcn {
	if mech == SHA1 {
		return scram.SHA1
	}
	return scram.SHA256
}

// saltLen returns the length of a salt that, with the block number that it is hashed with, fills one digest.
func saltLen(mech string) int { return hashOf(mech)().Size() - 4 }

// PasswordDigest returns the digested password that SCRAM-SHA-1 uses.
func PasswordDigest(user, password string) string {
	sum := md5.Sum([]byte(user + ":mongo:" + password))
	return hex.EncodeToString(sum[:])
}

// NewCredentials makes the credentials of a password for a mechanism. The password has to be in the form that the
// mechanism uses: digested for SCRAM-SHA-1, plain for SCRAM-SHA-256.
func NewCredentials(mech, password string, iterations int) (Credentials, error) {
	salt := make([]byte, saltLen(mech))
	rand.Read(salt)
	return derive(mech, password, salt, iterations)
}

func derive(mech, password string, salt []byte, iterations int) (Credentials, error) {
	if mech == SHA256 {
		prepared, err := stringprep.SASLprep.Prepare(password)
		if err != nil {
			return Credentials{}, mongoerr.New(mongoerr.BadValue, "the password cannot be prepared by SASLprep (RFC 4013)")
		}
		password = prepared
	}
	c, err := hashOf(mech).NewClientUnprepped("", password, "")
	if err != nil {
		return Credentials{}, err
	}
	s, err := c.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: iterations})
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{Iterations: iterations, Salt: salt, StoredKey: s.StoredKey, ServerKey: s.ServerKey}, nil
}

// Lookup finds a user's credentials for the mechanism of the conversation. There may be several, if several keys are
// valid; they have the same salt and iterations.
type Lookup func(user string) ([]Credentials, error)

// Conversation is one client's attempt to authenticate by SCRAM. One goroutine uses it at a time.
type Conversation struct {
	Mechanism string
	DB        string
	// SkipEmpty makes the exchange end with the proof; otherwise one more, empty, message follows.
	SkipEmpty bool

	lookup Lookup
	tries  []*scram.ServerConversation // one for each credentials
	won    *scram.ServerConversation
	user   string
	step   int
}

// NewConversation begins a conversation; mech is one of Mechanisms.
func NewConversation(mech, db string, lookup Lookup) *Conversation {
	return &Conversation{Mechanism: mech, DB: db, lookup: lookup}
}

// maxPayload limits a client's message, which has nothing long in it.
const maxPayload = 16 << 10

// Step takes a message of the client and returns the reply. done reports that the conversation has succeeded.
func (c *Conversation) Step(payload []byte) (answer []byte, done bool, err error) {
	c.step++
	if len(payload) > maxPayload {
		return nil, false, errFailed
	}
	switch {
	case c.step == 1:
		answer, err = c.first(string(payload))
		return answer, false, err
	case c.step == 2:
		answer, err = c.final(string(payload))
		return answer, err == nil && c.SkipEmpty, err
	case c.step == 3 && c.won != nil && len(payload) == 0:
		return nil, true, nil
	}
	return nil, false, errFailed
}

// errFailed is the error for every reason of a failed authentication: the client does not learn which.
var errFailed = mongoerr.New(mongoerr.AuthenticationFailed, "Authentication failed.")

// Failed returns the error of an authentication that failed, whatever the reason.
func Failed() error { return errFailed }

// User returns the user that the client claims to be, known after the first step.
func (c *Conversation) User() UserName { return UserName{c.user, c.DB} }

// Authenticated reports whether the client has proved that it is that user.
func (c *Conversation) Authenticated() bool { return c.won != nil }

func (c *Conversation) first(msg string) ([]byte, error) {
	var creds []Credentials
	// The nonce is generated once, so that the conversations of several keys return the same reply.
	raw := make([]byte, 24)
	rand.Read(raw)
	nonce := base64.StdEncoding.EncodeToString(raw)
	var answer string
	for i := 0; i == 0 || i < len(creds); i++ {
		s, err := hashOf(c.Mechanism).NewServer(func(user string) (scram.StoredCredentials, error) {
			if i == 0 {
				var err error
				if creds, err = c.lookup(user); err != nil {
					return scram.StoredCredentials{}, err
				}
			}
			k := creds[i]
			return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(k.Salt), Iters: k.Iterations}, StoredKey: k.StoredKey, ServerKey: k.ServerKey}, nil
		})
		if err != nil {
			return nil, err
		}
		conv := s.WithNonceGenerator(func() string { return nonce }).NewConversation()
		if answer, err = conv.Step(msg); err != nil {
			return nil, errFailed
		}
		c.tries = append(c.tries, conv)
		// Acting as an identity other than the proved one is not supported.
		if c.user = conv.Username(); conv.AuthzID() != "" && conv.AuthzID() != c.user {
			return nil, errFailed
		}
	}
	return []byte(answer), nil
}

func (c *Conversation) final(msg string) ([]byte, error) {
	for _, conv := range c.tries {
		if answer, err := conv.Step(msg); err == nil && conv.Valid() {
			c.won = conv
			return []byte(answer), nil
		}
	}
	return nil, errFailed
}

// Key is a member's key file: it accepts all of its keys from others, and offers them in turn until the other side accepts one.
type Key struct {
	clients []*scram.Client
	keys    []string
	salt    []byte
	once    sync.Once
	creds   []Credentials
	err     error
}

// keyIterations is the number of times that a key is hashed. More is not needed, since a key is random and long.
const keyIterations = 4096

// NewKey returns a Key with the file's keys.
func NewKey(keys []string) (*Key, error) {
	k := &Key{keys: keys, salt: make([]byte, saltLen(SHA256))}
	rand.Read(k.salt)
	for _, key := range keys {
		c, err := scram.SHA256.NewClientUnprepped(System.User, key, "")
		if err != nil {
			return nil, err
		}
		k.clients = append(k.clients, c)
	}
	return k, nil
}

// Len returns the number of keys.
func (k *Key) Len() int { return len(k.clients) }

// Client begins a conversation with another member with the n-th key.
func (k *Key) Client(n int) *scram.ClientConversation { return k.clients[n].NewConversation() }

// Lookup returns the credentials that members prove. They are derived on first use.
func (k *Key) Lookup(user string) ([]Credentials, error) {
	if user != System.User {
		return nil, errFailed
	}
	k.once.Do(func() {
		for _, key := range k.keys {
			c, err := derive(SHA256, key, k.salt, keyIterations)
			if err != nil {
				k.err = err
			}
			k.creds = append(k.creds, c)
		}
	})
	return k.creds, k.err
}
