package auth

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"unicode/utf8"
)

// membershipExtension is the certificate extension that names the cluster that its bearer is a member of (manual:
// net.tls.clusterAuthX509.extensionValue).
var membershipExtension = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34601, 2, 1, 2}

// Membership identifies the certificates of a cluster's members: by attributes that their subjects contain, among others, or by
// the value of an extension, whatever their subjects are (manual: net.tls.clusterAuthX509).
type Membership struct {
	attributes map[Attribute]int // the minimum number of each; nil: the extension decides
	extension  string
}

// NewMembership returns the membership by attributes, written as a distinguished name, or by an extension's value; nil if neither is given.
func NewMembership(attributes, extension string) (*Membership, error) {
	switch {
	case attributes != "" && extension != "":
		return nil, errors.New("members are identified by attributes or by extensionValue, not by both")
	case extension != "":
		return &Membership{extension: extension}, nil
	case attributes == "":
		return nil, nil
	}
	dn, err := ParseDN(attributes)
	if err != nil {
		return nil, err
	}
	m := dn.count(func(Attribute) bool { return true })
	for a := range m {
		if a.Value == "" {
			return nil, errors.New("the attribute " + a.Type + " has no value")
		}
	}
	return &Membership{attributes: m}, nil
}

// Has reports whether a certificate is a member's; none is if m is nil.
func (m *Membership) Has(cert *x509.Certificate) bool {
	if m == nil {
		return false
	}
	if m.attributes == nil {
		name, ok := clusterOf(cert)
		return ok && name == m.extension
	}
	subject, err := SubjectOf(cert)
	return err == nil && m.Names(subject)
}

// Names reports whether a certificate is a member's because of its subject.
func (m *Membership) Names(subject DN) bool {
	if m == nil || m.attributes == nil {
		return false
	}
	has := subject.count(func(Attribute) bool { return true })
	for a, n := range m.attributes {
		if has[a] < n {
			return false
		}
	}
	return true
}

// clusterOf reads the value of the membership extension, which is one UTF8String; a certificate with two such extensions has none.
func clusterOf(cert *x509.Certificate) (name string, ok bool) {
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(membershipExtension) {
			continue
		}
		if ok {
			return "", false
		}
		if name, ok = utf8String(ext.Value); !ok {
			return "", false
		}
	}
	return name, ok
}

func utf8String(der []byte) (string, bool) {
	var v asn1.RawValue
	rest, err := asn1.Unmarshal(der, &v)
	if err != nil || len(rest) > 0 || v.Class != asn1.ClassUniversal || v.Tag != asn1.TagUTF8String || v.IsCompound || !utf8.Valid(v.Bytes) {
		return "", false
	}
	return string(v.Bytes), true
}
