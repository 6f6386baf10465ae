package wire

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Sequence is a kind 1 section: the documents of one array field of the command, concatenated.
type Sequence struct {
	ID   string
	Docs []byte
}

// Message is a request or a reply. Body and Seqs borrow from the frame it was read from.
type Message struct {
	RequestID  int32
	ResponseTo int32
	OpCode     OpCode // OpMsg, or OpQuery for a legacy handshake, whose body gets a $db too
	Flags      uint32
	Body       []byte     // the command or the reply: one BSON document
	Seqs       []Sequence // kind 1 sections

	compressor CompressorID // the compressor of the frame
	hasComp    bool
	frame      *buffer
	inflated   *buffer
	most       int // bytes that it may have after decompression; 0 for no bound of its own
}

// CommandName returns the key of the body's first element, "" for an empty body.
func (m *Message) CommandName() []byte {
	if len(m.Body) < 7 {
		return nil
	}
	k := m.Body[5:]
	if i := bytes.IndexByte(k, 0); i > 0 {
		return k[:i]
	}
	return nil
}

// WantsReply reports whether the sender waits for a reply.
func (m *Message) WantsReply() bool { return m.Flags&MoreToCome == 0 }

// AllowsExhaust reports whether the sender accepts several replies to this request.
func (m *Message) AllowsExhaust() bool { return m.Flags&ExhaustAllowed != 0 }

// Size returns the total size of the message's documents in bytes.
func (m *Message) Size() int {
	n := len(m.Body)
	for i := range m.Seqs {
		n += len(m.Seqs[i].Docs)
	}
	return n
}

// Seq returns the section of that name, nil if there is none.
func (m *Message) Seq(id string) *Sequence {
	for i := range m.Seqs {
		if m.Seqs[i].ID == id {
			return &m.Seqs[i]
		}
	}
	return nil
}

// Retain prevents the memory of Body and Seqs from being reused; it is kept as long as something refers to it.
func (m *Message) Retain() {
	m.frame, m.inflated = nil, nil
}

func (m *Message) reset() {
	clear(m.Seqs)
	*m = Message{Seqs: m.Seqs[:0]}
}

// release releases the frame; Body and Seqs are invalid afterwards.
func (m *Message) release() {
	m.frame.free()
	m.inflated.free()
	m.reset()
}

// ParseMessage reads a whole frame: OP_MSG or OP_QUERY, compressed or not. Errors are a *FrameError, after which the
// connection is unusable, or a *mongoerr.Error that can be sent as a reply.
func ParseMessage(frame []byte) (*Message, error) {
	if len(frame) < headerLen {
		return nil, frameErrorf("%d bytes are not a frame", len(frame))
	}
	n, err := frameLength(frame, MaxInternalMessage)
	if err != nil {
		return nil, err
	}
	if n != len(frame) {
		return nil, frameErrorf("length word says %d, frame has %d bytes", n, len(frame))
	}
	m := new(Message)
	return m, parseFrame(m, frame)
}

// parseFrame fills m from a frame whose length has been checked.
func parseFrame(m *Message, b []byte) error {
	h := ReadHeader(b)
	m.RequestID, m.ResponseTo, m.OpCode = h.RequestID, h.ResponseTo, h.OpCode
	if h.OpCode == OpCompressed {
		var err error
		if b, err = inflate(m, b); err != nil {
			return err
		}
		m.OpCode = OpCode(binary.LittleEndian.Uint32(b[12:]))
	}
	switch m.OpCode {
	case OpMsg:
		return parseMsg(m, b)
	case OpQuery:
		return parseQuery(m, b[headerLen:])
	case OpReply:
		return parseReply(m, b[headerLen:])
	}
	return frameErrorf("opcode %d is not supported", m.OpCode)
}

// parseMsg reads an OP_MSG frame, header included.
func parseMsg(m *Message, frame []byte) error {
	b := frame[headerLen:]
	if len(b) < 4+1 {
		return frameErrorf("OP_MSG of %d bytes", len(frame))
	}
	m.Flags = binary.LittleEndian.Uint32(b)
	if unknown := m.Flags & requiredFlags &^ (ChecksumPresent | MoreToCome); unknown != 0 {
		return frameErrorf("OP_MSG carries unknown required flags 0x%x", unknown)
	}
	if m.Flags&ChecksumPresent != 0 {
		if len(b) < 4+1+4 {
			return frameErrorf("OP_MSG too short for its checksum")
		}
		at := len(frame) - 4
		if sum := crc32.Checksum(frame[:at], castagnoli); sum != binary.LittleEndian.Uint32(frame[at:]) {
			return mongoerr.New(mongoerr.ChecksumMismatch, "OP_MSG checksum does not match contents")
		}
		b = b[:len(b)-4]
	}
	return parseSections(m, b[4:])
}

func parseSections(m *Message, b []byte) error {
	for len(b) > 0 {
		kind := b[0]
		b = b[1:]
		var n int
		var err error
		switch kind {
		case 0:
			if m.Body != nil {
				return mongoerr.New(40430, "Multiple body sections in message")
			}
			n, err = cutDocument(b)
			if err != nil {
				return err
			}
			m.Body = b[:n:n]
		case 1:
			if n, err = parseSequence(m, b); err != nil {
				return err
			}
		default:
			return mongoerr.Newf(40432, "Unknown section kind %d", kind)
		}
		b = b[n:]
	}
	if m.Body == nil {
		return mongoerr.New(40587, "OP_MSG messages must have a body")
	}
	return checkDuplicates(m)
}

// cutDocument validates the document at the beginning of b and returns its length.
func cutDocument(b []byte) (int, error) {
	if len(b) < 5 {
		return 0, invalidBSON("a document needs at least 5 bytes")
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < 5 || n > len(b) {
		return 0, invalidBSON("document length runs past its section")
	}
	return n, Validate(b[:n])
}

// parseSequence reads a kind 1 section after its kind byte: size, name, documents.
func parseSequence(m *Message, b []byte) (int, error) {
	if len(b) < 5 {
		return 0, invalidBSON("document sequence is cut short")
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < 5 || n > len(b) {
		return 0, invalidBSON("document sequence length runs past the message")
	}
	s := b[4:n:n]
	z := bytes.IndexByte(s, 0)
	if z < 0 {
		return 0, invalidBSON("document sequence name has no terminator")
	}
	id := sequenceName(s[:z])
	for i := range m.Seqs {
		if m.Seqs[i].ID == id {
			return 0, mongoerr.Newf(40431, "Duplicate document sequence: %s", id)
		}
	}
	docs := s[z+1:]
	for rest := docs; len(rest) > 0; {
		d, err := cutDocument(rest)
		if err != nil {
			return 0, err
		}
		rest = rest[d:]
	}
	m.Seqs = append(m.Seqs, Sequence{ID: id, Docs: docs})
	return n, nil
}

// sequenceName avoids an allocation for the names that drivers use.
func sequenceName(b []byte) string {
	switch string(b) {
	case "documents":
		return "documents"
	case "updates":
		return "updates"
	case "deletes":
		return "deletes"
	case "ops":
		return "ops"
	case "nsInfo":
		return "nsInfo"
	}
	return string(b)
}

// checkDuplicates refuses a field that is given in the body and as a sequence.
func checkDuplicates(m *Message) error {
	if len(m.Seqs) == 0 {
		return nil
	}
	for b := m.Body[4 : len(m.Body)-1]; len(b) > 0; {
		key, next := skipElement(b)
		for i := range m.Seqs {
			if string(key) == m.Seqs[i].ID {
				return mongoerr.Newf(40433, "Duplicate field between body and document sequence %s", m.Seqs[i].ID)
			}
		}
		b = b[next:]
	}
	return nil
}

// AppendMessage appends m to dst as an OP_MSG frame, with a checksum if its flag is set.
func AppendMessage(dst []byte, m *Message) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, headerLen)...)
	dst = binary.LittleEndian.AppendUint32(dst, m.Flags)
	dst = append(dst, 0)
	dst = append(dst, m.Body...)
	for i := range m.Seqs {
		s := &m.Seqs[i]
		dst = append(dst, 1)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(4+len(s.ID)+1+len(s.Docs)))
		dst = append(append(dst, s.ID...), 0)
		dst = append(dst, s.Docs...)
	}
	n := len(dst) - start
	if m.Flags&ChecksumPresent != 0 {
		n += 4
	}
	Header{int32(n), m.RequestID, m.ResponseTo, OpMsg}.put(dst[start:])
	if m.Flags&ChecksumPresent != 0 {
		dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
	}
	return dst
}
