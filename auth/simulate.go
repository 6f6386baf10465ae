package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"

	"github.com/shoaldb/shoal/query/value"
)

// Shape has what a server reveals of a user's credentials before authentication: the mechanisms, and their iterations.
type Shape struct {
	Iterations map[string]int // by mechanism
	Users      int            // how many users have such credentials
}

// Simulation makes credentials for users who do not exist. They look like those of the users who do: each unknown name has the
// shape of some of them, with the same frequency, and keeps it while the users stay the same. The secret is the deployment's, so that all
// its nodes answer alike, today and after a restart.
type Simulation struct {
	Secret []byte
	Shapes []Shape
}

// SimulationPurpose is the purpose of the document of admin.system.keys that has the secret.
const SimulationPurpose = "SimulatedCredentials"

// simulationID is its _id; those of signing keys are times.
const simulationID = 0

// NewSimulationSecret returns the document of a new secret.
func NewSimulationSecret() []byte {
	secret := make([]byte, sha256.Size)
	rand.Read(secret)
	return value.Doc(value.F("_id", value.NewInt64(simulationID)), value.F("purpose", value.NewString(SimulationPurpose)), value.F("key", value.NewBinary(0, secret)))
}

// ParseSimulationSecret reads such a document; nil if it is malformed.
func ParseSimulationSecret(doc []byte) []byte {
	if key := value.Lookup(doc, "key"); key.T == value.Binary && len(key.Bytes()) == sha256.Size {
		return append([]byte(nil), key.Bytes()...)
	}
	return nil
}

func (s *Simulation) draw(what string, u UserName) []byte {
	mac := hmac.New(sha256.New, s.Secret)
	mac.Write([]byte(what + "\x00" + u.String()))
	return mac.Sum(nil)
}

// Shape returns the shape of an unknown user's credentials, false if there are no users. The choice is weighted rendezvous hashing:
// when users come and go, a name changes its shape only to one that has become more frequent.
func (s *Simulation) Shape(u UserName) (best Shape, ok bool) {
	high := math.Inf(-1)
	for _, shape := range s.Shapes {
		n := binary.BigEndian.Uint64(s.draw(fmt.Sprint("shape", shape.Iterations), u))
		x := (float64(n>>11) + 0.5) / (1 << 53)
		if score := -float64(shape.Users) / math.Log(x); score > high {
			high, best, ok = score, shape, true
		}
	}
	return best, ok
}

// Credentials returns credentials that match no password. Those of another number of iterations have another salt, as after
// a change of the password.
func (s *Simulation) Credentials(mech string, u UserName, iterations int) Credentials {
	size := hashOf(mech)().Size()
	draw := func(what string) []byte { return s.draw(fmt.Sprint(what, "\x00", mech, "\x00", iterations), u) }
	return Credentials{Iterations: iterations, Salt: draw("salt")[:saltLen(mech)], StoredKey: draw("stored")[:size], ServerKey: draw("server")[:size]}
}

// CountShape adds a user's credentials to a list of shapes.
func CountShape(list []Shape, iterations map[string]int) []Shape {
	for i := range list {
		if maps.Equal(list[i].Iterations, iterations) {
			list[i].Users++
			return list
		}
	}
	return append(list, Shape{iterations, 1})
}
