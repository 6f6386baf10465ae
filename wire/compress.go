package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CompressorID identifies a compressor in an OP_COMPRESSED frame.
type CompressorID uint8

// The compressors of the specification.
const (
	CompressorNoop   CompressorID = 0
	CompressorSnappy CompressorID = 1
	CompressorZlib   CompressorID = 2
	CompressorZstd   CompressorID = 3
	numCompressors                = 4
)

var compressorNames = [numCompressors]string{"noop", "snappy", "zlib", "zstd"}

func (id CompressorID) String() string {
	if int(id) < numCompressors {
		return compressorNames[id]
	}
	return fmt.Sprintf("compressor %d", uint8(id))
}

// ParseCompressor finds a compressor by its name in a handshake.
func ParseCompressor(name string) (CompressorID, bool) {
	for i, s := range compressorNames {
		if s == name {
			return CompressorID(i), true
		}
	}
	return 0, false
}

var (
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxInternalMessage),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(err) // the options are constant
		}
		return d
	})
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(0),
			zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<17))
		if err != nil {
			panic(err) // the options are constant
		}
		return e
	})
	zlibWriters = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}
	zlibReaders sync.Pool
)

// inflate unpacks an OP_COMPRESSED frame into a frame of its original opcode.
func inflate(m *Message, frame []byte) ([]byte, error) {
	if len(frame) < compPrefix {
		return nil, frameErrorf("OP_COMPRESSED of %d bytes", len(frame))
	}
	h := ReadHeader(frame)
	orig := OpCode(binary.LittleEndian.Uint32(frame[16:]))
	size := int(int32(binary.LittleEndian.Uint32(frame[20:])))
	m.compressor, m.hasComp = CompressorID(frame[24]), true
	if orig == OpCompressed {
		return nil, frameErrorf("OP_COMPRESSED inside OP_COMPRESSED")
	}
	if size < 0 || size > MaxInternalMessage-headerLen {
		return nil, frameErrorf("decompressed size %d is outside 0 to %d", size, MaxInternalMessage-headerLen)
	}
	if m.most > 0 && headerLen+size > m.most {
		return nil, frameErrorf("message of %d bytes before authentication, at most %d are allowed", headerLen+size, m.most)
	}
	m.inflated = getBuffer(headerLen + size)
	out := m.inflated.b
	if err := decompress(m.compressor, out[headerLen:], frame[compPrefix:]); err != nil {
		return nil, err
	}
	Header{int32(len(out)), h.RequestID, h.ResponseTo, orig}.put(out)
	return out, nil
}

// decompress fills dst exactly from src.
func decompress(id CompressorID, dst, src []byte) error {
	var n int
	var err error
	switch id {
	case CompressorNoop:
		n = copy(dst, src)
		if len(src) != len(dst) {
			n = len(src)
		}
	case CompressorSnappy:
		if n, err = snappy.DecodedLen(src); err == nil && n == len(dst) {
			_, err = snappy.Decode(dst, src)
		}
	case CompressorZlib:
		n, err = inflateZlib(dst, src)
	case CompressorZstd:
		var out []byte
		out, err = zstdDecoder().DecodeAll(src, dst[:0:len(dst)])
		if n = len(out); n == len(dst) && n > 0 && &out[0] != &dst[0] {
			copy(dst, out)
		}
	default:
		return frameErrorf("compressor %d is not known", id)
	}
	if err != nil {
		return frameErrorf("%s: %v", id, err)
	}
	if n != len(dst) {
		return frameErrorf("%s: decompressed to %d bytes, %d were announced", id, n, len(dst))
	}
	return nil
}

func inflateZlib(dst, src []byte) (int, error) {
	in := bytes.NewReader(src)
	r, _ := zlibReaders.Get().(io.ReadCloser)
	var err error
	if r == nil {
		r, err = zlib.NewReader(in)
	} else {
		err = r.(zlib.Resetter).Reset(in, nil)
	}
	if err != nil {
		return 0, err
	}
	defer zlibReaders.Put(r)
	n, err := io.ReadFull(r, dst)
	if err != nil {
		return n, err
	}
	var one [1]byte
	if k, _ := r.Read(one[:]); k > 0 {
		n++ // longer than announced
	}
	return n, nil
}

// deflate appends the compressed form of src to dst.
func deflate(id CompressorID, dst, src []byte) ([]byte, error) {
	switch id {
	case CompressorNoop:
		return append(dst, src...), nil
	case CompressorSnappy:
		need := len(dst) + snappy.MaxEncodedLen(len(src))
		if cap(dst) < need {
			dst = append(make([]byte, 0, need), dst...)
		}
		out := snappy.Encode(dst[len(dst):need], src)
		return dst[:len(dst)+len(out)], nil
	case CompressorZlib:
		w := zlibWriters.Get().(*zlib.Writer)
		defer zlibWriters.Put(w)
		buf := bytes.NewBuffer(dst)
		w.Reset(buf)
		if _, err := w.Write(src); err != nil {
			return dst, err
		}
		err := w.Close()
		return buf.Bytes(), err
	case CompressorZstd:
		return zstdEncoder().EncodeAll(src, dst), nil
	}
	return dst, mongoerr.Newf(mongoerr.BadValue, "compressor %d is not known", id)
}

// appendCompressed appends frame (OP_MSG or OP_REPLY, header included) to dst as OP_COMPRESSED.
func appendCompressed(dst []byte, id CompressorID, frame []byte) ([]byte, error) {
	start := len(dst)
	h := ReadHeader(frame)
	dst = append(dst, make([]byte, headerLen)...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.OpCode))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(frame)-headerLen))
	dst = append(dst, byte(id))
	dst, err := deflate(id, dst, frame[headerLen:])
	if err != nil {
		return dst[:start], err
	}
	h.OpCode, h.Length = OpCompressed, int32(len(dst)-start)
	h.put(dst[start:])
	return dst, nil
}
