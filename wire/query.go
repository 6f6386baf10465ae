package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Response flags of OP_REPLY.
const (
	replyQueryFailure = 1 << 1
	replyAwaitCapable = 1 << 3
)

const legacyHelp = " The client driver may require an upgrade. For more details see " +
	"https://dochub.mongodb.org/core/legacy-opcode-removal"

// queryCommands are the commands that may still come as OP_QUERY: the handshake, authentication before the
// protocol is known, and shutdown, which embedding launchers send this way.
var queryCommands = map[string]bool{
	"hello": true, "ismaster": true, "isMaster": true, "_isSelf": true, "buildinfo": true, "buildInfo": true,
	"saslStart": true, "saslContinue": true, "authenticate": true, "getnonce": true, "ping": true, "shutdown": true,
}

// legacyQueryError is the error of a query that is not a command; its reply has the legacy form {$err, code}.
type legacyQueryError struct{ cause *mongoerr.Error }

func (e legacyQueryError) Error() string { return e.cause.Error() }
func (e legacyQueryError) Unwrap() error { return e.cause }

// parseQuery reads an OP_QUERY after its header.
func parseQuery(m *Message, b []byte) error {
	if len(b) < 4 {
		return frameErrorf("OP_QUERY cut short")
	}
	z := bytes.IndexByte(b[4:], 0)
	if z < 0 || len(b) < 4+z+1+8+5 {
		return frameErrorf("OP_QUERY cut short")
	}
	ns := b[4 : 4+z]
	b = b[4+z+1+8:] // numberToSkip and numberToReturn mean nothing for a command
	n, err := cutDocument(b)
	if err != nil {
		return err
	}
	db, coll, _ := bytes.Cut(ns, []byte{'.'})
	m.Body = withDB(unwrapQuery(b[:n:n]), db)
	if string(coll) != "$cmd" {
		return legacyQueryError{mongoerr.New(5739101, "OP_QUERY is no longer supported."+legacyHelp)}
	}
	if name := m.CommandName(); !queryCommands[string(name)] {
		return mongoerr.Newf(mongoerr.UnsupportedOpQueryCommand, "Unsupported OP_QUERY command: %s.%s", name, legacyHelp)
	}
	return nil
}

// unwrapQuery extracts the command from {$query: command, $readPreference: …}.
func unwrapQuery(doc []byte) []byte {
	if len(doc) < 7 || doc[4] != tDocument {
		return doc
	}
	key, n := skipElement(doc[4 : len(doc)-1])
	if s := string(key); s != "$query" && s != "query" {
		return doc
	}
	return doc[4+len(key)+2 : 4+n : 4+n]
}

// withDB returns a copy of a command with its database as $db, as in OP_MSG.
func withDB(doc, db []byte) []byte {
	out := make([]byte, 0, len(doc)+len("\x02$db\x00")+4+len(db)+1)
	out = append(append(out, doc[:len(doc)-1]...), "\x02$db\x00"...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(db)+1))
	out = append(append(append(out, db...), 0), 0)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}

// parseReply reads an OP_REPLY after its header, for the client side.
func parseReply(m *Message, b []byte) error {
	if len(b) < replyPrefix-headerLen {
		return frameErrorf("OP_REPLY cut short")
	}
	b = b[replyPrefix-headerLen:]
	n, err := cutDocument(b)
	if err != nil {
		return err
	}
	m.Body = b[:n:n]
	return nil
}

// AppendQuery appends a command as an OP_QUERY frame on db.$cmd.
func AppendQuery(dst []byte, requestID int32, db string, body []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, headerLen+4)...)
	dst = append(append(dst, db...), ".$cmd\x00"...)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, 0xFFFFFFFF)
	dst = append(dst, body...)
	Header{int32(len(dst) - start), requestID, 0, OpQuery}.put(dst[start:])
	return dst
}
