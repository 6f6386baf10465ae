package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/youmark/pkcs8"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// tlsMode determines which connections are encrypted (manual: net.tls.mode).
type tlsMode uint8

const (
	tlsDisabled tlsMode = iota
	tlsAllow            // incoming ones may be; those to other members are not
	tlsPrefer           // incoming ones may be; those to other members are
	tlsRequire          // all are
)

var tlsModes = map[string]tlsMode{
	"disabled": tlsDisabled, "allowTLS": tlsAllow, "preferTLS": tlsPrefer, "requireTLS": tlsRequire,
	"allowSSL": tlsAllow, "preferSSL": tlsPrefer, "requireSSL": tlsRequire,
}

// tlsOptions are the settings net.tls.
type tlsOptions struct {
	Mode tlsMode
	Any  bool // whether an option other than the mode is given
	tlsParameters

	KeyFile, KeyPassword         string // certificate and key presented to clients
	ClusterFile, ClusterPassword string // those presented to other members; empty for KeyFile
	CAFile, ClusterCAFile, CRL   string
	Disabled                     string // disabled TLS versions
	MemberAttributes             string // by which members' certificates are recognised, instead of O, OU and DC
	MemberExtension              string // the same by the value of an extension
	NoClientCerts                bool   // clients may connect without a certificate
	InvalidCerts, InvalidHosts   bool   // whether they are accepted
	LogVersions                  string // TLS versions whose connections are logged

	members, override *auth.Membership // by those options, and by the parameter tlsClusterAuthX509Override; nil for neither
}

// tlsParameters are the startup parameters for TLS.
type tlsParameters struct {
	SystemCA bool // tlsUseSystemCA: the machine's own authorities are trusted
	Withhold bool // tlsWithholdClientCertificate: no certificate is shown to other members
	OCSP     ocspOptions
	Ciphers  []uint16 // opensslCipherConfig: the cipher suites of TLS 1.2 and below; nil for the runtime's choice
}

// check applies the startup parameters for TLS, and refuses inconsistent options.
func (o *tlsOptions) check(params []pair) error {
	for _, p := range params {
		on := p.Value == "true" || p.Value == "1"
		switch p.Name {
		case "tlsUseSystemCA":
			o.SystemCA = on
		case "tlsWithholdClientCertificate":
			o.Withhold = on
		}
		o.OCSP.set(p)
	}
	if err := o.recogniseMembers(params); err != nil {
		return err
	}
	switch {
	case o.Mode == tlsDisabled && o.Any:
		return errors.New("BadValue: need to enable TLS via the sslMode/tlsMode flag when using TLS configuration parameters")
	case o.Mode == tlsDisabled:
		return nil
	case o.KeyFile == "":
		return errors.New("BadValue: need tlsCertificateKeyFile or tlsCertificateSelector when TLS is enabled")
	case o.CAFile == "" && !o.SystemCA:
		return errors.New("InvalidOptions: The use of TLS without specifying a chain of trust is no longer supported. " +
			"See https://jira.mongodb.org/browse/SERVER-72839 for details.")
	}
	versions, err := o.versions()
	if err != nil {
		return err
	}
	if _, err := o.logged(); err != nil {
		return err
	}
	return o.checkCiphers(params, versions[1])
}

// versions returns the lowest and highest supported TLS version. 1.0 and 1.1 are disabled by default, as on the
// real server.
func (o *tlsOptions) versions() ([2]uint16, error) {
	off := map[uint16]bool{tls.VersionTLS10: true, tls.VersionTLS11: true}
	if o.Disabled != "" {
		clear(off)
		for _, name := range strings.Split(o.Disabled, ",") {
			v, ok := map[string]uint16{
				"TLS1_0": tls.VersionTLS10, "TLS1_1": tls.VersionTLS11, "TLS1_2": tls.VersionTLS12, "TLS1_3": tls.VersionTLS13, "none": 0, "noTLS1_0": 0, "noTLS1_1": 0,
			}[strings.TrimSpace(name)]
			if !ok {
				return [2]uint16{}, fmt.Errorf("BadValue: Unrecognized disabledProtocols '%s'", strings.TrimSpace(name))
			}
			off[v] = true
		}
	}
	var out [2]uint16
	for v := uint16(tls.VersionTLS10); v <= tls.VersionTLS13; v++ {
		switch {
		case off[v]:
		case out[0] == 0:
			out = [2]uint16{v, v}
		case out[1] != v-1:
			return out, errors.New("BadValue: disabledProtocols leaves a gap between the versions of TLS that remain enabled")
		default:
			out[1] = v
		}
	}
	if out[0] == 0 {
		return out, errors.New("BadValue: disabledProtocols leaves no version of TLS")
	}
	return out, nil
}

// logged returns the versions of TLS whose connections are logged (net.tls.logVersions).
func (o *tlsOptions) logged() (map[uint16]bool, error) {
	on := map[uint16]bool{}
	for _, name := range strings.FieldsFunc(o.LogVersions, func(r rune) bool { return r == ',' || r == ' ' }) {
		v, ok := map[string]uint16{"TLS1_0": tls.VersionTLS10, "TLS1_1": tls.VersionTLS11, "TLS1_2": tls.VersionTLS12, "TLS1_3": tls.VersionTLS13}[name]
		if !ok {
			return nil, fmt.Errorf("BadValue: Unrecognized tlsLogVersions '%s'", name)
		}
		on[v] = true
	}
	return on, nil
}

// certificates has the contents of the certificate files.
type certificates struct {
	server, client *tls.Config       // of incoming and outgoing connections
	trust          trust             // of outgoing ones
	clients        trust             // of incoming ones
	shown          auth.DN           // of leaf
	leaf           *x509.Certificate // the one presented to other members
	own            *x509.Certificate
	authority      bool // a CA file is given
}

// keyring holds the certificates in use; rotate replaces them while connections continue.
type keyring struct {
	options tlsOptions
	mode    atomic.Int32 // a tlsMode: parameter tlsMode changes it
	near    atomic.Int64 // number of days before a certificate's expiry from which warnings are logged; 0: none are
	now     atomic.Pointer[certificates]
	// override is a name that members may have in addition to that of this process (parameter tlsX509ClusterAuthDNOverride).
	override atomic.Pointer[auth.DN]
	statuses *statuses
	rotated  chan struct{} // receives a value after the certificates have been replaced
}

func newKeyring(o tlsOptions) (*keyring, error) {
	k := &keyring{options: o, statuses: newStatuses(o.OCSP), rotated: make(chan struct{}, 1)}
	k.mode.Store(int32(o.Mode))
	k.override.Store(&auth.DN{})
	return k, k.rotate()
}

// rotate reads the files again (command rotateCertificates); open connections are not affected. If one file cannot be
// read, all certificates remain in use as they were.
func (k *keyring) rotate() error {
	c, err := k.options.load(k.statuses)
	if err == nil && (k.options.members != nil || k.options.override != nil) && !k.member(c, c.leaf) {
		err = errors.New("the certificate that is presented to other members has neither the attributes nor the extension by which members are recognised")
	}
	if err != nil {
		return mongoerr.New(mongoerr.InvalidSSLConfiguration, err.Error())
	}
	verify := c.server.VerifyConnection
	c.server.VerifyConnection = func(state tls.ConnectionState) error { return k.warnOfPeer(state, verify(state)) }
	k.now.Store(c)
	select {
	case k.rotated <- struct{}{}:
	default:
	}
	return nil
}

// incoming returns the TLS configuration of the server's sockets.
func (k *keyring) incoming() *wire.TLS {
	logged, _ := k.options.logged() // checked when the options were read
	t := &wire.TLS{
		Config:  func() *tls.Config { return k.now.Load().server },
		Require: func() bool { return tlsMode(k.mode.Load()) == tlsRequire },
	}
	if len(logged) > 0 {
		t.Accepted = func(c *wire.Conn, state tls.ConnectionState) {
			if logged[state.Version] {
				console.Info(console.Network, 9990013, console.ConnCtx(c.ID()), "Connection encrypted").Str("remote", c.RemoteAddr().String()).
					Str("tlsVersion", strings.TrimPrefix(tls.VersionName(state.Version), "TLS ")).Str("cipherSuite", tls.CipherSuiteName(state.CipherSuite)).Write()
			}
		}
	}
	return t
}

// outgoing returns the configuration of a connection to host; nil for a plain one.
func (k *keyring) outgoing(host string) *tls.Config {
	if tlsMode(k.mode.Load()) < tlsPrefer {
		return nil
	}
	now := k.now.Load()
	c := now.client.Clone()
	c.ServerName = host
	// Verified with host, because the state's server name is empty if host is an address.
	c.VerifyConnection = func(state tls.ConnectionState) error { return k.warnOfPeer(state, now.trust.server(state, host)) }
	return c
}

// Verified implements command.Certificates. A certificate that is accepted only because invalid ones are allowed proves nothing.
func (k *keyring) Verified(state *tls.ConnectionState) (*x509.Certificate, error) {
	if len(state.PeerCertificates) == 0 {
		return nil, errors.New("the client has presented no certificate")
	}
	strict := k.now.Load().clients
	strict.lax = false
	return state.PeerCertificates[0], strict.client(*state)
}

// Member implements command.Certificates.
func (k *keyring) Member(cert *x509.Certificate) bool { return k.member(k.now.Load(), cert) }

func (k *keyring) member(now *certificates, cert *x509.Certificate) bool {
	if k.options.members.Has(cert) || k.options.override.Has(cert) {
		return true
	}
	subject, err := auth.SubjectOf(cert)
	return err == nil && k.sameUnit(now, subject)
}

// Named implements command.Certificates.
func (k *keyring) Named(subject auth.DN) bool {
	return k.options.members.Names(subject) || k.options.override.Names(subject) || k.sameUnit(k.now.Load(), subject)
}

// sameUnit reports whether a subject has the same O, OU and DC as this process's own, or as its override. This rule applies if the options set
// no other.
func (k *keyring) sameUnit(now *certificates, subject auth.DN) bool {
	return k.options.members == nil && (subject.MemberOf(now.shown) || subject.MemberOf(*k.override.Load()))
}

// load reads all files.
func (o *tlsOptions) load(s *statuses) (*certificates, error) {
	versions, err := o.versions()
	if err != nil {
		return nil, err
	}
	own, err := readKeyPair(o.KeyFile, o.KeyPassword)
	if err != nil {
		return nil, err
	}
	shown := own
	if o.ClusterFile != "" {
		if shown, err = readKeyPair(o.ClusterFile, o.ClusterPassword); err != nil {
			return nil, err
		}
	}
	trust := trust{lax: o.InvalidCerts, anyName: o.InvalidHosts, statuses: s}
	if trust.roots, err = readAuthorities(o.CAFile, o.SystemCA); err != nil {
		return nil, err
	}
	clients := trust
	if o.ClusterCAFile != "" {
		if clients.roots, err = readAuthorities(o.ClusterCAFile, false); err != nil {
			return nil, err
		}
	}
	if trust.revoked, err = readRevoked(o.CRL); err != nil {
		return nil, err
	}
	clients.revoked = trust.revoked
	base := tls.Config{MinVersion: versions[0], MaxVersion: versions[1], CipherSuites: o.Ciphers, DynamicRecordSizingDisabled: true}
	server, client := base.Clone(), base.Clone()
	server.Certificates = []tls.Certificate{own}
	server.ClientAuth = o.clientAuth()
	server.ClientCAs = clients.roots
	server.VerifyConnection = clients.client
	if !o.Withhold {
		client.Certificates = []tls.Certificate{shown}
	}
	client.InsecureSkipVerify = true // trust.server verifies instead (outgoing), since it supports allowInvalidHostnames
	subject, err := auth.SubjectOf(shown.Leaf)
	if err != nil {
		return nil, err
	}
	return &certificates{
		server: server, client: client, trust: trust, clients: clients, shown: subject, leaf: shown.Leaf, own: own.Leaf, authority: o.CAFile != "",
	}, nil
}

func (o *tlsOptions) clientAuth() tls.ClientAuthType {
	switch {
	case o.CAFile == "":
		return tls.NoClientCert
	case o.NoClientCerts || o.InvalidCerts:
		return tls.RequestClientCert // if there is one, trust.client verifies it
	}
	return tls.RequireAnyClientCert
}

// readKeyPair reads a PEM file with a certificate, those of its issuers, and its key, which may be encrypted.
func readKeyPair(path, password string) (tls.Certificate, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot read PEM key file: %w", err)
	}
	var certs, key []byte
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case block.Type == "CERTIFICATE":
			certs = append(certs, pem.EncodeToMemory(block)...)
		case strings.HasSuffix(block.Type, "PRIVATE KEY") && key == nil:
			if key, err = decryptKey(block, password); err != nil {
				return tls.Certificate{}, fmt.Errorf("cannot read PEM key file: %s: %w", path, err)
			}
		}
	}
	if certs == nil || key == nil {
		return tls.Certificate{}, fmt.Errorf("cannot read PEM key file: %s holds no %s", path, map[bool]string{true: "certificate", false: "private key"}[certs == nil])
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot read PEM key file: %s: %w", path, err)
	}
	return pair, nil
}

// decryptKey returns a key as plain PEM.
func decryptKey(block *pem.Block, password string) ([]byte, error) {
	switch {
	case block.Type == "ENCRYPTED PRIVATE KEY":
		key, err := pkcs8.ParsePKCS8PrivateKey(block.Bytes, []byte(password))
		if err != nil {
			return nil, errors.New("the private key is encrypted, and the password does not decrypt it")
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
	case block.Headers["DEK-Info"] != "":
		//lint:ignore SA1019 the form that openssl wrote for years; such files have to remain usable
		der, err := x509.DecryptPEMBlock(block, []byte(password))
		if err != nil {
			return nil, errors.New("the private key is encrypted, and the password does not decrypt it")
		}
		return pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}), nil
	}
	return pem.EncodeToMemory(block), nil
}

// readAuthorities reads the certificates that are trusted to sign others.
func readAuthorities(path string, system bool) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if system {
		var err error
		if pool, err = x509.SystemCertPool(); err != nil {
			return nil, fmt.Errorf("the system's certificate authorities: %w", err)
		}
	}
	if path == "" {
		return pool, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read certificate authority file: %w", err)
	}
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("cannot read certificate authority file: %s holds no certificate", path)
	}
	return pool, nil
}

// readRevoked reads lists of revoked certificates.
func readRevoked(path string) ([]*x509.RevocationList, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read certificate revocation list: %w", err)
	}
	var lists []*x509.RevocationList
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		l, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read certificate revocation list %s: %w", path, err)
		}
		lists = append(lists, l)
	}
	if lists == nil {
		return nil, fmt.Errorf("cannot read certificate revocation list: %s holds none", path)
	}
	return lists, nil
}

// trust determines which certificates are trusted.
type trust struct {
	roots   *x509.CertPool
	revoked []*x509.RevocationList // nil: not checked; otherwise each certificate's issuer must have one
	lax     bool                   // allowInvalidCertificates
	anyName bool                   // allowInvalidHostnames

	statuses *statuses // asked whether issuers have revoked certificates
}

// client verifies the certificate of a client, if it has presented one.
func (t trust) client(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 || t.lax {
		return nil // crypto/tls checks whether one is required
	}
	return t.chain(state.PeerCertificates, x509.ExtKeyUsageClientAuth, nil)
}

// server verifies the certificate of a server that this process has dialled as host.
func (t trust) server(state tls.ConnectionState, host string) error {
	if t.lax {
		return nil
	}
	if err := t.chain(state.PeerCertificates, x509.ExtKeyUsageServerAuth, state.OCSPResponse); err != nil || t.anyName {
		return err
	}
	return verifyName(state.PeerCertificates[0], host)
}

// verifyName verifies the host name; a certificate without alternative names is identified by its common name, as on the real server.
func verifyName(leaf *x509.Certificate, name string) error {
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 && strings.EqualFold(leaf.Subject.CommonName, name) {
		return nil
	}
	return leaf.VerifyHostname(name)
}

// chain verifies that a certificate chains to one of the roots, and that none in the chain is revoked: all by the lists, and the first one also by its
// issuer's OCSP responder.
func (t trust) chain(certs []*x509.Certificate, usage x509.ExtKeyUsage, stapled []byte) error {
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	chains, err := certs[0].Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return err
	}
	for _, c := range chains {
		if err = t.checkRevoked(c); err != nil {
			continue
		}
		if len(c) > 1 {
			err = t.statuses.check(c[0], c[1], usage == x509.ExtKeyUsageServerAuth, stapled)
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// issuer finds the issuer of the server's own certificate among the certificates in its file and the trusted ones; nil if it is not there.
func (t trust) issuer(own *x509.Certificate, file [][]byte) *x509.Certificate {
	between := x509.NewCertPool()
	for _, der := range file {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	chains, err := own.Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil || len(chains[0]) < 2 {
		return nil
	}
	return chains[0][1]
}

func (t trust) checkRevoked(chain []*x509.Certificate) error {
	if t.revoked == nil {
		return nil
	}
	for i, c := range chain[:len(chain)-1] {
		issuer, known := chain[i+1], false
		for _, l := range t.revoked {
			if !bytes.Equal(l.RawIssuer, issuer.RawSubject) || l.CheckSignatureFrom(issuer) != nil {
				continue
			}
			if !l.NextUpdate.IsZero() && time.Now().After(l.NextUpdate) {
				return errors.New("the certificate revocation list has expired")
			}
			known = true
			for _, e := range l.RevokedCertificateEntries {
				if e.SerialNumber.Cmp(c.SerialNumber) == 0 {
					return errors.New("the certificate is revoked")
				}
			}
		}
		if !known {
			return errors.New("there is no revocation list of the certificate's issuer")
		}
	}
	return nil
}

// day is the unit of tlsX509ExpirationWarningThresholdDays.
const day = 24 * time.Hour

// warnOfPeer warns of a peer whose certificate is accepted and expires soon. It returns err, the error of the verification.
func (k *keyring) warnOfPeer(state tls.ConnectionState, err error) error {
	if err != nil || len(state.PeerCertificates) == 0 {
		return err
	}
	c := state.PeerCertificates[0]
	if left := time.Until(c.NotAfter); left < time.Duration(k.near.Load())*day {
		console.Warning(console.Network, 9990012, "-", "Peer certificate expires soon").Str("peerSubjectName", subjectName(c)).Int("days", int64(left/day)).Write()
	}
	return nil
}

// warn warns at startup about a certificate that expires soon, or that names no host.
func (k *keyring) warn(ctx string) {
	c := k.now.Load().own
	if len(c.DNSNames)+len(c.IPAddresses) == 0 {
		console.Warning(console.Network, 551190, ctx, "Server certificate has no compatible Subject Alternative Name. This may prevent TLS clients from connecting").
			StartupWarning().Write()
	}
	left := time.Until(c.NotAfter)
	switch {
	case left < 0:
		console.Warning(console.Network, 23785, ctx, "Server certificate has expired").Str("subject", subjectName(c)).StartupWarning().Write()
	case left < time.Duration(k.near.Load())*day:
		console.Warning(console.Network, 23784, ctx, "Server certificate expires soon").Str("subject", subjectName(c)).
			Str("notAfter", c.NotAfter.UTC().Format(time.RFC3339)).StartupWarning().Write()
	}
}

// subjectName returns a certificate's subject in the form of a user name.
func subjectName(cert *x509.Certificate) string {
	if names, err := auth.SubjectNames(cert); err == nil {
		return names[0]
	}
	return cert.Subject.String()
}

// fields returns the fields of serverStatus.security.
func (k *keyring) fields() []value.Field {
	c := k.now.Load()
	return []value.Field{
		value.F("SSLServerSubjectName", value.NewString(subjectName(c.own))),
		value.F("SSLServerHasCertificateAuthority", value.NewBool(c.authority)),
		value.F("SSLServerCertificateExpirationDate", value.NewTime(c.own.NotAfter)),
	}
}

// encrypt reads the certificates that the options name, and connects the parameters tlsMode and sslMode to the mode.
func (a *assembly) encrypt() (err error) {
	o := a.c.TLS
	if o.Mode == tlsDisabled {
		return nil
	}
	if a.keyring, err = newKeyring(o); err != nil {
		return err
	}
	a.members.Certificates = a.keyring
	rename := func(v value.Value) {
		dn, _ := auth.ParseDN(v.Str()) // checked when the parameter was set
		a.keyring.override.Store(&dn)
	}
	rename(a.params.Get("tlsX509ClusterAuthDNOverride").Value())
	a.params.OnChange("tlsX509ClusterAuthDNOverride", rename)
	a.info.RotateCertificates = a.keyring.rotate
	days := a.params.Int("tlsX509ExpirationWarningThresholdDays")
	a.keyring.near.Store(days)
	a.keyring.warn(a.c.Program.logCtx())
	if a.keyring.statuses != nil {
		a.background(a.keyring.staple)
	}
	for _, p := range [][2]string{{"tlsMode", "TLS"}, {"sslMode", "SSL"}} {
		name := [...]string{tlsAllow: "allow", tlsPrefer: "prefer", tlsRequire: "require"}[o.Mode] + p[1]
		a.params.Store(p[0], value.NewString(name))
		a.params.OnChange(p[0], func(v value.Value) { a.keyring.mode.Store(int32(tlsModes[v.Str()])) })
	}
	return nil
}

// incoming returns the TLS configuration of sockets; nil without TLS.
func (a *assembly) incoming() *wire.TLS {
	if a.keyring == nil {
		return nil
	}
	return a.keyring.incoming()
}
