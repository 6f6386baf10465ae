package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/shoaldb/shoal/internal/await"
)

// responder answers for an authority, by serial number. A serial number that it does not know is good.
type responder struct {
	*httptest.Server
	a  *authority
	mu struct {
		sync.Mutex
		revoked map[int64]bool
		silent  bool
		asked   int
	}
	signer *x509.Certificate // with key; the authority's own if it is nil
	key    *ecdsa.PrivateKey
	lasts  time.Duration // how long an answer is valid
}

func newResponder(t *testing.T, a *authority) *responder {
	r := &responder{a: a, lasts: time.Hour}
	r.mu.revoked = map[int64]bool{}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *responder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	raw, _ := io.ReadAll(q.Body)
	req, err := ocsp.ParseRequest(raw)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.asked++
	if err != nil || r.mu.silent || q.Header.Get("Content-Type") != "application/ocsp-request" {
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(r.answer(req.SerialNumber))
}

// answer is a signed response; mu must be held.
func (r *responder) answer(serial *big.Int) []byte {
	now := time.Now()
	out := ocsp.Response{SerialNumber: serial, ThisUpdate: now.Add(-2 * time.Hour), NextUpdate: now.Add(r.lasts)}
	if r.mu.revoked[serial.Int64()] {
		out.Status, out.RevokedAt = ocsp.Revoked, now.Add(-time.Minute)
	}
	signer, key := r.a.cert, r.a.key
	if r.signer != nil {
		signer, key, out.Certificate = r.signer, r.key, r.signer
	}
	raw, err := ocsp.CreateResponse(r.a.cert, signer, out, key)
	if err != nil {
		panic(err)
	}
	return raw
}

// set changes the responder's answers.
func (r *responder) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// certificate issues a certificate whose status the responder has.
func (r *responder) certificate(name string, more ...pkix.Extension) (path string, serial int64) {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, OCSPServer: []string{"http://127.0.0.1:1/", r.URL}, ExtraExtensions: more}
	path = r.a.certify(name, "", c, "127.0.0.1")
	return path, c.SerialNumber.Int64()
}

// signedBy makes the responder sign with a certificate that the authority has made.
func (r *responder) signedBy(t *testing.T, usage ...x509.ExtKeyUsage) {
	path := r.a.certify("responder", "", &x509.Certificate{Subject: pkix.Name{CommonName: "responder"}, ExtKeyUsage: usage})
	pair, err := readKeyPair(path, "")
	if err != nil {
		t.Fatal(err)
	}
	r.signer, r.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
}

// A certificate that its issuer's responder reports as revoked is refused in both directions, whoever signs for the issuer; nobody else can revoke, or
// take a revocation back; if the responder does not answer, nobody is refused.
func TestRevokedByOCSP(t *testing.T) {
	for name, tc := range map[string]struct {
		set  func(r *responder, client, server int64)
		off  bool
		want string
	}{
		"good":           {func(*responder, int64, int64) {}, false, ""},
		"revoked client": {func(r *responder, client, _ int64) { r.mu.revoked[client] = true }, false, "revoked"},
		"revoked server": {func(r *responder, _, server int64) { r.mu.revoked[server] = true }, false, "revoked"},
		"OCSP is off":    {func(r *responder, client, server int64) { r.mu.revoked[client], r.mu.revoked[server] = true, true }, true, ""},
		"silence":        {func(r *responder, client, _ int64) { r.mu.revoked[client], r.mu.silent = true, true }, false, ""},
		"expired word":   {func(r *responder, client, _ int64) { r.mu.revoked[client], r.lasts = true, -time.Hour }, false, ""},
		"a responder of the issuer's": {func(r *responder, client, _ int64) {
			r.signedBy(t, x509.ExtKeyUsageOCSPSigning)
			r.mu.revoked[client] = true
		}, false, "revoked"},
		"a certificate for something else signs": {func(r *responder, client, _ int64) {
			r.signedBy(t, x509.ExtKeyUsageClientAuth)
			r.mu.revoked[client] = true
		}, false, ""},
		"a certificate for nothing in particular signs": {func(r *responder, client, _ int64) {
			r.signedBy(t)
			r.mu.revoked[client] = true
		}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAuthority(t)
			r := newResponder(t, a)
			server, serverNo := r.certificate("server")
			client, clientNo := r.certificate("client")
			r.set(func() { tc.set(r, clientNo, serverNo) })
			ring := func(key string) *keyring {
				k, err := newKeyring(tlsOptions{Mode: tlsRequire, KeyFile: key, CAFile: a.path("ca.pem"), tlsParameters: tlsParameters{OCSP: ocspOptions{Off: tc.off}}})
				if err != nil {
					t.Fatal(err)
				}
				return k
			}
			s, c := ring(server), ring(client)
			for range 2 { // the second time by what is remembered
				if got := meet(t, s.incoming().Config(), c.outgoing("127.0.0.1")); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
					t.Errorf("%q", got)
				}
			}
			r.set(func() {
				if want := map[bool]int{true: 0, false: 2}[tc.off]; tc.want == "" && r.mu.asked != want {
					t.Errorf("the responder was asked %d times", r.mu.asked)
				}
			})
		})
	}
}

// A server staples its issuer's response as long as it is valid, renews it, and fetches it again when certificates are rotated. A response that a
// peer has stapled is trusted without a request if the issuer has signed it; a certificate may require that there is one.
func TestStapledResponses(t *testing.T) {
	a := newAuthority(t)
	r := newResponder(t, a)
	feature, err := asn1.Marshal([]int{5})
	if err != nil {
		t.Fatal(err)
	}
	server, serial := r.certificate("server", pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: feature})
	ring := func(key string) *keyring {
		k, err := newKeyring(tlsOptions{Mode: tlsRequire, KeyFile: key, CAFile: a.path("ca.pem"), tlsParameters: tlsParameters{OCSP: ocspOptions{Refresh: time.Hour}}})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	s, c := ring(server), ring(a.issue("client", "", time.Now().Add(time.Hour)))
	join := func() string { return meet(t, s.incoming().Config(), c.outgoing("127.0.0.1")) }
	if got := join(); !strings.Contains(got, "requires a stapled OCSP response") {
		t.Errorf("nothing stapled: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.staple(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	stapled := func() []byte { return s.now.Load().server.Certificates[0].OCSPStaple }
	await.True(t, "a stapled response", func() bool { return stapled() != nil })
	if got := join(); got != "" {
		t.Errorf("stapled: %q", got)
	}
	asked := 0
	r.set(func() { asked = r.mu.asked })
	r.set(func() { r.mu.revoked[serial] = true })
	if got := join(); got != "" {
		t.Errorf("the issuer's response is still valid: %q", got)
	}
	r.set(func() {
		if r.mu.asked != asked {
			t.Error("the client has asked although the response was stapled")
		}
	})
	if err := s.rotate(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a new response", func() bool { return stapled() != nil })
	if got := join(); !strings.Contains(got, "revoked") {
		t.Errorf("revoked: %q", got)
	}
	pair := s.now.Load().server.Certificates[0]
	other := newResponder(t, newAuthority(t))
	other.set(func() { pair.OCSPStaple = other.answer(big.NewInt(serial)) })
	forged := s.now.Load().server.Clone()
	forged.Certificates = []tls.Certificate{pair}
	if got := meet(t, forged, c.outgoing("127.0.0.1")); !strings.Contains(got, "the stapled OCSP response") {
		t.Errorf("a stranger's response: %q", got)
	}
}

// FuzzOCSP: no response of a responder makes a node fail, and none that the issuer has not signed is trusted.
func FuzzOCSP(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x30, 3, 0x0a, 1, 0})
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2)}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if r, err := readStatus(raw, leaf, &x509.Certificate{}); err == nil {
			t.Errorf("%x is trusted: %+v", raw, r)
		}
	})
}
