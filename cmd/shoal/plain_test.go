package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// saslDaemon answers as saslauthd does.
type saslDaemon struct {
	path string
	mu   struct {
		sync.Mutex
		passwords map[string]string
		asked     []string
		answer    []byte // instead of the right one; nil for that
	}
}

func startSASLDaemon(t *testing.T, passwords map[string]string) *saslDaemon {
	t.Helper()
	d := &saslDaemon{path: filepath.Join(t.TempDir(), "mux")}
	d.mu.passwords = passwords
	l, err := net.Listen("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.serve(c)
		}
	}()
	return d
}

func (d *saslDaemon) serve(c net.Conn) {
	defer c.Close()
	var parts []string
	for range 4 {
		var n [2]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			return
		}
		text := make([]byte, binary.BigEndian.Uint16(n[:]))
		if _, err := io.ReadFull(c, text); err != nil {
			return
		}
		parts = append(parts, string(text))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.asked = append(d.mu.asked, strings.Join(parts, "|"))
	answer := "NO"
	if p, ok := d.mu.passwords[parts[0]]; ok && p == parts[1] {
		answer = "OK"
	}
	out := append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
	if d.mu.answer != nil {
		out = d.mu.answer
	}
	_, _ = c.Write(out)
}

func (d *saslDaemon) says(answer []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.answer = answer
}

// With PLAIN saslauthd checks the password, and the roles are those of the user on $external.
func TestPlain(t *testing.T) {
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			d := startSASLDaemon(t, map[string]string{"ann": "so secret", "bob": "b"})
			g := startAuditedWith(t, topology, "", pair{"authenticationMechanisms", "SCRAM-SHA-256,PLAIN"}, pair{"saslauthdPath", d.path}, pair{"saslServiceName", "inn"})
			root := g.root()
			g.must(root, "$external", "createUser", "ann", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
			g.must(root, "$external", "createUser", "cyd", "roles", bson.A{})
			login := func(user, password string) *mongo.Client { return g.connect(auth.External, user, password, auth.Plain) }
			ann := login("ann", "so secret")
			g.must(ann, "shop", "find", "c")
			g.refused(ann, "shop", "insert", "c", "documents", bson.A{bson.D{}})
			if u := field(g.must(ann, "admin", "connectionStatus", 1), "authInfo", "authenticatedUsers").(bson.A)[0]; field(u, "user") != "ann" || field(u, "db") != auth.External {
				t.Errorf("authenticated as %v", u)
			}
			g.last("authenticate", `"db":"$external","mechanism":"PLAIN","user":"ann"`)
			// A wrong password, one of a user who is not on $external, one whom the daemon does not know: the same error.
			for _, c := range [][2]string{{"ann", "wrong"}, {"bob", "b"}, {"cyd", "c"}, {"nobody", "x"}} {
				if _, code, text := run1(login(c[0], c[1]), "shop", "find", "c"); code != int(mongoerr.AuthenticationFailed) || !strings.Contains(text, "Authentication failed.") {
					t.Errorf("%v: %d %s", c, code, text)
				}
			}
			for _, answer := range [][]byte{{0, 0}, {0, 1}, {255, 255}, {0, 3, 'O', 'K', 'A'}, {0, 3, 'N', 'O', 0}, nil} {
				if d.says(append([]byte{}, answer...)); answer == nil {
					d.says([]byte{})
				}
				if _, code, _ := run1(login("ann", "so secret"), "shop", "find", "c"); code != int(mongoerr.AuthenticationFailed) {
					t.Errorf("the daemon answers %q: %d", answer, code)
				}
			}
			d.says(nil)
			g.must(login("ann", "so secret"), "shop", "find", "c")
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.mu.asked[0] != "ann|so secret|inn|" {
				t.Errorf("the daemon was asked %q", d.mu.asked[0])
			}
		})
	}
}

// PLAIN works only where it is enabled and the daemon's socket is set, on $external, with a payload of RFC 4616.
func TestPlainOnlyWhereConfigured(t *testing.T) {
	d := startSASLDaemon(t, map[string]string{"root": "p", "ann": "a"})
	for _, c := range []struct {
		mechanisms, path, db, payload string
		code                          mongoerr.Code
	}{
		{"SCRAM-SHA-256", d.path, auth.External, "\x00ann\x00a", mongoerr.MechanismUnavailable},
		{"SCRAM-SHA-256,PLAIN", "", auth.External, "\x00ann\x00a", mongoerr.MechanismUnavailable},
		{"SCRAM-SHA-256,PLAIN", d.path, "admin", "\x00root\x00p", mongoerr.ProtocolError},
		{"SCRAM-SHA-256,PLAIN", d.path, auth.External, "root\x00ann\x00a", mongoerr.AuthenticationFailed},
		{"SCRAM-SHA-256,PLAIN", d.path, auth.External, "\x00ann\x00", mongoerr.AuthenticationFailed},
		{"SCRAM-SHA-256,PLAIN", d.path, auth.External, "ann\x00a", mongoerr.AuthenticationFailed},
		{"SCRAM-SHA-256,PLAIN", d.path + "gone", auth.External, "\x00ann\x00a", mongoerr.AuthenticationFailed},
		{"SCRAM-SHA-256,PLAIN", d.path, auth.External, "\x00ann\x00a", mongoerr.OK},
		{"SCRAM-SHA-256,PLAIN", d.path, auth.External, "ann\x00ann\x00a", mongoerr.OK},
	} {
		t.Run(fmt.Sprintf("%s %q", c.mechanisms, c.payload), func(t *testing.T) {
			params := []pair{{"authenticationMechanisms", c.mechanisms}}
			if c.path != "" {
				params = append(params, pair{"saslauthdPath", c.path})
			}
			g := startAuditedWith(t, "standalone", "", params...)
			g.root()
			g.must(g.client("root", "secret", ""), "$external", "createUser", "ann", "roles", bson.A{})
			reply := g.stranger().send(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: auth.Plain}, {Key: "payload", Value: []byte(c.payload)}, {Key: "$db", Value: c.db}})
			code := mongoerr.OK
			if v, ok := reply.Lookup("code").AsInt64OK(); ok {
				code = mongoerr.Code(v)
			}
			if code != c.code {
				t.Errorf("%v, want code %d", reply, c.code)
			}
		})
	}
}
