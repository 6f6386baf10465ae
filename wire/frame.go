package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Limits that hello reports and the server enforces (manual: "MongoDB Limits and Thresholds").
const (
	MaxMessageSize      = 48000000
	MaxInternalMessage  = MaxMessageSize + 2<<20 // a client's message with what a router adds: 12 bytes a statement for its id, versions, session
	MaxDocumentSize     = 16 << 20
	MaxInternalDocument = MaxDocumentSize + 16<<10 // a document with the server's own additions
	MaxWriteBatch       = 100000
	MaxDepth            = 200
)

// OpCode is the kind of a frame (specification: MongoDB Wire Protocol).
type OpCode int32

// Opcodes this package reads or writes.
const (
	OpReply      OpCode = 1
	OpQuery      OpCode = 2004
	OpCompressed OpCode = 2012
	OpMsg        OpCode = 2013
)

// Flag bits of OP_MSG. A receiver must know each of the lower sixteen.
const (
	ChecksumPresent uint32 = 1 << 0
	MoreToCome      uint32 = 1 << 1
	ExhaustAllowed  uint32 = 1 << 16
)

const requiredFlags = 0xffff

const (
	headerLen    = 16
	msgPrefixLen = headerLen + 4 + 1     // header, flags, kind byte of the body section
	replyPrefix  = headerLen + 4 + 8 + 8 // header, flags, cursor id, starting from, number returned
	compPrefix   = headerLen + 4 + 4 + 1 // header, original opcode, uncompressed size, compressor
	minFrame     = headerLen
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the first sixteen bytes of a frame.
type Header struct {
	Length     int32
	RequestID  int32
	ResponseTo int32
	OpCode     OpCode
}

// ReadHeader reads a header from b, which must have at least sixteen bytes.
func ReadHeader(b []byte) Header {
	_ = b[15]
	return Header{
		Length:     int32(binary.LittleEndian.Uint32(b)),
		RequestID:  int32(binary.LittleEndian.Uint32(b[4:])),
		ResponseTo: int32(binary.LittleEndian.Uint32(b[8:])),
		OpCode:     OpCode(binary.LittleEndian.Uint32(b[12:])),
	}
}

func (h Header) put(b []byte) {
	_ = b[15]
	binary.LittleEndian.PutUint32(b, uint32(h.Length))
	binary.LittleEndian.PutUint32(b[4:], uint32(h.RequestID))
	binary.LittleEndian.PutUint32(b[8:], uint32(h.ResponseTo))
	binary.LittleEndian.PutUint32(b[12:], uint32(h.OpCode))
}

// FrameError is a frame that cannot be answered: the connection is closed.
type FrameError struct{ Reason string }

func (e *FrameError) Error() string { return "malformed frame: " + e.Reason }

func frameErrorf(format string, args ...any) error {
	return &FrameError{Reason: fmt.Sprintf(format, args...)}
}

// frameLength checks the length word of a header.
func frameLength(b []byte, limit int) (int, error) {
	n := int32(binary.LittleEndian.Uint32(b))
	if n < minFrame || int(n) > limit {
		return 0, frameErrorf("message length %d is outside %d to %d", n, minFrame, limit)
	}
	return int(n), nil
}
