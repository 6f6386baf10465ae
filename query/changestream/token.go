package changestream

import (
	"encoding/hex"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TokenType distinguishes the tokens of events from those of only a time.
type TokenType int

// The types of tokens.
const (
	HighWaterMark TokenType = 0
	EventToken    TokenType = 128
)

// tokenVersion is the version of the tokens that are made here: their event identifier includes the operation.
const tokenVersion = 2

// Token is a position in a change stream.
//
// Invariant: tokens compare, byte by byte, as their events come, on every member of every shard; the merge of a
// router and a resumed stream rely on nothing else. A token is therefore made only from what the replicated log
// says of an event: the time of its entry (for a transaction that of its commit), the place of the operation
// within its transaction, the collection, and the event's identifier. A high-water mark sorts before the events of
// its time, an event before the invalidate that it causes, and a whole event before its fragments. Hazard: a field
// that differs between members, or between an event seen live and the same event read from the oplog again, would
// make a client that resumes on another member miss its place.
//
// Rejected: a position in one member's oplog, or a table of positions by shard. The first means nothing after an
// election, the second nothing after a shard was added.
type Token struct {
	ClusterTime    uint64
	Version        int
	Type           TokenType
	TxnOpIndex     int  // which operation of its transaction
	FromInvalidate bool // the position is after the invalidate that the event caused
	Fragment       int  // of a split event; -1 for none

	key []byte // without the closing byte
	hex string // of a token that was parsed
	raw []byte // type bits, nil for none
}

// MarkAt returns the high-water-mark token of a time, which sorts before all events of that time.
func MarkAt(clusterTime uint64) *Token {
	return makeToken(clusterTime, HighWaterMark, 0, value.NewNull(), value.Value{})
}

func makeToken(at uint64, kind TokenType, op int, uuid, identifier value.Value) *Token {
	var t typeBits
	key := make([]byte, 0, 96)
	key = appendKey(key, &t, value.NewTimestampU64(at))
	key = appendKey(key, &t, value.NewInt32(tokenVersion))
	key = appendKey(key, &t, value.NewInt32(int32(kind)))
	key = appendKey(key, &t, value.NewInt32(int32(op)))
	key = appendKey(key, &t, value.NewBool(false))
	key = appendKey(key, &t, uuid)
	if !identifier.IsMissing() {
		key = appendKey(key, &t, identifier)
	}
	return &Token{ClusterTime: at, Version: tokenVersion, Type: kind, TxnOpIndex: op, Fragment: -1, key: key, raw: t.stored()}
}

// fromInvalidateAt returns the position of the flag in a token: after time, version, type and index of the operation.
func (t *Token) fromInvalidateAt() int {
	r := keyReader{key: t.key}
	for range 4 {
		r.skip(0)
	}
	return r.at
}

// Invalidate returns the token of the invalidate that t's event causes.
func (t *Token) Invalidate() *Token {
	out := *t
	out.key = append([]byte(nil), t.key...)
	out.key[t.fromInvalidateAt()] = keyTrue
	out.FromInvalidate, out.hex = true, ""
	return &out
}

// WithFragment returns the token of one fragment of t's event.
func (t *Token) WithFragment(n int) *Token {
	out := *t
	out.key = appendKeyInt(append([]byte(nil), t.key...), int64(n))
	out.Fragment, out.hex = n, ""
	return &out
}

// Compare orders tokens in the order of their events.
func (t *Token) Compare(o *Token) int { return strings.Compare(string(t.key), string(o.key)) }

// Data returns the token as text.
func (t *Token) Data() string {
	if t.hex == "" {
		return strings.ToUpper(hex.EncodeToString(append(t.key[:len(t.key):len(t.key)], keyEnd)))
	}
	return t.hex
}

// Document returns the token in the form of an event's _id.
func (t *Token) Document() []byte {
	f := []value.Field{value.F("_data", value.NewString(t.Data()))}
	if t.raw != nil {
		f = append(f, value.F("_typeBits", value.NewBinary(0, t.raw)))
	}
	return value.Doc(f...)
}

// ParseToken reads a resume token. Bytes after its last field are ignored, as on the real server.
func ParseToken(doc []byte) (*Token, error) {
	data, bits := value.Lookup(doc, "_data"), value.Lookup(doc, "_typeBits")
	switch {
	case data.T != value.String:
		return nil, mongoerr.Newf(40647, "Bad resume token: _data of missing or of wrong type: %s", data.T.Name())
	case bits.T != value.Missing && bits.T != value.Binary:
		return nil, mongoerr.Newf(40648, "Bad resume token: _typeBits of wrong type: %s", bits.T.Name())
	case data.Str() == "":
		return nil, mongoerr.New(40649, "Bad resume token: the _data is empty")
	}
	key, err := hex.DecodeString(data.Str())
	if err != nil {
		return nil, mongoerr.New(mongoerr.FailedToParse, "resume token string was not a valid hex string")
	}
	if key[0] != keyTimestamp {
		return nil, mongoerr.Newf(50811, "Unknown type code %d in the key of a resume token", key[0])
	}
	return readToken(key, bits)
}

func readToken(key []byte, bits value.Value) (*Token, error) {
	r := &keyReader{key: key}
	t := &Token{Fragment: -1}
	r.take(1)
	for _, b := range r.take(8) {
		t.ClusterTime = t.ClusterTime<<8 | uint64(b)
	}
	t.Version = r.integer()
	switch {
	case r.short:
		return nil, r.err()
	case t.Version != 1 && t.Version != tokenVersion:
		return nil, mongoerr.Newf(50795, "Invalid Resume Token: only supports version 1 or 2, but found: %d", t.Version)
	}
	t.Type, t.TxnOpIndex = TokenType(r.integer()), r.integer()
	if t.Type != HighWaterMark && t.Type != EventToken && !r.short {
		return nil, mongoerr.New(51057, "Resume Token tokenType out of range")
	}
	switch r.take(1)[0] {
	case keyTrue:
		t.FromInvalidate = true
	case keyFalse:
	default:
		if !r.short {
			return nil, mongoerr.New(50872, "Resume Token fromInvalidate is not of the correct type. Expected boolean")
		}
	}
	if r.short {
		return nil, r.err()
	}
	end := func(b byte) bool { return b == keyEnd || b == 0 || b == 0xFF }
	if !end(r.peek()) { // the collection's UUID; null for a time
		r.skip(0)
	}
	if !end(r.peek()) && !r.short {
		r.skip(0)
	}
	if !end(r.peek()) && !r.short {
		t.Fragment = r.integer()
	}
	if r.short {
		return nil, r.err()
	}
	t.key = append([]byte(nil), key[:r.at]...)
	if bits.T == value.Binary {
		t.raw = append([]byte(nil), bits.Bytes()...)
	}
	return t, nil
}

// OnShard returns a token that sorts directly after t, and that no other shard's event has. Two shards log one event of a collection that
// both have (a collMod, dropIndexes or createIndexes) for themselves, possibly at one time: their tokens then agree in everything that the
// log says. t is the token of a whole event.
func (t *Token) OnShard(shard string) *Token {
	out := *t
	var bits typeBits                           // a string that is no symbol sets none
	key := t.key[: len(t.key)-1 : len(t.key)-1] // without the end of the identifier
	key = append(append(append(key, keyString), "shard"...), 0)
	out.key = append(appendKey(key, &bits, value.NewString(shard)), 0)
	out.hex = ""
	return &out
}

// Before returns the same position without the fragment: the event itself.
func (t *Token) Before() *Token {
	if t.Fragment < 0 {
		return t
	}
	out := *t
	var n [9]byte
	out.key = t.key[:len(t.key)-len(appendKeyInt(n[:0], int64(t.Fragment)))]
	out.Fragment, out.hex = -1, ""
	return &out
}
