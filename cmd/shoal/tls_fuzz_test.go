package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Files of certificates, keys and revocation lists of any content are read without a panic; what is read has a certificate and a key.
func FuzzCertificateFiles(f *testing.F) {
	for _, seed := range []string{"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n",
		"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00000000000000000000000000000000\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
		"-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n", "no pem"} {
		f.Add([]byte(seed), "password")
	}
	path := filepath.Join(f.TempDir(), "file.pem")
	f.Fuzz(func(t *testing.T, content []byte, password string) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if pair, err := readKeyPair(path, password); err == nil && (len(pair.Certificate) == 0 || pair.PrivateKey == nil) {
			t.Errorf("%q: %+v", content, pair)
		}
		if _, err := readAuthorities(path, false); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
		if lists, err := readRevoked(path); err == nil && len(lists) == 0 {
			t.Errorf("%q: no list", content)
		}
	})
}
