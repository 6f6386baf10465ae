package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ReplyRoom is the number of bytes at the front of Reply.Buf that the server fills in itself.
const ReplyRoom = replyPrefix

// maxKeptReply limits the size of reply buffers that are kept for reuse.
const maxKeptReply = 1 << 20

// Reply is the reply under construction. The handler appends exactly one BSON document to Buf, so that nothing is
// copied between building a reply and writing it to the socket.
type Reply struct {
	Buf        []byte
	NoCompress bool // set by commands whose replies are never compressed (hello, authentication)

	responseTo int32
	scratch    []byte // compressed form
}

// Reset drops what has been appended.
func (r *Reply) Reset() {
	if cap(r.Buf) < ReplyRoom {
		r.Buf = make([]byte, ReplyRoom, 512)
	}
	r.Buf = r.Buf[:ReplyRoom]
}

// Doc returns what has been appended.
func (r *Reply) Doc() []byte { return r.Buf[ReplyRoom:] }

// SetError replaces what has been appended by the error document of err.
func (r *Reply) SetError(err error) {
	r.Reset()
	r.Buf = mongoerr.AppendReply(r.Buf, err)
}

func (r *Reply) recycle() {
	if cap(r.Buf) > maxKeptReply {
		r.Buf = nil
	}
	if cap(r.scratch) > maxKeptReply {
		r.scratch = nil
	}
	r.NoCompress = false
	r.responseTo = 0
	r.Reset()
}

// seal turns the document into a frame that replies to m and returns it; it borrows from r.
func (r *Reply) seal(c *Conn, m *Message, flags uint32) []byte {
	if n := len(r.Buf) - ReplyRoom; n < 5 || n > MaxMessageSize-msgPrefixLen-4 {
		r.SetError(mongoerr.Newf(mongoerr.InternalError, "the reply to %q has %d bytes", m.CommandName(), n))
	}
	id := c.srv.nextID.Add(1)
	var frame []byte
	if m.OpCode == OpQuery {
		frame = r.sealQuery(id)
	} else {
		frame = r.sealMsg(id, flags|m.Flags&ChecksumPresent)
	}
	r.responseTo = id
	if !m.hasComp || r.NoCompress {
		return frame
	}
	st := &c.srv.stats.compress[m.compressor]
	out, err := appendCompressed(r.scratch[:0], m.compressor, frame)
	if err != nil {
		return frame // never for a compressor whose request was read; uncompressed is always allowed
	}
	st.compressIn.Add(int64(len(frame) - headerLen))
	st.compressOut.Add(int64(len(out) - compPrefix))
	r.scratch = out
	return out
}

func (r *Reply) sealMsg(id int32, flags uint32) []byte {
	if flags&ChecksumPresent != 0 {
		r.Buf = append(r.Buf, 0, 0, 0, 0)
	}
	frame := r.Buf[ReplyRoom-msgPrefixLen:]
	Header{int32(len(frame)), id, r.responseTo, OpMsg}.put(frame)
	binary.LittleEndian.PutUint32(frame[16:], flags)
	frame[20] = 0
	if flags&ChecksumPresent != 0 {
		at := len(frame) - 4
		binary.LittleEndian.PutUint32(frame[at:], crc32.Checksum(frame[:at], castagnoli))
	}
	return frame
}

func (r *Reply) sealQuery(id int32) []byte {
	frame := r.Buf
	clear(frame[:ReplyRoom])
	Header{int32(len(frame)), id, r.responseTo, OpReply}.put(frame)
	binary.LittleEndian.PutUint32(frame[16:], replyAwaitCapable)
	binary.LittleEndian.PutUint32(frame[32:], 1)
	return frame
}

// setParseError makes the reply for a request that could be parsed only in part.
func (r *Reply) setParseError(err error) {
	var legacy legacyQueryError
	if errors.As(err, &legacy) {
		r.Reset()
		r.Buf = mongoerr.AppendLegacyReply(r.Buf, legacy.cause)
		return
	}
	r.SetError(err)
}
