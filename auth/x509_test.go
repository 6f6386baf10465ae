package auth

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"testing"
)

func named(t *testing.T, seq pkix.RDNSequence) *x509.Certificate {
	t.Helper()
	raw, err := asn1.Marshal(seq)
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{RawSubject: raw}
}

func oid(id ...int) asn1.ObjectIdentifier { return id }

// Names are written as RFC 2253 says: the last part first, and what would be taken for a separator escaped.
func TestSubjectNames(t *testing.T) {
	one := func(id asn1.ObjectIdentifier, v string) pkix.RelativeDistinguishedNameSET {
		return pkix.RelativeDistinguishedNameSET{{Type: id, Value: v}}
	}
	cn, o, ou, dc, mail := oid(2, 5, 4, 3), oid(2, 5, 4, 10), oid(2, 5, 4, 11), oid(0, 9, 2342, 19200300, 100, 1, 25), oid(1, 2, 840, 113549, 1, 9, 1)
	for want, seq := range map[string]pkix.RDNSequence{
		"CN=ann,OU=Cooks,O=Inn,C=NO":             {one(oid(2, 5, 4, 6), "NO"), one(o, "Inn"), one(ou, "Cooks"), one(cn, "ann")},
		`CN=Ann\, the \"first\"\+`:               {one(cn, `Ann, the "first"+`)},
		`CN=\#1\ `:                               {one(cn, "#1 ")},
		"CN=Zoë 山田":                              {one(cn, "Zoë 山田")},
		`CN=a\00b\0Ac`:                           {one(cn, "a\x00b\nc")},
		"CN=db,DC=example,DC=net":                {one(dc, "net"), one(dc, "example"), one(cn, "db")},
		"OU=b+CN=a,O=c":                          {one(o, "c"), {{Type: cn, Value: "a"}, {Type: ou, Value: "b"}}},
		"emailAddress=a@b.example,2.5.4.65=none": {one(oid(2, 5, 4, 65), "none"), one(mail, "a@b.example")},
	} {
		dn, err := SubjectOf(named(t, seq))
		if err != nil || dn.String() != want {
			t.Errorf("%s, %v, want %s", dn, err, want)
			continue
		}
		again, err := ParseDN(want)
		if err != nil || again.String() != want || !slices.EqualFunc(again, dn, slices.Equal) {
			t.Errorf("%s comes back as %q, %v", want, again, err)
		}
	}
	if _, err := SubjectOf(&x509.Certificate{RawSubject: []byte{0x30, 5, 1}}); err == nil {
		t.Error("a damaged subject is read")
	}
}

func TestParseDN(t *testing.T) {
	for text, want := range map[string]string{
		" cn = a b , o=\"x, y\" ": `CN=a b,O=x\, y`, `O=\C3\A9`: "O=é", "OID.2.5.4.10=x": "O=x", "o=a;ou=b": "O=a,OU=b", "O=": "O=",
	} {
		if dn, err := ParseDN(text); err != nil || dn.String() != want {
			t.Errorf("%s: %s, %v", text, dn, err)
		}
	}
	for _, bad := range []string{"", "O", "O=a,", `O="a`, `O="a"b`, `O=a\`, `O=a"b`, "=a", "O=a,,OU=b"} {
		if dn, err := ParseDN(bad); err == nil {
			t.Errorf("%q is read as %s", bad, dn)
		}
	}
}

// Members share organization, unit and domain, all of them, and have at least one of these.
func TestMembersByName(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"CN=a,OU=db,O=Inn", "CN=b,L=Oslo,O=Inn,OU=db", true},
		{"CN=a,OU=db,O=Inn", "CN=a,OU=web,O=Inn", false},
		{"CN=a,OU=db,O=Inn", "CN=a,O=Inn", false},
		{"CN=a,O=Inn", "CN=a,OU=db,O=Inn", false},
		{"CN=a,DC=x,DC=y", "CN=b,DC=y,DC=x", true},
		{"CN=a,OU=db,OU=db,O=Inn", "CN=a,OU=db,O=Inn", false},
		{"CN=a", "CN=a", false},
		{"CN=a,O=", "CN=a,O=", false},
		{`CN=a,O=Inn\,OU=db`, "CN=a,O=Inn,OU=db", false},
	} {
		a, _ := ParseDN(tc.a)
		b, _ := ParseDN(tc.b)
		if got := a.MemberOf(b); got != tc.want {
			t.Errorf("%s and %s: %v", tc.a, tc.b, got)
		}
	}
}

func TestCertificateRoles(t *testing.T) {
	type pair struct {
		Role string `asn1:"utf8"`
		DB   string `asn1:"utf8"`
	}
	with := func(v []byte) *x509.Certificate {
		return &x509.Certificate{Extensions: []pkix.Extension{{Id: rolesExtension, Value: v}}}
	}
	raw, err := asn1.MarshalWithParams([]pair{{"backup", "admin"}, {"read", "shop"}}, "set")
	if err != nil {
		t.Fatal(err)
	}
	roles, ok, err := CertificateRoles(with(raw))
	if err != nil || !ok || len(roles) != 2 || !slices.Contains(roles, RoleName{"read", "shop"}) {
		t.Errorf("%v, %v, %v", roles, ok, err)
	}
	if _, ok, err := CertificateRoles(&x509.Certificate{}); ok || err != nil {
		t.Errorf("without the extension: %v, %v", ok, err)
	}
	for _, bad := range [][]byte{nil, raw[:len(raw)-1], append(raw, 0), {0x31, 2, 0x30, 0}} {
		if roles, _, err := CertificateRoles(with(bad)); err == nil {
			t.Errorf("%x is read as %v", bad, roles)
		}
	}
}

// A name that was parsed is formatted so that it parses to the same name.
func FuzzParseDN(f *testing.F) {
	for _, s := range []string{"CN=a,O=b", `CN=a\,b+OU="x;y"`, `O=\C3\A9 `, "1.2.3=#04024869"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		dn, err := ParseDN(s)
		if err != nil {
			return
		}
		again, err := ParseDN(dn.String())
		if err != nil || !slices.EqualFunc(again, dn, slices.Equal) {
			t.Errorf("%q is %q, which is read as %q, %v", s, dn, again, err)
		}
	})
}
