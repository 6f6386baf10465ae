package main

import (
	"crypto/tls"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// suiteNames are the names that OpenSSL gives to suites.
func suiteNames(ids []uint16) (out []string) {
	for _, s := range cipherSuites {
		if slices.Contains(ids, s.id) {
			out = append(out, s.name)
		}
	}
	return out
}

// A cipher string selects those of the suites that it selects in OpenSSL, out of the ones that this program has.
func TestCipherStringsAreThoseOfOpenssl(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("needs openssl")
	}
	for _, text := range []string{
		"HIGH:!EXPORT:!aNULL@STRENGTH", "DEFAULT", "ALL", "HIGH", "ALL:!SHA1", "HIGH:!kRSA", "ECDHE+AESGCM", "ECDHE+AESGCM:ECDHE+CHACHA20", "EECDH+AES256", "kEECDH", "kECDHE+aRSA",
		"ECDH", "ECDSA", "aECDSA", "aRSA", "RSA", "kRSA", "RSA+AES", "AES", "AES128", "AES256", "AESGCM", "CHACHA20", "SHA", "SHA1", "SHA256", "SHA384:AES128-SHA", "TLSv1", "TLSv1.0", "TLSv1.2", "SSLv3",
		"FIPS", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256", "AES128-SHA,AES256-SHA", "AES128-SHA AES256-SHA", "AES128-SHA;AES256-SHA",
		"AES:-AES128:AES128-SHA", "AES:!AES128:AES128-SHA", "AES:-AES128+SHA", "AES128-SHA:+ALL", "+AES128-SHA:AES256-SHA", "!AES128-SHA:AES128-SHA:AES256-SHA", "no-such-suite:AES128-SHA", "!no-such-suite:AES128-SHA",
		"HIGH:!no+AES", "HIGH:@SECLEVEL=1", "HIGH@SECLEVEL=2", "DHE:AES128-SHA", "CAMELLIA:AES128-SHA", "::AES128-SHA::", "ecdhe:AES128-SHA", "MEDIUM", "eNULL", "DHE", "", "!ALL", "ALL:!ALL", "no-such-suite", "-AES128-SHA",
	} {
		out, err := exec.Command(openssl, "ciphers", "-tls1_2", text).Output()
		theirs := strings.Split(strings.TrimSpace(string(out)), ":")
		var want []string
		for _, s := range cipherSuites {
			if err == nil && slices.Contains(theirs, s.name) {
				want = append(want, s.name)
			}
		}
		ids, err := parseCiphers(text)
		if got := suiteNames(ids); !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%q: %v, %v, openssl has %v", text, got, err, want)
		}
	}
	for _, text := range []string{"HIGH:@SECLEVEL=3", "HIGH:@SECLEVEL=", "HIGH:@FASTEST"} {
		if _, err := parseCiphers(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// opensslCipherConfig restricts the suites of TLS 1.2, for clients and for the connections to other members, and leaves TLS 1.3 alone.
func TestCipherSuitesAreRestricted(t *testing.T) {
	a := newAuthority(t)
	cert := a.issue("server", "", time.Now().Add(time.Hour), "127.0.0.1")
	ring := func(ciphers, disabled string) *keyring {
		o := tlsOptions{Mode: tlsRequire, KeyFile: cert, CAFile: a.path("ca.pem"), Disabled: disabled}
		if err := o.check([]pair{{Name: "opensslCipherConfig", Value: ciphers}}); err != nil {
			t.Fatal(err)
		}
		k, err := newKeyring(o)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	const old, none = "TLS1_0,TLS1_1,TLS1_3", "TLS1_0,TLS1_1"
	for _, tc := range []struct {
		server, client, disabled string
		want                     string // a part of an error
	}{
		{"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", old, ""},
		{"ECDHE-ECDSA-AES128-GCM-SHA256", "", old, ""},
		{"ECDHE-ECDSA-AES128-GCM-SHA256", "AES256", old, "no cipher suite supported"},
		{"CHACHA20", "AES", old, "no cipher suite supported"},
		{"ECDHE-ECDSA-AES128-SHA", "HIGH", old, ""},
		{"CHACHA20", "AES", none, ""}, // TLS 1.3
	} {
		got := meet(t, ring(tc.server, tc.disabled).incoming().Config(), ring(tc.client, tc.disabled).outgoing("127.0.0.1"))
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// A parameter that would restrict suites and cannot prevents the start, with one line, unless the server has no TLS to which it applies.
func TestParametersOfTLSThatCannotAct(t *testing.T) {
	a := newAuthority(t)
	cert := a.issue("server", "", time.Now().Add(time.Hour), "127.0.0.1")
	const all = "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"
	for _, tc := range []struct{ args, want string }{
		{"--setParameter opensslCipherConfig=no-such-suite", `opensslCipherConfig "no-such-suite" cannot be used: it selects no cipher suite`},
		{"--setParameter opensslCipherConfig=DHE:RC4", "selects no cipher suite"},
		{"--setParameter opensslCipherConfig=HIGH:@SECLEVEL=5", "@SECLEVEL=5 is not supported"},
		{"--setParameter opensslCipherConfig=HIGH", ""},
		{"--setParameter opensslCipherSuiteConfig=TLS_AES_256_GCM_SHA384", "cannot be restricted"},
		{"--setParameter opensslCipherSuiteConfig=" + all, ""},
		{"--setParameter opensslCipherSuiteConfig=TLS_AES_256_GCM_SHA384 --tlsDisabledProtocols TLS1_0,TLS1_1,TLS1_3", ""},
		{"--tlsLogVersions TLS1_2,TLS1_3", ""},
		{"--tlsLogVersions TLS1.2", "Unrecognized tlsLogVersions 'TLS1.2'"},
	} {
		args := append(strings.Fields(tc.args), "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", cert, "--tlsCAFile", a.path("ca.pem"))
		_, err := parse(isMongod, args)
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", tc.args, err)
		}
	}
	if _, err := parse(isMongod, strings.Fields("--setParameter opensslCipherConfig=no-such-suite --setParameter opensslCipherSuiteConfig=x")); err != nil {
		t.Errorf("a server without TLS: %v", err)
	}
}

// net.tls.logVersions logs connections of those versions, and of no others.
func TestConnectionsOfLoggedVersions(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	key := a.issue("server", "", time.Now().Add(time.Hour), "127.0.0.1")
	client := a.issue("client", "", time.Now().Add(time.Hour))
	s := loneServer(t, "mongod", "--dbpath", t.TempDir(), "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", key, "--tlsCAFile", a.path("ca.pem"),
		"--tlsLogVersions", "TLS1_2", "--setParameter", "opensslCipherConfig=ECDHE-ECDSA-AES128-GCM-SHA256")
	s.start()
	pair, err := readKeyPair(client, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", s.at(), &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw := &rawConn{t, c}
	if got := raw.ask(bson.E{Key: "ping", Value: 1}); got != "ok" {
		t.Fatal(got)
	}
	var log struct{ Log []string }
	if err := s.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "getLog", Value: "global"}}).Decode(&log); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range log.Log {
		if strings.Contains(line, `"msg":"Connection encrypted"`) {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 || !strings.Contains(lines[0], `"tlsVersion":"1.2","cipherSuite":"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"`) {
		t.Errorf("%q", lines)
	}
}

// FuzzCiphers: no cipher string makes the parser fail, and none selects a suite that is not there.
func FuzzCiphers(f *testing.F) {
	for _, s := range []string{"HIGH:!aNULL", "ECDHE+AESGCM", "-ALL:+AES@STRENGTH", "@SECLEVEL=2", "!", "+", "-:!:+"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := parseCiphers(text)
		if (err == nil) != (len(ids) > 0) {
			t.Errorf("%q: %v, %v", text, ids, err)
		}
		if again, _ := parseCiphers(text + ":!ALL"); again != nil {
			t.Errorf("%q selects %v after !ALL", text, again)
		}
	})
}
