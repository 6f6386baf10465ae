package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/shoaldb/shoal/console"
)

const (
	maxStatus      = 64 << 10 // the longest response that is read
	maxStatuses    = 10000    // certificates whose status is remembered
	statusLasts    = time.Hour
	silenceLasts   = time.Minute // for which a responder that did not answer is not asked again
	shortestStaple = time.Minute
)

// ocspOptions are the parameters for OCSP (RFC 6960).
type ocspOptions struct {
	Off     bool          // parameter ocspEnabled is false
	Verify  time.Duration // tlsOCSPVerifyTimeoutSecs: limits the wait for a response about a peer's certificate
	Staple  time.Duration // tlsOCSPStaplingTimeoutSecs: the same for the server's own certificate; 0 for Verify
	Refresh time.Duration // ocspStaplingRefreshPeriodSecs; 0: when half of the response's time is over
}

// set applies a startup parameter.
func (o *ocspOptions) set(p pair) {
	seconds := func(to *time.Duration) {
		if n, err := strconv.Atoi(p.Value); err == nil && n > 0 { // the table of parameters checks it
			*to = time.Duration(n) * time.Second
		}
	}
	switch p.Name {
	case "ocspEnabled":
		o.Off = p.Value == "false" || p.Value == "0"
	case "tlsOCSPVerifyTimeoutSecs":
		seconds(&o.Verify)
	case "tlsOCSPStaplingTimeoutSecs":
		seconds(&o.Staple)
	case "ocspStaplingRefreshPeriodSecs":
		seconds(&o.Refresh)
	}
}

// statuses asks the issuers of certificates whether they have revoked them, at the addresses that the certificates name. A nil one asks none.
//
// Invariant: only a signed response that is still valid revokes a certificate. An issuer that does not answer revokes none, as with drivers and
// browsers: otherwise its outage would be an outage of every cluster. Revocation lists are for those who want that.
type statuses struct {
	client http.Client
	wait   time.Duration // limits the wait for all responders of a certificate together
	mu     struct {
		sync.Mutex
		known map[string]status // by issuer and serial number
	}
}

// status is an issuer's answer about a certificate.
type status struct {
	revoked bool
	until   time.Time
}

func newStatuses(o ocspOptions) *statuses {
	if o.Off {
		return nil
	}
	s := &statuses{wait: o.Verify}
	if s.wait == 0 {
		s.wait = 5 * time.Second
	}
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return s
}

var errRevoked = errors.New("the certificate is revoked, by its issuer's OCSP responder")

// check returns an error if a certificate's issuer has revoked it. server means that it is a server's, which may have sent its issuer's response with it.
func (s *statuses) check(leaf, issuer *x509.Certificate, server bool, stapled []byte) error {
	if s == nil {
		return nil
	}
	if len(stapled) > 0 {
		r, err := readStatus(stapled, leaf, issuer)
		if err != nil {
			return fmt.Errorf("the stapled OCSP response: %w", err)
		}
		if r.Status != ocsp.Unknown {
			return ruling(r.Status == ocsp.Revoked)
		}
	} else if mustStaple(leaf) && server {
		return errors.New("the certificate requires a stapled OCSP response, and there is none")
	}
	if len(leaf.OCSPServer) == 0 {
		return nil
	}
	key := string(issuer.RawSubjectPublicKeyInfo) + leaf.SerialNumber.String()
	s.mu.Lock()
	have, ok := s.mu.known[key]
	s.mu.Unlock()
	if ok && time.Now().Before(have.until) {
		return ruling(have.revoked)
	}
	now := status{until: time.Now().Add(silenceLasts)}
	ctx, cancel := context.WithTimeout(context.Background(), s.wait)
	defer cancel()
	if r, err := s.ask(ctx, leaf, issuer); err == nil {
		now = status{revoked: r.Status == ocsp.Revoked, until: time.Now().Add(statusLasts)}
		if !r.NextUpdate.IsZero() && r.NextUpdate.Before(now.until) {
			now.until = r.NextUpdate
		}
	}
	s.mu.Lock()
	if s.mu.known == nil || len(s.mu.known) >= maxStatuses {
		s.mu.known = map[string]status{}
	}
	s.mu.known[key] = now
	s.mu.Unlock()
	return ruling(now.revoked)
}

func ruling(revoked bool) error {
	if revoked {
		return errRevoked
	}
	return nil
}

// ask asks the responders of a certificate one after the other, until one answers.
func (s *statuses) ask(ctx context.Context, leaf, issuer *x509.Certificate) (*ocsp.Response, error) {
	question, err := ocsp.CreateRequest(leaf, issuer, nil)
	if err != nil {
		return nil, err
	}
	err = errors.New("the certificate names no responder")
	for _, url := range leaf.OCSPServer {
		var r *ocsp.Response
		if r, err = s.askAt(ctx, url, question, leaf, issuer); err == nil {
			return r, nil
		}
	}
	return nil, err
}

func (s *statuses) askAt(ctx context.Context, url string, question []byte, leaf, issuer *x509.Certificate) (*ocsp.Response, error) {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return nil, errors.New("the responder's URL is not an http or https one")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(question))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/ocsp-request")
	answer, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the responder's status is %d", answer.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	return readStatus(raw, leaf, issuer)
}

// readStatus reads a response about a certificate. It has to be signed by the certificate's issuer, or with a certificate that the issuer has issued for
// this purpose: if any other one would do, the holder of a revoked certificate could sign that it is valid.
func readStatus(raw []byte, leaf, issuer *x509.Certificate) (*ocsp.Response, error) {
	r, err := ocsp.ParseResponseForCert(raw, leaf, issuer)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if by := r.Certificate; by != nil && !bytes.Equal(by.RawSubjectPublicKeyInfo, issuer.RawSubjectPublicKeyInfo) {
		_, err := by.Verify(x509.VerifyOptions{Roots: poolOf(issuer), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning}})
		if err != nil || !signsStatuses(by) {
			return nil, errors.New("its signer may not sign for the certificate's issuer")
		}
	}
	switch {
	case now.Add(5 * time.Minute).Before(r.ThisUpdate): // the clocks of two machines may differ
		return nil, errors.New("it is not valid yet")
	case !r.NextUpdate.IsZero() && now.After(r.NextUpdate):
		return nil, errors.New("it has expired")
	}
	return r, nil
}

// signsStatuses reports whether a certificate names this purpose; Verify also accepts one that names none.
func signsStatuses(c *x509.Certificate) bool {
	for _, u := range c.ExtKeyUsage {
		if u == x509.ExtKeyUsageOCSPSigning {
			return true
		}
	}
	return false
}

// mustStaple reports whether a certificate has the TLS feature status_request (RFC 7633).
func mustStaple(c *x509.Certificate) bool {
	for _, e := range c.Extensions {
		var features []int
		if !e.Id.Equal(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}) {
			continue
		}
		if _, err := asn1.Unmarshal(e.Value, &features); err != nil {
			return true
		}
		for _, f := range features {
			if f == 5 {
				return true
			}
		}
	}
	return false
}

// staple keeps up to date the issuer's response about the server's own certificate, which handshakes present as proof that it is not revoked.
func (k *keyring) staple(ctx context.Context) {
	for {
		select {
		case <-k.rotated: // the response that is fetched now is for the new certificate
		default:
		}
		again := k.restaple(ctx)
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.rotated:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// restaple fetches that response, and returns when to do so again.
func (k *keyring) restaple(ctx context.Context) (again time.Duration) {
	c, o := k.now.Load(), k.options.OCSP
	again = max(o.Refresh, silenceLasts)
	pair := c.server.Certificates[0]
	issuer := c.trust.issuer(c.own, pair.Certificate[1:])
	if len(c.own.OCSPServer) == 0 || issuer == nil {
		return statusLasts
	}
	wait := o.Staple
	if wait == 0 {
		wait = k.statuses.wait
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r, err := k.statuses.ask(within, c.own, issuer)
	if err == nil && r.Status == ocsp.Unknown {
		err = errors.New("its issuer does not know it")
	}
	switch {
	case err != nil:
		if ctx.Err() == nil {
			console.Warning(console.Network, 9990014, "OCSPStapling", "Could not get the status of the server's certificate from its issuer").Err(err).Write()
		}
		if pair.OCSPStaple != nil {
			if _, err := readStatus(pair.OCSPStaple, c.own, issuer); err == nil {
				return again // still valid
			}
		}
		pair.OCSPStaple = nil
	case r.Status == ocsp.Revoked:
		console.Warning(console.Network, 9990015, "OCSPStapling", "The server's certificate is revoked").Str("subject", subjectName(c.own)).Write()
		pair.OCSPStaple = r.Raw
	default:
		pair.OCSPStaple = r.Raw
	}
	with := *c
	with.server = c.server.Clone()
	with.server.Certificates = []tls.Certificate{pair}
	k.now.CompareAndSwap(c, &with) // otherwise rotate has replaced the certificate meanwhile
	switch {
	case o.Refresh > 0:
		return o.Refresh
	case err != nil:
		return again
	case r.NextUpdate.IsZero():
		return statusLasts
	}
	return max(time.Until(r.NextUpdate)/2, shortestStaple)
}

func poolOf(c *x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c)
	return pool
}
