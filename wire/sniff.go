package wire

import (
	"strconv"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ForeignError means that a client speaks another protocol; its connection is closed.
type ForeignError struct {
	Err *mongoerr.Error // as it is logged
}

func (e *ForeignError) Error() string { return e.Err.Message }

var (
	errTLS = &ForeignError{mongoerr.New(mongoerr.SSLHandshakeFailed, "SSL handshake received but server is started without SSL support")}
	// The real server's texts for these two are not documented.
	errNoProxy     = &ForeignError{mongoerr.New(mongoerr.ProtocolError, "This port is for load balancers: the connection has to begin with a PROXY protocol header")}
	errProxyHeader = &ForeignError{mongoerr.New(mongoerr.ProtocolError, "Malformed PROXY protocol header")}
	errHTTP        = &ForeignError{mongoerr.New(mongoerr.ProtocolError, "Client sent an HTTP request over a native MongoDB connection")}
)

const httpText = "It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n"

var httpReply = []byte("HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: " +
	strconv.Itoa(len(httpText)) + "\r\n\r\n" + httpText)

// sniff examines the first bytes of a connection, four or more. It returns an error if they do not begin a message;
// c.in.spoken remains false as long as more bytes are needed to decide, and for a connection that becomes encrypted.
func (c *Conn) sniff(head []byte) error {
	switch string(head[:4]) {
	case "GET ", "HEAD", "POST", "PUT ", "OPTI", "DELE", "PATC", "CONN", "PRI ": // not the length of a message
		c.out.mu.Lock()
		_, _ = writeSocket(c.fd, httpReply) // fits a new connection's buffer
		c.out.mu.Unlock()
		return errHTTP
	}
	if head[0] == tlsHandshake && head[1] == tlsMajor {
		if c.gc.InboundBuffered() < headerLen {
			return nil // a message of 790 or slightly more bytes begins like this, too
		}
		if b, err := c.gc.Peek(headerLen); err == nil && isClientHello(b) {
			if c.srv.opts.TLS == nil {
				return errTLS
			}
			c.startTLS()
			return nil
		}
	}
	if o := c.srv.opts.TLS; o != nil && o.Require() {
		if c.overTCP {
			return errPlain
		}
	}
	c.in.spoken = true
	return nil
}

const (
	tlsHandshake   = 0x16
	tlsMajor       = 3
	tlsClientHello = 1
)

// isClientHello distinguishes the TLS record that begins a connection (RFC 8446: 4 and 5.1) from the header
// of a message, whose bytes 8 to 11 are responseTo, and 12 to 15 an opcode.
func isClientHello(b []byte) bool {
	switch ReadHeader(b).OpCode {
	case OpQuery, OpMsg, OpCompressed:
		return false
	}
	return b[5] == tlsClientHello && b[9] == tlsMajor
}
