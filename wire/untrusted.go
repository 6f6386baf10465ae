package wire

import (
	"net"
	"time"
)

// UntrustedLimits limits what a connection may cost before the handler trusts it (Conn.Trust), as a rule before authentication.
type UntrustedLimits struct {
	// MaxMessage returns the maximum length of a message, also after decompression; nil for no limit but MaxMessageSize.
	MaxMessage func() int
	// FirstMessage is the time limit for a connection's first whole message. It begins when the connection is established, and
	// includes the TLS handshake; 0 means FirstMessageTimeout.
	FirstMessage time.Duration
}

// FirstMessageTimeout limits the time until a connection's first message. Clients send hello at once; TLS handshakes have the same limit.
const FirstMessageTimeout = handshakeTimeout

// Trust lifts the limits of untrusted connections, or restores them. The handler calls it while it handles a request.
func (c *Conn) Trust(trusted bool) { c.trusted.Store(trusted) }

// maxMessage returns the maximum length of the connection's messages, and whether that is the limit of untrusted connections.
func (c *Conn) maxMessage() (most int, untrusted bool) {
	if f := c.srv.opts.Untrusted.MaxMessage; f != nil && !c.trusted.Load() {
		return min(f(), MaxMessageSize), true
	}
	if c.member.Load() {
		return MaxInternalMessage, false
	}
	return MaxMessageSize, false
}

// nextLength reads the length of the connection's next message.
func (c *Conn) nextLength(head []byte) (int, error) {
	most, untrusted := c.maxMessage()
	if !untrusted {
		return frameLength(head, most)
	}
	n, err := frameLength(head, MaxMessageSize)
	if err == nil && n > most {
		return 0, frameErrorf("message of %d bytes before authentication, at most %d are allowed", n, most)
	}
	return n, err
}

// limitFirstMessage closes the connection unless it sends a whole message in time.
func (c *Conn) limitFirstMessage() {
	limit := c.srv.opts.Untrusted.FirstMessage
	if limit == 0 {
		limit = FirstMessageTimeout
	}
	c.firstMessage.Store(time.AfterFunc(limit, func() {
		if c.ctx.Err() != nil {
			return
		}
		c.srv.badFrame(c, frameErrorf("no whole message within %s of the connection's beginning", limit))
		c.Close()
	}))
}

// firstMessageArrived stops the timer of limitFirstMessage.
func (c *Conn) firstMessageArrived() {
	if t := c.firstMessage.Load(); t != nil {
		t.Stop()
		c.firstMessage.Store(nil)
	}
}

// Via returns the address of the load balancer that opened the connection on behalf of its client; nil for a connection that the client opened itself.
func (c *Conn) Via() net.Addr { return c.via }
