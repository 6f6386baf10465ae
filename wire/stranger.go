package wire

import (
	"net"
	"time"
)

// Strangers bounds what a connection may cost before the handler trusts it (Conn.Trust).
type Strangers struct {
	// MaxMessage returns how long a message may be, also after decompression; nil for no bound beyond MaxMessageSize.
	MaxMessage func() int
	// Patience is the time limit for a connection's first whole message, from being established on and with its TLS
	// handshake; 0 stands for DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is the time for which a connection may be silent at its beginning. Clients say hello at once; TLS handshakes have the same
// limit.
const DefaultPatience = handshakeTimeout

// Trust lifts the bounds for strangers from the connection, or puts them back. The handler calls it while it handles a request.
func (c *Conn) Trust(trusted bool) { c.trusted.Store(trusted) }

// maxMessage returns how long a message of the connection may be, and whether that is the bound for strangers.
func (c *Conn) maxMessage() (most int, stranger bool) {
	if f := c.srv.opts.Strangers.MaxMessage; f != nil && !c.trusted.Load() {
		return min(f(), MaxMessageSize), true
	}
	if c.member.Load() {
		return MaxInternalMessage, false
	}
	return MaxMessageSize, false
}

// nextLength reads the length of the connection's next message.
func (c *Conn) nextLength(head []byte) (int, error) {
	most, stranger := c.maxMessage()
	if !stranger {
		return frameLength(head, most)
	}
	n, err := frameLength(head, MaxMessageSize)
	if err == nil && n > most {
		return 0, frameErrorf("message of %d bytes before authentication, at most %d are allowed", n, most)
	}
	return n, err
}

// expectWords closes the connection unless it sends a whole message in time.
func (c *Conn) expectWords() {
	limit := c.srv.opts.Strangers.Patience
	if limit == 0 {
		limit = DefaultPatience
	}
	c.patience.Store(time.AfterFunc(limit, func() {
		if c.ctx.Err() != nil {
			return
		}
		c.srv.badFrame(c, frameErrorf("no whole message within %s of the connection's beginning", limit))
		c.Close()
	}))
}

// hasSpoken ends the waiting for the first message.
func (c *Conn) hasSpoken() {
	if t := c.patience.Load(); t != nil {
		t.Stop()
		c.patience.Store(nil)
	}
}

// Via returns the address of the load balancer that has made the connection for its client; nil for a connection of the client's own.
func (c *Conn) Via() net.Addr { return c.via }
