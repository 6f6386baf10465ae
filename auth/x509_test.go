package auth

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"slices"
	"strings"
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

// Names are written as RFC 2253 says: the last part first, with characters escaped that would be separators.
func TestSubjectNames(t *testing.T) {
	one := func(id asn1.ObjectIdentifier, v string) pkix.RelativeDistinguishedNameSET {
		return pkix.RelativeDistinguishedNameSET{{Type: id, Value: v}}
	}
	cn, o, ou, dc, mail := oid(2, 5, 4, 3), oid(2, 5, 4, 10), oid(2, 5, 4, 11), oid(0, 9, 2342, 19200300, 100, 1, 25), oid(1, 2, 840, 113549, 1, 9, 1)
	for want, seq := range map[string]pkix.RDNSequence{
		"CN=ann,OU=Cooks,O=Inn,C=NO":              {one(oid(2, 5, 4, 6), "NO"), one(o, "Inn"), one(ou, "Cooks"), one(cn, "ann")},
		`CN=Ann\, the \"first\"\+`:                {one(cn, `Ann, the "first"+`)},
		`CN=\#1\ `:                                {one(cn, "#1 ")},
		"CN=Zoë 山田":                               {one(cn, "Zoë 山田")},
		`CN=a\00b\0Ac`:                            {one(cn, "a\x00b\nc")},
		"CN=db,DC=example,DC=net":                 {one(dc, "net"), one(dc, "example"), one(cn, "db")},
		"OU=b+CN=a,O=c":                           {one(o, "c"), {{Type: cn, Value: "a"}, {Type: ou, Value: "b"}}},
		"emailAddress=a@b.example,pseudonym=none": {one(oid(2, 5, 4, 65), "none"), one(mail, "a@b.example")},
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

// The first name is what openssl x509 -subject -nameopt RFC2253 prints for certificates with these subjects. Both names are the same
// distinguished name, except for values of unknown types, which are hexadecimal in the first.
func TestSubjectNamesAreThoseOfOpenssl(t *testing.T) {
	for subject, want := range map[string]string{
		"302e310b3009060355040613024445310f300d060355040a0c064bc3bc636865310e300c06035504030c054ac3b67267": "CN=J\\C3\\B6rg,O=K\\C3\\BCche,C=DE",
		"30163114301206035504030c0be5b1b1e794b0205a6fc3ab":                                                 "CN=\\E5\\B1\\B1\\E7\\94\\B0 Zo\\C3\\AB",
		"300f310d300b060355040314044af67267":                                                               "CN=J\\C3\\B6rg",
		"300f310d300b06035504031e04004a00f6":                                                               "CN=J\\C3\\B6",
		"30133111300f06035504031c080000004a0001f600":                                                       "CN=J\\F0\\9F\\98\\80",
		"302e310b300906035504030c022361310e300c060355040a0c05206c656164310f300d060355040b0c06747261696c20": "OU=trail\\ ,O=\\ lead,CN=\\#a",
		"300c310a300806035504030c0120":                                                                     "CN=\\ ",
		"301c311a301806035504030c11612c622b6322645c653c663e673b683d69":                                     "CN=a\\,b\\+c\\\"d\\\\e\\<f\\>g\\;h=i",
		"3011310f300d06035504030c066100620a637f":                                                           "CN=a\\00b\\0Ac\\7F",
		"30223114300806035504030c01613008060355040b0c0162310a3008060355040a0c0163":                         "O=c,OU=b+CN=a",
		"30163114300806035504030c01613008060355040b0c0162":                                                 "OU=b+CN=a",
		"300e310c300a06032a03040c0378c3b6":                                                                 "1.2.3.4=#0C0378C3B6",
		"3010310e300c06032a03041305706c61696e":                                                             "1.2.3.4=#1305706C61696E",
		"3045310d300b06035504410c046e6f6e65310f300d06035504040c0659616d616461310a3008060355042a0c0154310a300806035504610c0156310b3009060355040513023132":       "serialNumber=12,organizationIdentifier=V,GN=T,SN=Yamada,pseudonym=none",
		"304831133011060b2b0601040182373c02010313024445310a3008060355040f0c01783111300f060a0992268993f22c6401010c01753112301006092a864886f70d0109011603614062": "emailAddress=a@b,UID=u,businessCategory=x,jurisdictionC=DE",
		"300b3109300706035504030c00":         "CN=",
		"300f310d300b0603550403120431322033": "CN=12 3",
		"300d310b300906035504070c022020":     "L=\\ \\ ",
		"300d310b300906035504030c022320":     "CN=\\#\\ ",
	} {
		raw, err := hex.DecodeString(subject)
		if err != nil {
			t.Fatal(err)
		}
		cert := &x509.Certificate{RawSubject: raw}
		names, err := SubjectNames(cert)
		if err != nil || names[0] != want {
			t.Errorf("%q, %v, want %q", names, err, want)
			continue
		}
		dn, err := SubjectOf(cert)
		if err != nil || names[len(names)-1] != dn.String() {
			t.Errorf("%s: the last name is not %s, %v", want, dn, err)
		}
		if again, err := ParseDN(names[0]); err != nil || !strings.Contains(want, "=#") && again.String() != dn.String() {
			t.Errorf("%s is read as %s, %v", want, again, err)
		}
	}
	for _, bad := range []string{"", "3000", "300d310b300906035504030c02ff20", "300d310b300906035504031e034a0020", "300d310b300906035504030202ff20"} {
		raw, _ := hex.DecodeString(bad)
		if names, err := SubjectNames(&x509.Certificate{RawSubject: raw}); err == nil {
			t.Errorf("%s is read as %q", bad, names)
		}
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
