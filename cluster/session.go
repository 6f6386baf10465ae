package cluster

import (
	"crypto/rand"
	"crypto/sha256"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// LogicalSessionID identifies a session: the id that the driver chose and the digest of the user it belongs to.
// Child sessions of internal transactions also have TxnNumber and TxnUUID: TxnNumber is that of the parent's
// retryable write that the transaction executes, 0 if the write has none.
type LogicalSessionID struct {
	ID        [16]byte
	UID       [32]byte
	TxnNumber int64
	TxnUUID   [16]byte
}

// IsChild reports whether the session is one of an internal transaction.
func (s LogicalSessionID) IsChild() bool { return s.TxnUUID != [16]byte{} }

// Parent returns the session of the client whose write an internal transaction executes; any other session is
// its own parent.
func (s LogicalSessionID) Parent() LogicalSessionID {
	return LogicalSessionID{ID: s.ID, UID: s.UID}
}

// Child returns the session of an internal transaction for the write with this transaction number.
func (s LogicalSessionID) Child(txnNumber int64) LogicalSessionID {
	return LogicalSessionID{ID: s.ID, UID: s.UID, TxnNumber: txnNumber, TxnUUID: NewUUID()}
}

// NoUser is the uid of sessions without authentication: the digest of the empty string.
var NoUser = sha256.Sum256(nil)

// ParseLSID reads the lsid of a request: {id: UUID}, and uid only from other nodes or privileged users.
func ParseLSID(doc []byte, owner [32]byte) (LogicalSessionID, error) {
	s := LogicalSessionID{UID: owner}
	seen := false
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		switch string(k) {
		case "id":
			if v.IsNullish() {
				continue
			}
			if v.T != value.Binary || v.Subtype() != 4 {
				return s, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'OperationSessionInfo.lsid.id' is the wrong type '%s', expected type 'binData'", v.T.Name())
			}
			if len(v.Bytes()) != 16 {
				return s, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
			}
			copy(s.ID[:], v.Bytes())
			seen = true
		case "uid":
			if v.T != value.Binary || len(v.Bytes()) != 32 {
				return s, mongoerr.New(mongoerr.UnsupportedFormat, "Unsupported SHA256Block length")
			}
			copy(s.UID[:], v.Bytes())
		case "txnNumber":
			s.TxnNumber, _ = v.AsInt64()
		case "txnUUID":
			if v.T != value.Binary || v.Subtype() != 4 || len(v.Bytes()) != 16 {
				return s, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
			}
			copy(s.TxnUUID[:], v.Bytes())
		default:
			return s, mongoerr.UnknownField("OperationSessionInfo.lsid." + string(k))
		}
	}
	if !s.IsChild() {
		s.TxnNumber = 0
	}
	if !seen {
		return s, mongoerr.MissingField("OperationSessionInfo.lsid.id")
	}
	return s, nil
}

// NewSessionID returns a new id for startSession.
func NewSessionID(owner [32]byte) LogicalSessionID {
	return LogicalSessionID{ID: NewUUID(), UID: owner}
}

// NewUUID returns a random (version 4) UUID.
func NewUUID() (u [16]byte) {
	rand.Read(u[:]) // never fails: the runtime aborts the program if the system has no randomness
	u[6], u[8] = u[6]&0x0F|0x40, u[8]&0x3F|0x80
	return u
}

// Doc returns the id as it is stored in config.system.sessions.
func (s LogicalSessionID) Doc() []byte {
	f := []value.Field{value.F("id", value.NewBinary(4, s.ID[:])), value.F("uid", value.NewBinary(0, s.UID[:]))}
	if s.IsChild() {
		f = append(f, value.F("txnNumber", value.NewInt64(s.TxnNumber)), value.F("txnUUID", value.NewBinary(4, s.TxnUUID[:])))
	}
	return value.Doc(f...)
}

// ShownLSID returns the lsid of a request as diagnostics show it: with the user that it belongs to.
func ShownLSID(lsid []byte) []byte {
	id, err := ParseLSID(lsid, NoUser)
	if err != nil {
		return lsid
	}
	return id.Doc()
}
