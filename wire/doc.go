// Package wire implements MongoDB's wire protocol: it reads frames from sockets, checks them, passes each request
// to a Handler and writes the replies. It also has the client side, which members of a cluster use among
// themselves.
//
// The path of one request, by function name:
//
//	Server.acceptAll → Server.take → gnet loop: OnOpen (a new connection)
//	socket → gnet loop: OnTraffic → Conn.cut (one whole frame in a pooled buffer) → Conn.accept
//	   small OP_MSG: parseFrame → Handler.HandleInline, answered in the loop if it returns true
//	   everything else: workers.submit → Conn.serve → parseFrame → Handler.Handle
//	→ Reply.seal (header, checksum, compression) → Conn.write → socket
//
// Invariants:
//
//  1. The event loop never blocks: what runs in it is cutting frames, HandleInline and non-blocking writes.
//  2. Requests of one connection are handled one at a time and in order; Conn.serve takes the next frame only when the
//     previous reply is written. Other connections never wait for it.
//  3. A Message borrows from its frame. Frame and Message are reused once Handle returns, unless Message.Retain was called;
//     Reply.Buf is always reused.
//  4. The Body and every document of Seqs are valid BSON (Validate) before a Handler sees them.
//  5. A file descriptor is written to only under Conn.out.mu and never after OnClose has taken that lock, so that a worker
//     can write to the socket directly without ever using a descriptor that was closed and reused.
package wire
