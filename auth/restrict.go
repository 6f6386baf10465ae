package auth

import (
	"net/netip"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Restriction limits the addresses from which, and at which, a user may authenticate.
type Restriction struct{ clientSource, serverAddress []netip.Prefix }

// Restrictions are met if one of them is met.
type Restrictions []Restriction

// ParseRestrictions reads the field authenticationRestrictions; nil if it is missing.
func ParseRestrictions(v value.Value) (Restrictions, error) {
	if v.IsNullish() {
		return nil, nil
	}
	if v.T != value.Array {
		return nil, mongoerr.New(mongoerr.UnsupportedFormat, "'authenticationRestrictions' field must be an array")
	}
	out := Restrictions{}
	for _, e := range value.Values(v.Doc()) {
		if e.T != value.Document {
			return nil, mongoerr.New(mongoerr.UnsupportedFormat, "'authenticationRestrictions' array sub-documents must be objects")
		}
		var r Restriction
		for k, list := range value.Elements(e.Doc()) {
			at := map[string]*[]netip.Prefix{"clientSource": &r.clientSource, "serverAddress": &r.serverAddress}[k]
			if at == nil {
				return nil, mongoerr.Newf(40415, "BSON field 'authenticationRestrictions.%s' is an unknown field.", k)
			}
			if list.T != value.Array {
				return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'authenticationRestrictions.%s' is the wrong type '%s', expected type 'array'", k, list.T.Name())
			}
			if *at == nil {
				*at = []netip.Prefix{} // an empty list matches no address
			}
			for _, a := range value.Values(list.Doc()) {
				p, err := parseAddress(a)
				if err != nil {
					return nil, err
				}
				*at = append(*at, p)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func parseAddress(v value.Value) (netip.Prefix, error) {
	if v.T == value.String {
		if p, err := netip.ParsePrefix(v.Str()); err == nil {
			return p.Masked(), nil
		}
		if a, err := netip.ParseAddr(v.Str()); err == nil {
			return netip.PrefixFrom(a, a.BitLen()), nil
		}
	}
	return netip.Prefix{}, mongoerr.Newf(mongoerr.UnsupportedFormat, "Invalid IP address or CIDR string: %s", value.Show(v))
}

// Value returns the restrictions as they are stored.
func (rs Restrictions) Value() value.Value {
	var out []value.Value
	for _, r := range rs {
		var f []value.Field
		for _, list := range []struct {
			name string
			of   []netip.Prefix
		}{{"clientSource", r.clientSource}, {"serverAddress", r.serverAddress}} {
			if list.of == nil {
				continue
			}
			var texts []value.Value
			for _, p := range list.of {
				text := p.String()
				if p.IsSingleIP() {
					text = p.Addr().String()
				}
				texts = append(texts, value.NewString(text))
			}
			f = append(f, value.F(list.name, value.NewArray(value.ArrayOf(texts...))))
		}
		out = append(out, value.NewDocument(value.Doc(f...)))
	}
	return value.NewArray(value.ArrayOf(out...))
}

// Met reports whether a connection from client to server meets the restrictions; a UNIX socket, which has no
// addresses, meets none that require one.
func (rs Restrictions) Met(client, server string) bool {
	for _, r := range rs {
		if within(r.clientSource, client) && within(r.serverAddress, server) {
			return true
		}
	}
	return len(rs) == 0
}

func within(list []netip.Prefix, addr string) bool {
	if list == nil {
		return true
	}
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	a := ap.Addr().Unmap().WithZone("")
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
