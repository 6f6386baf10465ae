package auth

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// X509 is the mechanism that uses certificates, OIDC the one that uses identity providers' tokens, and External the database of users
// who are authenticated externally.
const (
	X509     = "MONGODB-X509"
	OIDC     = "MONGODB-OIDC"
	External = "$external"
)

// Attribute is a part of a distinguished name: Type is the short name in RFC 2253 if there is one, else the object identifier.
type Attribute struct{ Type, Value string }

// DN is a distinguished name, most significant part last, as in RFC 2253. Attributes of a multi-valued part are in one element, in the
// reverse of the certificate's order, as openssl and the real server have them.
type DN [][]Attribute

// attributeNames are the type names used in names: those of RFC 2253, and the others for which openssl has a short name.
var attributeNames = map[string]string{
	"2.5.4.3": "CN", "2.5.4.4": "SN", "2.5.4.5": "serialNumber", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "street", "2.5.4.10": "O",
	"2.5.4.11": "OU", "2.5.4.12": "title", "2.5.4.13": "description", "2.5.4.15": "businessCategory", "2.5.4.16": "postalAddress", "2.5.4.17": "postalCode",
	"2.5.4.18": "postOfficeBox", "2.5.4.19": "physicalDeliveryOfficeName", "2.5.4.20": "telephoneNumber", "2.5.4.41": "name", "2.5.4.42": "GN",
	"2.5.4.43": "initials", "2.5.4.44": "generationQualifier", "2.5.4.46": "dnQualifier", "2.5.4.51": "houseIdentifier", "2.5.4.65": "pseudonym",
	"2.5.4.72": "role", "2.5.4.97": "organizationIdentifier", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.3": "mail",
	"0.9.2342.19200300.100.1.25": "DC", "1.2.840.113549.1.9.1": "emailAddress", "1.2.840.113549.1.9.2": "unstructuredName",
	"1.2.840.113549.1.9.8": "unstructuredAddress", "1.3.6.1.4.1.311.60.2.1.1": "jurisdictionL", "1.3.6.1.4.1.311.60.2.1.2": "jurisdictionST",
	"1.3.6.1.4.1.311.60.2.1.3": "jurisdictionC",
}

// typeNames finds a type by any spelling of its name.
var typeNames = func() map[string]string {
	m := map[string]string{}
	for _, name := range attributeNames {
		m[strings.ToLower(name)] = name
	}
	return m
}()

// subjectAttribute is an attribute as a certificate has it.
type subjectAttribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

type subjectAttributeSET []subjectAttribute // encoding/asn1 knows a set by the end of its type's name

var errSubject = errors.New("the subject of the certificate cannot be read")

// subjectParts reads the attributes of a certificate's subject, most significant part last.
func subjectParts(cert *x509.Certificate) ([][]subjectAttribute, error) {
	var seq []subjectAttributeSET
	if rest, err := asn1.Unmarshal(cert.RawSubject, &seq); err != nil || len(rest) > 0 {
		return nil, errSubject
	}
	var parts [][]subjectAttribute
	for _, part := range slices.Backward(seq) {
		slices.Reverse(part)
		parts = append(parts, part)
	}
	return parts, nil
}

func (a *subjectAttribute) name() string {
	if name := attributeNames[a.Type.String()]; name != "" {
		return name
	}
	return a.Type.String()
}

// text returns a value of one of the string types.
func (a *subjectAttribute) text() (string, bool) {
	b := a.Value.Bytes
	if a.Value.Class != asn1.ClassUniversal || a.Value.IsCompound {
		return "", false
	}
	width := 1 // of a character in bytes
	switch a.Value.Tag {
	case asn1.TagUTF8String:
		return string(b), utf8.Valid(b)
	case asn1.TagPrintableString, asn1.TagIA5String, asn1.TagNumericString, tagVisibleString, asn1.TagT61String: // T61String is read as Latin-1, as openssl does
	case asn1.TagBMPString:
		width = 2
	case tagUniversalString:
		width = 4
	default:
		return "", false
	}
	if len(b)%width != 0 {
		return "", false
	}
	text := make([]rune, 0, len(b)/width)
	for c := range slices.Chunk(b, width) {
		var r uint32
		for _, octet := range c {
			r = r<<8 | uint32(octet)
		}
		if r > unicode.MaxRune || !utf8.ValidRune(rune(r)) {
			return "", false
		}
		text = append(text, rune(r))
	}
	return string(text), true
}

const (
	tagVisibleString   = 26
	tagUniversalString = 28
)

// SubjectOf reads the subject of a certificate.
func SubjectOf(cert *x509.Certificate) (DN, error) {
	parts, err := subjectParts(cert)
	if err != nil {
		return nil, err
	}
	var dn DN
	for _, part := range parts {
		var list []Attribute
		for _, a := range part {
			text, ok := a.text()
			if !ok {
				return nil, fmt.Errorf("the subject of the certificate has a %s that is not text", a.name())
			}
			list = append(list, Attribute{a.name(), text})
		}
		dn = append(dn, list)
	}
	return dn, nil
}

// SubjectNames returns the names by which a certificate's bearer may be known as a user: the subject as "openssl x509 -subject -nameopt RFC2253"
// prints it, with characters beyond ASCII escaped and values of unknown types in hexadecimal, and its form without these, which is the same for most.
func SubjectNames(cert *x509.Certificate) ([]string, error) {
	dn, err := SubjectOf(cert)
	if err != nil || len(dn) == 0 {
		return nil, errSubject
	}
	parts, err := subjectParts(cert)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, part := range parts {
		for j, a := range part {
			switch {
			case j > 0:
				b.WriteByte('+')
			case i > 0:
				b.WriteByte(',')
			}
			if attributeNames[a.Type.String()] == "" {
				fmt.Fprintf(&b, "%s=#%X", a.name(), a.Value.FullBytes)
			} else {
				b.WriteString(a.name() + "=" + escapeASCII(dn[i][j].Value))
			}
		}
	}
	names := []string{b.String()}
	if plain := dn.String(); plain != names[0] {
		names = append(names, plain)
	}
	return names, nil
}

// escapeASCII is escapeValue with each byte beyond ASCII escaped, too.
func escapeASCII(s string) string {
	var b strings.Builder
	for _, c := range []byte(escapeValue(s)) {
		if c < utf8.RuneSelf {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\%02X`, c)
		}
	}
	return b.String()
}

// String returns the name in the form of RFC 2253.
func (dn DN) String() string {
	var b strings.Builder
	for i, part := range dn {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, a := range part {
			if j > 0 {
				b.WriteByte('+')
			}
			b.WriteString(a.Type + "=" + escapeValue(a.Value))
		}
	}
	return b.String()
}

func escapeValue(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case strings.IndexByte(`,+"\<>;`, c) >= 0, c == '#' && i == 0, c == ' ' && (i == 0 || i == len(s)-1):
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\%02X`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ParseDN reads a name in the form of RFC 2253.
func ParseDN(s string) (DN, error) {
	var dn DN
	var part []Attribute
	for {
		name, rest, ok := strings.Cut(s, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, `,+"\<>;#`) {
			return nil, fmt.Errorf("no type and value of a distinguished name: %q", s)
		}
		if known := typeNames[strings.ToLower(name)]; known != "" {
			name = known
		} else if known := attributeNames[strings.TrimPrefix(strings.ToLower(name), "oid.")]; known != "" {
			name = known
		}
		text, rest, err := cutValue(rest)
		if err != nil {
			return nil, err
		}
		part = append(part, Attribute{name, text})
		if rest == "" || rest[0] != '+' {
			dn, part = append(dn, part), nil
		}
		if rest == "" {
			return dn, nil
		}
		s = rest[1:]
	}
}

// cutValue reads a value; what follows begins with the separator.
func cutValue(s string) (text, rest string, err error) {
	s = strings.TrimLeft(s, " ")
	var b strings.Builder
	quoted := strings.HasPrefix(s, `"`)
	if quoted {
		s = s[1:]
	}
	end := 0 // the end without trailing spaces that may be dropped
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			raw, _ := hex.DecodeString(s[i+1 : i+3])
			b.WriteByte(raw[0])
			i += 2
			end = b.Len()
		case c == '\\' && i+1 < len(s):
			b.WriteByte(s[i+1])
			i++
			end = b.Len()
		case c == '\\', c == '"' && !quoted:
			return "", "", errors.New("unescaped special character in a distinguished name")
		case c == '"':
			rest = strings.TrimLeft(s[i+1:], " ")
			if rest != "" && !strings.ContainsRune(",+;", rune(rest[0])) {
				return "", "", errors.New("a distinguished name continues after a quoted value")
			}
			return b.String(), rest, nil
		case !quoted && (c == ',' || c == '+' || c == ';'):
			return b.String()[:end], s[i:], nil
		default:
			b.WriteByte(c)
			if c != ' ' || quoted {
				end = b.Len()
			}
		}
	}
	if quoted {
		return "", "", errors.New("a quoted value of a distinguished name has no end")
	}
	return b.String()[:end], "", nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// MemberOf reports whether two names belong to members of the same cluster: their organizations, organizational units
// and domain components are the same, and they have at least one (manual: X.509, Member Certificate Requirements).
func (dn DN) MemberOf(other DN) bool {
	a, b := dn.belongs(), other.belongs()
	return len(a) > 0 && maps.Equal(a, b)
}

// belongs counts the attributes that identify a name's cluster: organization, organizational unit and domain component.
func (dn DN) belongs() map[Attribute]int {
	return dn.count(func(a Attribute) bool { return (a.Type == "O" || a.Type == "OU" || a.Type == "DC") && a.Value != "" })
}

// count counts the attributes for which of returns true.
func (dn DN) count(of func(a Attribute) bool) map[Attribute]int {
	m := map[Attribute]int{}
	for _, part := range dn {
		for _, a := range part {
			if of(a) {
				m[a]++
			}
		}
	}
	return m
}

// rolesExtension is the certificate extension with the bearer's roles: a set of pairs of role and database.
var rolesExtension = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34601, 2, 1, 1}

// CertificateRoles reads the roles in a certificate; named is false if it has none.
func CertificateRoles(cert *x509.Certificate) (roles []RoleName, named bool, err error) {
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(rolesExtension) {
			continue
		}
		var list []struct {
			Role string `asn1:"utf8"`
			DB   string `asn1:"utf8"`
		}
		if rest, err := asn1.UnmarshalWithParams(ext.Value, &list, "set"); err != nil || len(rest) > 0 {
			return nil, true, mongoerr.New(mongoerr.InvalidSSLConfiguration, "the roles of the certificate cannot be read")
		}
		for _, r := range list {
			if r.Role == "" || strings.ContainsRune(r.Role+r.DB, 0) {
				return nil, true, mongoerr.New(mongoerr.InvalidSSLConfiguration, "the roles of the certificate cannot be read")
			}
			roles = append(roles, RoleName{r.Role, r.DB})
		}
		return roles, true, nil
	}
	return nil, false, nil
}
