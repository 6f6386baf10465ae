package wire

import (
	"bytes"
	"testing"
)

// A first message whose length has the bytes that begin a TLS handshake is a message, in whatever pieces it arrives, and
// whatever its requestID.
func TestAMessageMayBeginLikeTLS(t *testing.T) {
	s := startEcho(t, &echo{})
	for _, id := range []int32{1, 0x01<<8 | 7} {
		c := dialTest(t, s)
		const length = 0x0316
		body := bigDoc(length - msgPrefixLen)
		frame := AppendMessage(nil, &Message{OpCode: OpMsg, RequestID: id, Body: body})
		if len(frame) != length {
			t.Fatalf("%d bytes", len(frame))
		}
		for i := range frame {
			if _, err := c.Write(frame[i : i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if got := receive(t, c); !bytes.Equal(got.Body, body) || got.ResponseTo != id {
			t.Errorf("requestID %d: answered %d, %d bytes", id, got.ResponseTo, len(got.Body))
		}
	}
}
