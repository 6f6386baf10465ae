package wire

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// The PROXY protocol (haproxy: proxy-protocol.txt, versions 1 and 2): the header with which a load balancer begins a connection
// names the client.

const (
	maxProxyText   = 107     // of version 1, with its end of line
	maxProxyHeader = 4 << 10 // of version 2, with what extensions add
)

var proxySignature = []byte("\r\n\r\n\x00\r\nQUIT\n")

// parseProxy reads the header that b begins with. n is its length, 0 if it has not arrived as a whole; src is the address that the connection comes from,
// nil if the header does not say (a health check of the load balancer's own).
func parseProxy(b []byte) (src net.Addr, n int, err error) {
	switch {
	case bytes.HasPrefix(b, proxySignature):
		return parseProxyBinary(b)
	case bytes.HasPrefix(proxySignature, b):
		return nil, 0, nil
	case bytes.HasPrefix(b, []byte("PROXY")), strings.HasPrefix("PROXY", string(b)):
		return parseProxyText(b)
	}
	return nil, 0, errNoProxy
}

func parseProxyText(b []byte) (src net.Addr, n int, err error) {
	end := bytes.Index(b[:min(len(b), maxProxyText)], []byte("\r\n"))
	if end < 0 {
		if len(b) >= maxProxyText {
			return nil, 0, errProxyHeader
		}
		return nil, 0, nil
	}
	f := strings.Split(string(b[:end]), " ")
	if len(f) >= 2 && f[0] == "PROXY" && f[1] == "UNKNOWN" {
		return nil, end + 2, nil
	}
	if len(f) != 6 || f[0] != "PROXY" {
		return nil, 0, errProxyHeader
	}
	from, err1 := netip.ParseAddr(f[2])
	to, err2 := netip.ParseAddr(f[3])
	port, ok := proxyPort(f[4])
	_, ok2 := proxyPort(f[5])
	four, known := map[string]bool{"TCP4": true, "TCP6": false}[f[1]]
	if err1 != nil || err2 != nil || !ok || !ok2 || !known || from.Is4() != four || to.Is4() != four || from.Zone() != "" || to.Zone() != "" {
		return nil, 0, errProxyHeader
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, port)), end + 2, nil
}

// proxyPort reads a decimal port without leading zeros.
func proxyPort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && (s == "0" || s[0] != '0')
}

// Families of version 2, with the lengths of their addresses.
const (
	proxyTCP4 = 0x11
	proxyTCP6 = 0x21
	proxyUnix = 0x31
)

func parseProxyBinary(b []byte) (src net.Addr, n int, err error) {
	if len(b) < 16 {
		return nil, 0, nil
	}
	size := int(binary.BigEndian.Uint16(b[14:]))
	command, family := b[12]&0xf, b[13]
	if b[12]>>4 != 2 || command > 1 || 16+size > maxProxyHeader {
		return nil, 0, errProxyHeader
	}
	if len(b) < 16+size {
		return nil, 0, nil
	}
	addr := b[16 : 16+size]
	need := map[byte]int{proxyTCP4: 12, proxyTCP6: 36, proxyUnix: 216}[family]
	switch {
	case command == 0, family == 0: // the load balancer's own connection, or an unknown origin
		return nil, 16 + size, nil
	case need == 0 || size < need:
		return nil, 0, errProxyHeader
	case family == proxyTCP4:
		return &net.TCPAddr{IP: net.IP(bytes.Clone(addr[:4])), Port: int(binary.BigEndian.Uint16(addr[8:]))}, 16 + size, nil
	case family == proxyTCP6:
		return &net.TCPAddr{IP: net.IP(bytes.Clone(addr[:16])), Port: int(binary.BigEndian.Uint16(addr[32:]))}, 16 + size, nil
	}
	path, _, _ := bytes.Cut(addr[:108], []byte{0})
	return &net.UnixAddr{Name: string(path), Net: "unix"}, 16 + size, nil
}

// readProxy reads the header of a connection that a load balancer has made, and introduces the connection to the handler; false if
// the header has not arrived as a whole. It runs in the event loop.
func (c *Conn) readProxy() (done bool, err error) {
	b, err := c.gc.Peek(min(c.gc.InboundBuffered(), maxProxyHeader))
	if err != nil {
		return false, nil
	}
	src, n, err := parseProxy(b)
	if err != nil || n == 0 {
		return false, err
	}
	if _, err := c.gc.Discard(n); err != nil {
		return false, err
	}
	c.via = c.remote
	if src != nil {
		c.remote = src
	}
	c.awaitsProxy = false
	c.srv.open(c)
	return true, nil
}
