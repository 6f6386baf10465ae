package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// cipherSuite is a cipher suite of TLS 1.2 and below as OpenSSL describes it: its name, and the keywords of cipher strings that cover it
// (openssl-ciphers(1)).
type cipherSuite struct {
	id       uint16
	name     string
	keywords string
}

// Keywords that several suites share. Every suite here authenticates its server and encrypts with 128 bits or more.
const (
	anySuite         = "ALL DEFAULT HIGH "
	suitesECDHERSA   = anySuite + "ECDHE EECDH kECDHE kEECDH ECDH aRSA "
	suitesECDHEECDSA = anySuite + "ECDHE EECDH kECDHE kEECDH ECDH aECDSA ECDSA "
	suitesRSA        = anySuite + "kRSA RSA aRSA "
	suitesGCM        = "FIPS AES AESGCM TLSv1.2 "
	suitesSHA256     = "FIPS AES CBC SHA256 TLSv1.2 "
	suitesSHA1       = "FIPS AES CBC SHA SHA1 "
)

// cipherSuites are the suites that crypto/tls implements, without those of RC4 and 3DES, which distributions build OpenSSL 3 without. Those with
// finite-field Diffie-Hellman (DHE), CCM, ARIA and CAMELLIA do not exist in crypto/tls.
var cipherSuites = []cipherSuite{
	{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "ECDHE-ECDSA-AES256-GCM-SHA384", suitesECDHEECDSA + suitesGCM + "AES256"},
	{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, "ECDHE-RSA-AES256-GCM-SHA384", suitesECDHERSA + suitesGCM + "AES256"},
	{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "ECDHE-ECDSA-CHACHA20-POLY1305", suitesECDHEECDSA + "CHACHA20 TLSv1.2"},
	{tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, "ECDHE-RSA-CHACHA20-POLY1305", suitesECDHERSA + "CHACHA20 TLSv1.2"},
	{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "ECDHE-ECDSA-AES128-GCM-SHA256", suitesECDHEECDSA + suitesGCM + "AES128"},
	{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "ECDHE-RSA-AES128-GCM-SHA256", suitesECDHERSA + suitesGCM + "AES128"},
	{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, "ECDHE-ECDSA-AES128-SHA256", suitesECDHEECDSA + suitesSHA256 + "AES128"},
	{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, "ECDHE-RSA-AES128-SHA256", suitesECDHERSA + suitesSHA256 + "AES128"},
	{tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, "ECDHE-ECDSA-AES256-SHA", suitesECDHEECDSA + suitesSHA1 + "AES256 TLSv1 TLSv1.0"},
	{tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA, "ECDHE-RSA-AES256-SHA", suitesECDHERSA + suitesSHA1 + "AES256 TLSv1 TLSv1.0"},
	{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, "ECDHE-ECDSA-AES128-SHA", suitesECDHEECDSA + suitesSHA1 + "AES128 TLSv1 TLSv1.0"},
	{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, "ECDHE-RSA-AES128-SHA", suitesECDHERSA + suitesSHA1 + "AES128 TLSv1 TLSv1.0"},
	{tls.TLS_RSA_WITH_AES_256_GCM_SHA384, "AES256-GCM-SHA384", suitesRSA + suitesGCM + "AES256"},
	{tls.TLS_RSA_WITH_AES_128_GCM_SHA256, "AES128-GCM-SHA256", suitesRSA + suitesGCM + "AES128"},
	{tls.TLS_RSA_WITH_AES_128_CBC_SHA256, "AES128-SHA256", suitesRSA + suitesSHA256 + "AES128"},
	{tls.TLS_RSA_WITH_AES_256_CBC_SHA, "AES256-SHA", suitesRSA + suitesSHA1 + "AES256 SSLv3"},
	{tls.TLS_RSA_WITH_AES_128_CBC_SHA, "AES128-SHA", suitesRSA + suitesSHA1 + "AES128 SSLv3"},
}

// covers reports whether a word of a cipher string covers the suite: its name, or keywords joined by +, all of which must apply.
func (s *cipherSuite) covers(word string) bool {
	if word == s.name {
		return true
	}
	have := strings.Fields(s.keywords)
	for _, k := range strings.Split(word, "+") {
		if !slices.Contains(have, k) {
			return false
		}
	}
	return true
}

// parseCiphers returns the suites that a cipher string of OpenSSL selects, out of those that this program has. As in OpenSSL a word that covers
// nothing is ignored, !word excludes for good, -word only until a later word adds it again, and what changes nothing but the order of preference
// (+word, @STRENGTH) has no effect: crypto/tls has an order of its own, by the speed of this machine.
//
// Invariant: no suite is returned that the string does not select. Rejected: treating a string that selects nothing as no restriction; a server
// that is configured to use nothing weak must not start with every suite.
func parseCiphers(text string) ([]uint16, error) {
	var on, never [64]bool
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(":,; ", r) }) {
		word, level, hasCommand := strings.Cut(word, "@")
		if hasCommand && level != "STRENGTH" && level != "SECLEVEL=0" && level != "SECLEVEL=1" && level != "SECLEVEL=2" {
			// The suites here satisfy levels up to 2; what a higher one requires of keys is not checked by crypto/tls.
			return nil, fmt.Errorf("@%s is not supported", level)
		}
		verb := byte(0)
		if word != "" && strings.IndexByte("!-+", word[0]) >= 0 {
			verb, word = word[0], word[1:]
		}
		for i := range cipherSuites {
			switch {
			case verb == '+' || word == "" || !cipherSuites[i].covers(word):
			case verb == 0:
				on[i] = !never[i]
			default:
				on[i], never[i] = false, never[i] || verb == '!'
			}
		}
	}
	var out []uint16
	for i := range cipherSuites {
		if on[i] {
			out = append(out, cipherSuites[i].id)
		}
	}
	if out == nil {
		return nil, errors.New("it selects no cipher suite that this server has")
	}
	return out, nil
}

// suites13 are the cipher suites of TLS 1.3. crypto/tls offers all of them, always.
var suites13 = []string{"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}

// checkCiphers reads the startup parameters for cipher suites; highest is the highest version of TLS that is enabled.
func (o *tlsOptions) checkCiphers(params []pair, highest uint16) (err error) {
	for _, p := range params {
		if p.Value == "" {
			continue
		}
		switch p.Name {
		case "opensslCipherConfig":
			if o.Ciphers, err = parseCiphers(p.Value); err != nil {
				return fmt.Errorf("InvalidSSLConfiguration: the cipher string opensslCipherConfig %q cannot be used: %w", p.Value, err)
			}
		case "opensslCipherSuiteConfig":
			if highest < tls.VersionTLS13 {
				continue
			}
			if err = checkSuites13(p.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSuites13 refuses a list of suites for TLS 1.3 unless it restricts nothing: crypto/tls cannot disable any of them.
func checkSuites13(list string) error {
	named := strings.Split(list, ":")
	for _, name := range suites13 {
		if !slices.Contains(named, name) {
			return fmt.Errorf("InvalidSSLConfiguration: the cipher suites of TLS 1.3 cannot be restricted, and opensslCipherSuiteConfig %q leaves out %s: "+
				"with tlsDisabledProtocols TLS1_3, opensslCipherConfig determines the suites", list, name)
		}
	}
	return nil
}
