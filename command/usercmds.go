package command

import (
	"context"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// userSpecs returns the commands on users. A router's rows have the same fields and relay the command to the
// config server.
func (a *Access) userSpecs() []Spec {
	write := func(name string, types Types, run Handler, fields ...Field) Spec {
		return Spec{Name: name, Roles: All, Kind: None, PrimaryOnly: true, WriteConcern: true, ArgTypes: types, Fields: fields, Run: a.changing(run)}
	}
	roles, restrictions := Opt("roles", TArray), Opt("authenticationRestrictions", TArray)
	generation := Internal(func(_ *Op, _ *msg.UserCacheGeneration, dst []byte) ([]byte, error) {
		return msg.AppendFields(dst, &msg.UserCacheGenerationReply{Epoch: a.epoch, Generation: int64(a.generation.Load())}), nil
	})
	generation.Roles = All
	return []Spec{
		write("createUser", TString, a.runCreateUser, Opt("pwd", TString), Opt("customData", TObject), Req("roles", TArray), Opt("digestPassword", TBool),
			restrictions, Opt("mechanisms", TArray)),
		write("updateUser", TString, a.runUpdateUser, Opt("pwd", TString), Opt("customData", TObject), roles, Opt("digestPassword", TBool), restrictions,
			Opt("mechanisms", TArray)),
		write("dropUser", TString, a.runDropUser),
		write("dropAllUsersFromDatabase", TAny, a.runDropAllUsers),
		write("grantRolesToUser", TString, a.runGrantRolesToUser, Req("roles", TArray)),
		write("revokeRolesFromUser", TString, a.runGrantRolesToUser, Req("roles", TArray)),
		{Name: "_mergeAuthzCollections", Roles: All, AdminOnly: true, PrimaryOnly: true, WriteConcern: true, ArgTypes: TAny, Run: a.changing(a.runMerge),
			Fields: []Field{Opt("tempUsersCollection", TString), Opt("tempRolesCollection", TString), Req("db", TString), Req("drop", TBool)}},
		{Name: "usersInfo", Roles: All, Kind: Read, ReadConcern: true, ArgTypes: TAny, Run: a.runUsersInfo, Fields: []Field{Opt("showPrivileges", TSafeBool),
			Opt("showCredentials", TSafeBool), Opt("showCustomData", TSafeBool), Opt("showAuthenticationRestrictions", TSafeBool), Opt("filter", TObject)}},
		{Name: "invalidateUserCache", Roles: All, AdminOnly: true, Run: func(op *Op, dst []byte) ([]byte, error) {
			a.Refresh(op)
			return dst, nil
		}},
		generation,
	}
}

// changing wraps a command that changes users or roles: they run one at a time, since each reads before it writes, and
// cached identities are dropped when it returns.
func (a *Access) changing(run Handler) Handler {
	return func(op *Op, dst []byte) ([]byte, error) {
		a.writing.Lock()
		defer a.writing.Unlock()
		defer a.Refresh(context.WithoutCancel(op))
		// Another client may have created the first user since the localhost exception admitted this request, here or on any
		// router.
		if op.anonymous() && !a.unclaimed(op) {
			return dst, errUnauthenticated(op)
		}
		return run(op, dst)
	}
}

// anonymous reports whether a request that requires a user comes from a client without one: the localhost exception has admitted it, on this
// node or on the router that relays it.
func (op *Op) anonymous() bool {
	from := op.origin()
	switch sent := from.auditedFor(); {
	case from.Client.InProcess:
		return false
	case sent != nil:
		return value.Lookup(sent, "$anonymous").Truthy()
	}
	return from.Service.enforces() && from.Client.login.Load() == nil
}

// write writes users or roles, with the write concern of the client's command.
func (a *Access) write(op *Op, m msg.Message) error {
	wc := value.Doc(value.F("w", value.NewString("majority")), value.F("wtimeout", value.NewInt32(30000)))
	if op.Req.WriteConcern != nil {
		wc = op.Req.WriteConcern.Doc
	}
	_, err := cluster.RunWrite(op, a.Users, msg.Doc(m, value.F("writeConcern", value.NewDocument(wc))))
	return err
}

// update is write for one statement on a collection.
func (a *Access) update(op *Op, coll string, st msg.UpdateStatement) error {
	return a.write(op, &msg.Update{Coll: coll, Updates: []msg.UpdateStatement{st}})
}

// insert stores new users or roles. It also stores their schema version where mongodump and mongorestore look for it.
func (a *Access) insert(op *Op, coll string, docs ...[]byte) error {
	if !a.noted.Load() {
		set := value.Doc(value.F("$set", value.NewDocument(value.Doc(value.F("currentVersion", value.NewInt32(auth.SchemaVersion))))))
		err := a.update(op, "system.version", msg.UpdateStatement{Query: byID("authSchema"), Change: value.NewDocument(set), Upsert: true})
		if err != nil {
			return err
		}
		a.noted.Store(true)
	}
	vals := make([]value.Value, len(docs))
	for i, d := range docs {
		vals[i] = value.NewDocument(d)
	}
	return a.write(op, &msg.Insert{Coll: coll, Documents: value.ArrayOf(vals...)})
}

func byID(id string) []byte { return value.Doc(value.F("_id", value.NewString(id))) }

// replace replaces the document with the same _id.
func (a *Access) replace(op *Op, coll, id string, doc []byte) error {
	return a.update(op, coll, msg.UpdateStatement{Query: byID(id), Change: value.NewDocument(doc)})
}

// remove deletes the documents that match a filter and returns their number.
func (a *Access) remove(op *Op, coll string, filter []byte) (int, error) {
	docs, err := a.find(op, coll, filter)
	if err != nil || len(docs) == 0 {
		return 0, err
	}
	return len(docs), a.write(op, &msg.Delete{Coll: coll, Deletes: []msg.DeleteStatement{{Query: filter}}})
}

// userOf returns the user that a command names, in the database that it is sent to.
func userOf(op *Op) auth.UserName { return auth.UserName{User: op.Req.Cmd.Str(), DB: op.Req.DB} }

// mechanisms reads a user's mechanisms from a command, or returns all enabled ones if it names none.
func (a *Access) mechanisms(op *Op) (list []string, err error) {
	v := op.Arg("mechanisms")
	if v.IsMissing() {
		for _, m := range auth.Mechanisms {
			if a.enabled(m) && !(m == auth.SHA256 && !op.BoolOr("digestPassword", true)) {
				list = append(list, m)
			}
		}
		return list, nil
	}
	for _, e := range value.Values(v.Doc()) {
		if e.T != value.String {
			return nil, WrongType(op.Req.Spec.Name+".mechanisms", e.T, TString)
		}
		if !a.enabled(e.Str()) {
			return nil, mongoerr.Newf(mongoerr.BadValue, "Unknown auth mechanism '%s'", e.Str())
		}
		if e.Str() == auth.SHA256 && !op.BoolOr("digestPassword", true) {
			return nil, mongoerr.New(mongoerr.BadValue, "Use of SCRAM-SHA-256 requires undigested passwords")
		}
		list = append(list, e.Str())
	}
	if list == nil {
		return nil, mongoerr.New(mongoerr.BadValue, "mechanisms field must not be empty")
	}
	return list, nil
}

// newCredentials makes credentials from the password in a command.
func (a *Access) newCredentials(op *Op, name auth.UserName) (map[string]auth.Credentials, error) {
	mechs, err := a.mechanisms(op)
	if err != nil {
		return nil, err
	}
	pwd := op.Arg("pwd")
	switch {
	case name.DB == "$external" && !pwd.IsMissing():
		return nil, mongoerr.New(mongoerr.BadValue, "Cannot set the password for users defined on the '$external' database")
	case name.DB == "$external":
		return nil, nil
	case pwd.IsMissing():
		return nil, mongoerr.New(mongoerr.BadValue, "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db")
	case pwd.Str() == "":
		return nil, mongoerr.New(50687, "Password cannot be empty")
	}
	out := map[string]auth.Credentials{}
	for _, m := range mechs {
		text := pwd.Str()
		if m == auth.SHA1 && op.BoolOr("digestPassword", true) {
			text = auth.PasswordDigest(name.User, text)
		}
		if out[m], err = auth.NewCredentials(m, text, a.iterations(m)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// existing reads the roles that a command lists, all of which must exist.
func (a *Access) existing(op *Op, list value.Value) ([]auth.RoleName, error) {
	names, err := auth.ParseRoleNames(list.Doc(), op.Req.DB)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, n := range names {
		if auth.IsBuiltin(n) {
			continue
		}
		if _, ok, err := a.role(op, n); err != nil {
			return nil, err
		} else if !ok {
			missing = append(missing, n.String())
		}
	}
	switch len(missing) {
	case 0:
		return names, nil
	case 1:
		return nil, mongoerr.Newf(mongoerr.RoleNotFound, "Could not find role: %s", missing[0])
	}
	return nil, mongoerr.Newf(mongoerr.RoleNotFound, "Could not find roles: [ %s ]", strings.Join(missing, ", "))
}

func (a *Access) runCreateUser(op *Op, dst []byte) ([]byte, error) {
	name := userOf(op)
	switch {
	case name.User == "":
		return dst, mongoerr.New(mongoerr.BadValue, "Username cannot be empty")
	case strings.ContainsRune(name.User, 0):
		return dst, mongoerr.New(mongoerr.BadValue, "Username cannot contain NULL characters")
	case name.DB == "local":
		return dst, mongoerr.New(mongoerr.BadValue, "Cannot create users in the local database")
	case a.Members.named(name) && a.separated():
		return dst, mongoerr.New(mongoerr.BadValue, "Cannot create an x.509 user with a subjectname that would be recognized as an internal cluster member")
	}
	u := &auth.User{Name: name, CustomData: op.Arg("customData")}
	id := cluster.NewUUID()
	u.UUID = value.NewBinary(4, id[:])
	var err error
	if u.Credentials, err = a.newCredentials(op, name); err != nil {
		return dst, err
	}
	if u.Roles, err = a.existing(op, op.Arg("roles")); err != nil {
		return dst, err
	}
	if u.Limits, err = auth.ParseRestrictions(op.Arg("authenticationRestrictions")); err != nil {
		return dst, err
	}
	err = a.insert(op, "system.users", u.Doc())
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		return dst, mongoerr.Newf(51003, "User \"%s\" already exists", name)
	}
	return dst, err
}

func (a *Access) runUpdateUser(op *Op, dst []byte) ([]byte, error) {
	name := userOf(op)
	changes := false
	for _, f := range []string{"pwd", "customData", "roles", "authenticationRestrictions", "mechanisms"} {
		changes = changes || !op.Arg(f).IsMissing()
	}
	if !changes {
		return dst, mongoerr.New(mongoerr.BadValue, "Must specify at least one field to update in updateUser")
	}
	u, err := a.storedUser(op, name)
	if err != nil {
		return dst, err
	}
	if err := a.newPassword(op, u); err != nil {
		return dst, err
	}
	if v := op.Arg("customData"); !v.IsMissing() {
		u.CustomData = v
	}
	if v := op.Arg("roles"); !v.IsMissing() {
		if u.Roles, err = a.existing(op, v); err != nil {
			return dst, err
		}
	}
	if v := op.Arg("authenticationRestrictions"); !v.IsMissing() {
		if u.Limits, err = auth.ParseRestrictions(v); err != nil {
			return dst, err
		}
		if len(u.Limits) == 0 {
			u.Limits = nil
		}
	}
	return dst, a.replace(op, "system.users", name.ID(), u.Doc())
}

// newPassword changes a user's credentials as updateUser requests: to those of a new password, or to fewer mechanisms.
func (a *Access) newPassword(op *Op, u *auth.User) error {
	switch {
	case !op.Arg("pwd").IsMissing():
		creds, err := a.newCredentials(op, u.Name)
		if err != nil {
			return err
		}
		u.Credentials = creds
	case !op.Arg("mechanisms").IsMissing():
		mechs, err := a.mechanisms(op)
		if err != nil {
			return err
		}
		for _, m := range mechs {
			if _, ok := u.Credentials[m]; !ok {
				return mongoerr.New(mongoerr.BadValue, "mechanisms field must be a subset of previously set mechanisms")
			}
		}
		for m := range u.Credentials {
			if !slices.Contains(mechs, m) {
				delete(u.Credentials, m)
			}
		}
	}
	return nil
}

// storedUser reads the user that a command changes.
func (a *Access) storedUser(op *Op, name auth.UserName) (*auth.User, error) {
	u, err := a.user(op, name)
	if err == errNoUser {
		return nil, mongoerr.Newf(mongoerr.UserNotFound, "Could not find user \"%s\" for db \"%s\"", name.User, name.DB)
	}
	return u, err
}

func (a *Access) runDropUser(op *Op, dst []byte) ([]byte, error) {
	name := userOf(op)
	n, err := a.remove(op, "system.users", value.Doc(value.F("_id", value.NewString(name.ID()))))
	if err == nil && n == 0 {
		err = mongoerr.Newf(mongoerr.UserNotFound, "User '%s' not found", name)
	}
	return dst, err
}

func ofDB(db string) []byte { return value.Doc(value.F("db", value.NewString(db))) }

func (a *Access) runDropAllUsers(op *Op, dst []byte) ([]byte, error) {
	n, err := a.remove(op, "system.users", ofDB(op.Req.DB))
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "n", value.NewInt32(int32(n))), nil
}

// runGrantRolesToUser implements both granting and revoking.
func (a *Access) runGrantRolesToUser(op *Op, dst []byte) ([]byte, error) {
	roles, err := a.listed(op)
	if err != nil {
		return dst, err
	}
	u, err := a.storedUser(op, userOf(op))
	if err != nil {
		return dst, err
	}
	u.Roles = combine(u.Roles, roles, op.Req.Spec.Name == "revokeRolesFromUser")
	return dst, a.replace(op, "system.users", u.Name.ID(), u.Doc())
}

// listed reads the roles that a command grants or revokes: at least one, and all must exist.
func (a *Access) listed(op *Op) ([]auth.RoleName, error) {
	roles, err := a.existing(op, op.Arg("roles"))
	if err == nil && len(roles) == 0 {
		err = mongoerr.Newf(mongoerr.BadValue, "%s command requires a non-empty \"roles\" array", op.Req.Spec.Name)
	}
	return roles, err
}

// combine adds roles to a list, or removes them.
func combine(have, change []auth.RoleName, remove bool) []auth.RoleName {
	if remove {
		return slices.DeleteFunc(slices.Clone(have), func(r auth.RoleName) bool { return slices.Contains(change, r) })
	}
	for _, r := range change {
		if !slices.Contains(have, r) {
			have = append(have, r)
		}
	}
	return have
}

// namesOf reads the value of usersInfo or rolesInfo: names, each a string or a document with name and database.
func namesOf(op *Op, field string) (names [][2]string, err error) {
	one := func(v value.Value) error {
		switch v.T {
		case value.String:
			names = append(names, [2]string{v.Str(), op.Req.DB})
			return nil
		case value.Document:
			name, db := value.Lookup(v.Doc(), field), value.Lookup(v.Doc(), "db")
			if name.T == value.String && db.T == value.String {
				names = append(names, [2]string{name.Str(), db.Str()})
				return nil
			}
		}
		return mongoerr.Newf(mongoerr.BadValue, "%s takes names, or documents with the fields '%s' and 'db'", op.Req.Spec.Name, field)
	}
	if op.Req.Cmd.T != value.Array {
		return names, one(op.Req.Cmd)
	}
	for _, v := range value.Values(op.Req.Cmd.Doc()) {
		if err := one(v); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// usersAsked finds the users that a usersInfo asks for.
func (a *Access) usersAsked(op *Op) ([][]byte, error) {
	cmd := op.Req.Cmd
	switch {
	case cmd.T == value.Document && !value.Lookup(cmd.Doc(), "forAllDBs").IsMissing():
		return a.find(op, "system.users", value.Doc())
	case cmd.T.Numeric():
		return a.find(op, "system.users", ofDB(op.Req.DB))
	}
	names, err := namesOf(op, "user")
	if err != nil {
		return nil, err
	}
	ids := make([]value.Value, len(names))
	for i, n := range names {
		ids[i] = value.NewString(auth.UserName{User: n[0], DB: n[1]}.ID())
	}
	in := value.Doc(value.F("$in", value.NewArray(value.ArrayOf(ids...))))
	return a.find(op, "system.users", value.Doc(value.F("_id", value.NewDocument(in))))
}

func (a *Access) runUsersInfo(op *Op, dst []byte) ([]byte, error) {
	show := op.Bool("showPrivileges") || op.Bool("showAuthenticationRestrictions")
	if v := op.Req.Cmd; show && (v.T.Numeric() || v.T == value.Document && !value.Lookup(v.Doc(), "forAllDBs").IsMissing()) {
		return dst, mongoerr.New(mongoerr.IllegalOperation,
			"Privilege or restriction details require exact-match usersInfo queries")
	}
	docs, err := a.usersAsked(op)
	if err != nil {
		return dst, err
	}
	if docs, err = a.filtered(op, docs); err != nil {
		return dst, err
	}
	dst, m := value.BeginKey(dst, value.Array, "users")
	for i, doc := range docs {
		u, err := auth.ParseUser(doc)
		if err != nil {
			return dst, err
		}
		shown, err := a.shownUser(op, u, value.Lookup(doc, "credentials"))
		if err != nil {
			return dst, err
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(shown))
	}
	return value.End(dst, m), nil
}

// filtered returns the documents that the command's filter matches, in the query language.
func (a *Access) filtered(op *Op, docs [][]byte) ([][]byte, error) {
	filter := op.Arg("filter")
	if filter.T != value.Document || len(docs) == 0 {
		return docs, nil
	}
	ids := make([]value.Value, len(docs))
	for i, d := range docs {
		ids[i] = value.Lookup(d, "_id")
	}
	in := value.NewDocument(value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(ids...))))))))
	both := value.Doc(value.F("$and", value.NewArray(value.ArrayOf(in, filter))))
	return a.find(op, "system.users", both)
}

// shownUser returns a user as usersInfo shows it.
func (a *Access) shownUser(op *Op, u *auth.User, creds value.Value) ([]byte, error) {
	f := []value.Field{value.F("_id", value.NewString(u.Name.ID())), value.F("userId", u.UUID), value.F("user", value.NewString(u.Name.User)),
		value.F("db", value.NewString(u.Name.DB))}
	if op.Bool("showCredentials") {
		f = append(f, value.F("credentials", creds))
	}
	if op.BoolOr("showCustomData", true) && !u.CustomData.IsMissing() {
		f = append(f, value.F("customData", u.CustomData))
	}
	f = append(f, value.F("roles", auth.RoleNames(u.Roles)))
	if op.Bool("showPrivileges") || op.Bool("showAuthenticationRestrictions") {
		res, err := auth.Resolve(u.Roles, a.roles(op))
		if err != nil {
			return nil, err
		}
		all := auth.Restrictions{}
		if u.Limits != nil {
			all = u.Limits
		}
		f = append(f, value.F("authenticationRestrictions", all.Value()), value.F("inheritedRoles", auth.RoleNames(res.Roles)))
		if op.Bool("showPrivileges") {
			f = append(f, value.F("inheritedPrivileges", auth.Privileges(res.Privileges)))
		}
		f = append(f, value.F("inheritedAuthenticationRestrictions", limitsOf(res.Limits)))
	}
	f = append(f, value.F("mechanisms", stringArray(u.Mechs())))
	return value.Doc(f...), nil
}

func limitsOf(list []auth.Restrictions) value.Value {
	out := make([]value.Value, len(list))
	for i, l := range list {
		out[i] = l.Value()
	}
	return value.NewArray(value.ArrayOf(out...))
}

// connectionStatus reports the client's identity.
func (a *Access) connectionStatus(op *Op, dst []byte) ([]byte, error) {
	id, err := a.current(op, op.Client)
	if err != nil {
		return dst, err
	}
	var users, roles, privileges value.Value = value.NewArray(value.ArrayOf()), value.NewArray(value.ArrayOf()), value.NewArray(value.ArrayOf())
	if id != nil {
		user := value.Doc(value.F("user", value.NewString(id.Name.User)), value.F("db", value.NewString(id.Name.DB)))
		users, roles = value.NewArray(value.ArrayOf(value.NewDocument(user))), auth.RoleNames(id.AllRoles)
		privileges = auth.Privileges(id.Grants.Privileges())
	}
	fields := []value.Field{value.F("authenticatedUsers", users), value.F("authenticatedUserRoles", roles)}
	if op.Bool("showPrivileges") {
		fields = append(fields, value.F("authenticatedUserPrivileges", privileges))
	}
	dst = value.Append(dst, "authInfo", value.NewDocument(value.Doc(fields...)))
	uuid := op.Client.UUID()
	return value.Append(dst, "uuid", value.NewBinary(4, uuid[:])), nil
}
