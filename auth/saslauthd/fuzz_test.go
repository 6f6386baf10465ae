package saslauthd

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// Whatever replies on the socket, only OK as the first word of a complete message of the stated length authenticates a user, and nothing after the
// message is read.
func FuzzVerdict(f *testing.F) {
	for _, seed := range []string{"\x00\x02OK", "\x00\x0aOK success", "\x00\x06OK\x00why", "\x00\x04OKAY", "\x00\x02NO", "\x00\x06NO\x00 OK", "\x00\x03OK", "\x00\x00OK",
		"\xff\xffOK", "\x04\x01OK", "\x00\x02OK\x00\x02NO", "OK", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		err := verdict(r)
		read := len(raw) - r.Len()
		if len(raw) < 2 {
			if err == nil || err == ErrRefused {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		size := int(binary.BigEndian.Uint16(raw))
		if read > 2+size || read > 2+maxAnswer {
			t.Fatalf("%q: %d bytes read", raw, read)
		}
		whole := size <= maxAnswer && len(raw) >= 2+size
		if whole != (err == nil || err == ErrRefused) {
			t.Fatalf("%q: %v", raw, err)
		}
		if whole {
			text := raw[2 : 2+size]
			ok := len(text) >= 2 && text[0] == 'O' && text[1] == 'K' && (len(text) == 2 || text[2] == ' ' || text[2] == 0)
			if ok != (err == nil) {
				t.Fatalf("%q: %v", raw, err)
			}
		}
	})
}
