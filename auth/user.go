package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// SchemaVersion is the version of the form in which users and roles are stored (parameter authSchemaVersion).
const SchemaVersion = 5

// UserName identifies a user.
type UserName struct{ User, DB string }

// String returns user@database, whose digest identifies the owner of sessions.
func (u UserName) String() string { return u.User + "@" + u.DB }

// ID returns the _id of the user's document: database.user.
func (u UserName) ID() string { return u.DB + "." + u.User }

// Digest returns the digest with which sessions and cursors identify their owner: that of user@database, as in the real server. Where the
// database's name has an @ that could be another user's, too (a on b@c, a@b on c), and the digest is a keyed one.
func (u UserName) Digest() (d [32]byte) {
	if !strings.Contains(u.DB, "@") {
		return sha256.Sum256([]byte(u.String()))
	}
	mac := hmac.New(sha256.New, []byte(u.DB))
	mac.Write([]byte(u.User))
	return [32]byte(mac.Sum(d[:0]))
}

// ID returns the _id of the role's document: database.role.
func (r RoleName) ID() string { return r.DB + "." + r.Role }

// User is a document of admin.system.users.
type User struct {
	Name        UserName
	UUID        value.Value
	Credentials map[string]Credentials
	CustomData  value.Value
	Roles       []RoleName
	Limits      Restrictions
}

// ParseUser reads a stored user.
func ParseUser(doc []byte) (*User, error) {
	u := &User{Credentials: map[string]Credentials{}}
	u.Name = UserName{value.Lookup(doc, "user").Str(), value.Lookup(doc, "db").Str()}
	u.UUID, u.CustomData = value.Lookup(doc, "userId"), value.Lookup(doc, "customData")
	for mech, c := range value.Elements(value.Lookup(doc, "credentials").Doc()) {
		if c.T != value.Document {
			continue
		}
		cred, err := parseCredentials(c.Doc())
		if err != nil {
			return nil, mongoerr.Newf(mongoerr.UnsupportedFormat, "credentials of user %s are malformed", u.Name)
		}
		u.Credentials[mech] = cred
	}
	var err error
	if u.Roles, err = ParseRoleNames(value.Lookup(doc, "roles").Doc(), u.Name.DB); err != nil {
		return nil, err
	}
	u.Limits, err = ParseRestrictions(value.Lookup(doc, "authenticationRestrictions"))
	return u, err
}

// Doc returns the user as stored.
func (u *User) Doc() []byte {
	var creds []value.Field
	for _, mech := range Mechanisms {
		if c, ok := u.Credentials[mech]; ok {
			creds = append(creds, value.F(mech, value.NewDocument(c.doc())))
		}
	}
	if _, external := u.Credentials["external"]; external || u.Name.DB == "$external" {
		creds = []value.Field{value.F("external", value.NewBool(true))}
	}
	f := []value.Field{value.F("_id", value.NewString(u.Name.ID())), value.F("userId", u.UUID), value.F("user", value.NewString(u.Name.User)),
		value.F("db", value.NewString(u.Name.DB)), value.F("credentials", value.NewDocument(value.Doc(creds...)))}
	if !u.CustomData.IsMissing() {
		f = append(f, value.F("customData", u.CustomData))
	}
	f = append(f, value.F("roles", RoleNames(u.Roles)))
	if u.Limits != nil {
		f = append(f, value.F("authenticationRestrictions", u.Limits.Value()))
	}
	return value.Doc(f...)
}

// Mechs lists the mechanisms that the user has credentials for, those of SCRAM with the weaker first.
func (u *User) Mechs() (out []string) {
	for _, m := range Mechanisms {
		if _, ok := u.Credentials[m]; ok {
			out = append(out, m)
		}
	}
	if u.Name.DB == "$external" {
		out = append(out, "external")
	}
	return out
}

// Role is a document of admin.system.roles.
type Role struct {
	Name       RoleName
	Roles      []RoleName
	Privileges []Privilege
	Limits     Restrictions
}

// ParseRole reads a stored role.
func ParseRole(doc []byte) (*Role, error) {
	r := &Role{Name: RoleName{value.Lookup(doc, "role").Str(), value.Lookup(doc, "db").Str()}}
	for _, p := range value.Values(value.Lookup(doc, "privileges").Doc()) {
		priv, err := ParsePrivilege(p.Doc())
		if err != nil {
			return nil, err
		}
		r.Privileges = Merge(r.Privileges, priv)
	}
	var err error
	if r.Roles, err = ParseRoleNames(value.Lookup(doc, "roles").Doc(), r.Name.DB); err != nil {
		return nil, err
	}
	r.Limits, err = ParseRestrictions(value.Lookup(doc, "authenticationRestrictions"))
	return r, err
}

// Doc returns the role as stored.
func (r *Role) Doc() []byte {
	f := []value.Field{value.F("_id", value.NewString(r.Name.ID())), value.F("role", value.NewString(r.Name.Role)),
		value.F("db", value.NewString(r.Name.DB)), value.F("privileges", Privileges(r.Privileges)), value.F("roles", RoleNames(r.Roles))}
	if r.Limits != nil {
		f = append(f, value.F("authenticationRestrictions", r.Limits.Value()))
	}
	return value.Doc(f...)
}

// Privileges returns a list of privileges as an array.
func Privileges(list []Privilege) value.Value {
	out := make([]value.Value, len(list))
	for i, p := range list {
		out[i] = value.NewDocument(p.Doc())
	}
	return value.NewArray(value.ArrayOf(out...))
}

// RoleNames returns a list of names as an array.
func RoleNames(list []RoleName) value.Value {
	out := make([]value.Value, len(list))
	for i, r := range list {
		out[i] = value.NewDocument(value.Doc(value.F("role", value.NewString(r.Role)), value.F("db", value.NewString(r.DB))))
	}
	return value.NewArray(value.ArrayOf(out...))
}

// ParseRoleNames reads an array of roles: names of roles of db, or documents of role and database.
func ParseRoleNames(arr []byte, db string) ([]RoleName, error) {
	var out []RoleName
	for _, v := range value.Values(arr) {
		r := RoleName{DB: db}
		switch v.T {
		case value.String:
			r.Role = v.Str()
		case value.Document:
			name, of := value.Lookup(v.Doc(), "role"), value.Lookup(v.Doc(), "db")
			if name.T != value.String || of.T != value.String {
				return nil, mongoerr.New(mongoerr.BadValue, "Role objects must have a \"role\" and a \"db\" field, both strings")
			}
			r = RoleName{name.Str(), of.Str()}
		default:
			return nil, mongoerr.New(mongoerr.BadValue, "Role names must be either strings or objects")
		}
		if r.Role == "" || strings.ContainsRune(r.Role, 0) || strings.ContainsRune(r.DB, 0) {
			return nil, mongoerr.New(mongoerr.BadValue, "Role names must be non-empty and without null characters")
		}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out, nil
}

// Roles finds a role's document; false if there is none.
type Roles func(RoleName) (*Role, bool, error)

// Resolved is the combination of a list of roles.
type Resolved struct {
	Roles      []RoleName // the roles of the list and those that they inherit
	Missing    []RoleName
	Privileges []Privilege
	Limits     []Restrictions // of each role that has some; each has to be met
}

// Resolve resolves roles with everything that they inherit. Inheritance may be circular: each role is visited once.
func Resolve(list []RoleName, find Roles) (Resolved, error) {
	var out Resolved
	seen := map[RoleName]bool{}
	for todo := slices.Clone(list); len(todo) > 0; {
		r := todo[0]
		todo = todo[1:]
		if seen[r] {
			continue
		}
		seen[r] = true
		if IsBuiltin(r) {
			out.Roles, out.Privileges = append(out.Roles, r), appendBuiltin(out.Privileges, r)
			continue
		}
		role, ok, err := find(r)
		if err != nil {
			return out, err
		}
		if !ok {
			out.Missing = append(out.Missing, r)
			continue
		}
		out.Roles = append(out.Roles, r)
		for _, p := range role.Privileges {
			out.Privileges = Merge(out.Privileges, p)
		}
		if role.Limits != nil {
			out.Limits = append(out.Limits, role.Limits)
		}
		todo = append(todo, role.Roles...)
	}
	return out, nil
}

// Identity is the user of a connection's requests, as of one generation of users and roles.
type Identity struct {
	Name       UserName
	UUID       value.Value
	Mechanism  string
	Roles      []RoleName // directly granted
	AllRoles   []RoleName // including inherited ones
	Grants     *Grants
	Limits     []Restrictions
	Owner      [32]byte // the owner of its sessions
	System     bool     // whether it is a member of the cluster
	Generation uint64
	Lent       bool      // whether its roles come from a certificate or token; there need not be a user
	Expires    time.Time // when the client has to authenticate again; zero for never
	Claims     []byte    // of its token, for the logs; nil for none
	// Withdrawn reports whether the identity provider does not stand by the token any more; nil for other identities.
	Withdrawn func() bool

	served []byte // see Served
}

// NewIdentity returns the identity of a user.
func NewIdentity(u *User, find Roles) (*Identity, error) {
	res, err := Resolve(u.Roles, find)
	if err != nil {
		return nil, err
	}
	// Users may change their own password if a role allows it, which is checked against the database resource.
	id := &Identity{Name: u.Name, UUID: u.UUID, Roles: u.Roles, AllRoles: res.Roles, Grants: Compile(res.Privileges), Limits: res.Limits, Owner: u.Name.Digest()}
	if u.Limits != nil {
		id.Limits = append(id.Limits, u.Limits)
	}
	id.System = slices.Contains(res.Roles, RoleName{"__system", "admin"})
	id.served = serve(u.Name, res.Roles)
	return id, nil
}

// Served identifies the user on whose behalf a member sends a request, in the command's element $audit: the user, and
// the roles as $$USER_ROLES shows them. It is computed once per identity, because every query needs it.
func (id *Identity) Served() []byte { return id.served }

// ServedRoles returns the roles of a Served document.
func ServedRoles(served []byte) value.Value { return value.Lookup(served, "$impersonatedRoles") }

func serve(name UserName, roles []RoleName) []byte {
	out := make([]value.Value, len(roles))
	for i, r := range roles {
		out[i] = value.NewDocument(value.Doc(value.F("_id", value.NewString(r.ID())), value.F("role", value.NewString(r.Role)), value.F("db", value.NewString(r.DB))))
	}
	user := value.Doc(value.F("user", value.NewString(name.User)), value.F("db", value.NewString(name.DB)))
	return value.Doc(value.F("$impersonatedUser", value.NewDocument(user)), value.F("$impersonatedRoles", value.NewArray(value.ArrayOf(out...))))
}

// System is the user as which members of a cluster authenticate to each other.
var System = UserName{"__system", "local"}

// NewSystem returns the identity of a member.
func NewSystem() *Identity {
	roles := []RoleName{{"__system", "admin"}}
	return &Identity{Name: System, Roles: roles, AllRoles: roles, Grants: Compile(BuiltinPrivileges(roles[0])), Owner: System.Digest(), System: true}
}

func parseCredentials(doc []byte) (c Credentials, err error) {
	n, ok := value.Lookup(doc, "iterationCount").AsInt64()
	if !ok || n < 1 {
		return c, errMalformed
	}
	c.Iterations = int(n)
	for name, at := range map[string]*[]byte{"salt": &c.Salt, "storedKey": &c.StoredKey, "serverKey": &c.ServerKey} {
		if *at, err = base64.StdEncoding.DecodeString(value.Lookup(doc, name).Str()); err != nil || len(*at) == 0 {
			return c, errMalformed
		}
	}
	return c, nil
}

var errMalformed = mongoerr.New(mongoerr.UnsupportedFormat, "malformed credentials")

func (c Credentials) doc() []byte {
	text := func(b []byte) value.Value { return value.NewString(base64.StdEncoding.EncodeToString(b)) }
	return value.Doc(value.F("iterationCount", value.NewInt32(int32(c.Iterations))), value.F("salt", text(c.Salt)),
		value.F("storedKey", text(c.StoredKey)), value.F("serverKey", text(c.ServerKey)))
}
