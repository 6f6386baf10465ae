package command

import (
	"slices"
	"sort"
	"strings"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// roleSpecs returns the commands on roles.
func (a *Access) roleSpecs() []Spec {
	write := func(name string, types Types, run Handler, fields ...Field) Spec {
		return Spec{Name: name, Roles: All, Kind: None, PrimaryOnly: true, WriteConcern: true, ArgTypes: types, Fields: fields, Run: a.changing(run)}
	}
	restrictions := Opt("authenticationRestrictions", TArray)
	return []Spec{
		write("createRole", TString, a.runCreateRole, Req("privileges", TArray), Req("roles", TArray), restrictions),
		write("updateRole", TString, a.runUpdateRole, Opt("privileges", TArray), Opt("roles", TArray), restrictions),
		write("dropRole", TString, a.runDropRole),
		write("dropAllRolesFromDatabase", TAny, a.runDropAllRoles),
		write("grantRolesToRole", TString, a.runGrantRolesToRole, Req("roles", TArray)),
		write("revokeRolesFromRole", TString, a.runGrantRolesToRole, Req("roles", TArray)),
		write("grantPrivilegesToRole", TString, a.runGrantPrivileges, Req("privileges", TArray)),
		write("revokePrivilegesFromRole", TString, a.runGrantPrivileges, Req("privileges", TArray)),
		{Name: "rolesInfo", Roles: All, Kind: Read, ReadConcern: true, ArgTypes: TAny, Run: a.runRolesInfo, Fields: []Field{Opt("showPrivileges", TAny),
			Opt("showBuiltinRoles", TSafeBool), Opt("showAuthenticationRestrictions", TSafeBool)}},
	}
}

func roleOfCommand(op *Op) auth.RoleName { return auth.RoleName{Role: op.Req.Cmd.Str(), DB: op.Req.DB} }

// privilegesOf reads the privileges that a command gives to a role: a role of a database can have privileges only on that database.
func privilegesOf(op *Op, db string) (out []auth.Privilege, err error) {
	for _, v := range value.Values(op.Arg("privileges").Doc()) {
		if v.T != value.Document {
			return nil, WrongType(op.Req.Spec.Name+".privileges", v.T, TObject)
		}
		p, err := auth.ParsePrivilege(v.Doc())
		if err != nil {
			return nil, err
		}
		if db != "admin" && (p.On.Cluster || p.On.Any || p.On.DB != db) {
			return nil, mongoerr.Newf(mongoerr.InvalidRoleModification, "Roles on the '%s' database cannot be granted privileges that target other databases or the cluster", db)
		}
		out = auth.Merge(out, p)
	}
	return out, nil
}

// rolesFor reads the roles that a role is to inherit: a role of a database can inherit only from roles of that database,
// and not from itself.
func (a *Access) rolesFor(op *Op, to auth.RoleName) ([]auth.RoleName, error) {
	list, err := a.existing(op, op.Arg("roles"))
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		switch {
		case r == to:
			return nil, mongoerr.Newf(mongoerr.InvalidRoleModification, "Cannot grant role %s to itself.", to)
		case to.DB != "admin" && r.DB != to.DB:
			return nil, mongoerr.Newf(mongoerr.InvalidRoleModification, "Roles on the '%s' database cannot be granted roles from other databases", to.DB)
		}
		res, err := auth.Resolve([]auth.RoleName{r}, a.roles(op))
		if err != nil {
			return nil, err
		}
		if slices.Contains(res.Roles, to) {
			return nil, mongoerr.Newf(mongoerr.InvalidRoleModification, "Granting %s to %s would introduce a cycle in the role graph.", r, to)
		}
	}
	return list, nil
}

// checkRoleName refuses names that a user-defined role cannot have.
func checkRoleName(r auth.RoleName) error {
	switch {
	case r.Role == "" || strings.ContainsRune(r.Role, 0):
		return mongoerr.New(mongoerr.BadValue, "Role name must be non-empty")
	case r.DB == "local":
		return mongoerr.New(mongoerr.BadValue, "Cannot create roles in the local database")
	case r.DB == "$external":
		return mongoerr.New(mongoerr.BadValue, "Cannot create roles in the $external database")
	case auth.IsBuiltin(r):
		return mongoerr.New(mongoerr.BadValue, "Cannot create roles with the same name as a built-in role")
	}
	return nil
}

func (a *Access) runCreateRole(op *Op, dst []byte) ([]byte, error) {
	r := &auth.Role{Name: roleOfCommand(op)}
	if err := checkRoleName(r.Name); err != nil {
		return dst, err
	}
	if err := a.fillRole(op, r); err != nil {
		return dst, err
	}
	err := a.insert(op, "system.roles", r.Doc())
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		return dst, mongoerr.Newf(51002, "Role \"%s\" already exists", r.Name)
	}
	return dst, err
}

// fillRole copies into a role the fields of the command.
func (a *Access) fillRole(op *Op, r *auth.Role) (err error) {
	if !op.Arg("privileges").IsMissing() {
		if r.Privileges, err = privilegesOf(op, r.Name.DB); err != nil {
			return err
		}
	}
	if !op.Arg("roles").IsMissing() {
		if r.Roles, err = a.rolesFor(op, r.Name); err != nil {
			return err
		}
	}
	if v := op.Arg("authenticationRestrictions"); !v.IsMissing() {
		if r.Limits, err = auth.ParseRestrictions(v); len(r.Limits) == 0 {
			r.Limits = nil
		}
	}
	return err
}

// storedRole reads the role that a command changes.
func (a *Access) storedRole(op *Op) (*auth.Role, error) {
	name := roleOfCommand(op)
	if auth.IsBuiltin(name) {
		return nil, mongoerr.Newf(mongoerr.InvalidRoleModification, "%s is a built-in role and cannot be modified", name)
	}
	r, ok, err := a.role(op, name)
	if err == nil && !ok {
		err = mongoerr.Newf(mongoerr.RoleNotFound, "Role %s not found", name)
	}
	return r, err
}

func (a *Access) runUpdateRole(op *Op, dst []byte) ([]byte, error) {
	if op.Arg("privileges").IsMissing() && op.Arg("roles").IsMissing() && op.Arg("authenticationRestrictions").IsMissing() {
		return dst, mongoerr.New(mongoerr.BadValue, "updateRole command has no fields to update")
	}
	r, err := a.storedRole(op)
	if err != nil {
		return dst, err
	}
	if err := a.fillRole(op, r); err != nil {
		return dst, err
	}
	return dst, a.replace(op, "system.roles", r.Name.ID(), r.Doc())
}

func (a *Access) runGrantRolesToRole(op *Op, dst []byte) ([]byte, error) {
	if _, err := a.listed(op); err != nil {
		return dst, err
	}
	r, err := a.storedRole(op)
	if err != nil {
		return dst, err
	}
	revoke := op.Req.Spec.Name == "revokeRolesFromRole"
	var change []auth.RoleName
	if revoke {
		change, err = a.listed(op)
	} else {
		change, err = a.rolesFor(op, r.Name)
	}
	if err != nil {
		return dst, err
	}
	r.Roles = combine(r.Roles, change, revoke)
	return dst, a.replace(op, "system.roles", r.Name.ID(), r.Doc())
}

// runGrantPrivileges implements both granting and revoking.
func (a *Access) runGrantPrivileges(op *Op, dst []byte) ([]byte, error) {
	// Without privileges nothing was authorized: the reply must not depend on whether the role exists.
	if value.Count(op.Arg("privileges").Doc()) == 0 {
		return dst, mongoerr.Newf(mongoerr.BadValue, "%s command requires a non-empty \"privileges\" array", op.Req.Spec.Name)
	}
	r, err := a.storedRole(op)
	if err != nil {
		return dst, err
	}
	list, err := privilegesOf(op, r.Name.DB)
	if err != nil {
		return dst, err
	}
	for _, p := range list {
		if op.Req.Spec.Name == "revokePrivilegesFromRole" {
			r.Privileges = auth.Without(r.Privileges, p)
		} else {
			r.Privileges = auth.Merge(r.Privileges, p)
		}
	}
	return dst, a.replace(op, "system.roles", r.Name.ID(), r.Doc())
}

func (a *Access) runDropRole(op *Op, dst []byte) ([]byte, error) {
	r, err := a.storedRole(op)
	if err != nil {
		return dst, err
	}
	return dst, a.dropRoles(op, []auth.RoleName{r.Name})
}

// dropRoles deletes roles, after revoking them from everyone who has them.
func (a *Access) dropRoles(op *Op, names []auth.RoleName) error {
	list := make([]value.Value, len(names))
	ids := make([]value.Value, len(names))
	for i, n := range names {
		list[i] = value.NewDocument(value.Doc(value.F("role", value.NewString(n.Role)), value.F("db", value.NewString(n.DB))))
		ids[i] = value.NewString(n.ID())
	}
	in := func(vals []value.Value) value.Value {
		return value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(vals...)))))
	}
	pull := value.Doc(value.F("$pull", value.NewDocument(value.Doc(value.F("roles", in(list))))))
	for _, coll := range []string{"system.users", "system.roles"} {
		err := a.update(op, coll, msg.UpdateStatement{Query: value.Doc(value.F("roles", in(list))), Change: value.NewDocument(pull), Multi: true})
		if err != nil {
			return err
		}
	}
	_, err := a.remove(op, "system.roles", value.Doc(value.F("_id", in(ids))))
	return err
}

func (a *Access) runDropAllRoles(op *Op, dst []byte) ([]byte, error) {
	docs, err := a.find(op, "system.roles", ofDB(op.Req.DB))
	if err != nil {
		return dst, err
	}
	names := make([]auth.RoleName, len(docs))
	for i, d := range docs {
		names[i] = auth.RoleName{Role: value.Lookup(d, "role").Str(), DB: op.Req.DB}
	}
	if len(names) > 0 {
		if err := a.dropRoles(op, names); err != nil {
			return dst, err
		}
	}
	return value.Append(dst, "n", value.NewInt32(int32(len(names)))), nil
}

// rolesAsked lists the existing roles that a rolesInfo asks for.
func (a *Access) rolesAsked(op *Op) (out []*auth.Role, err error) {
	if !op.Req.Cmd.T.Numeric() {
		names, err := namesOf(op, "role")
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			name := auth.RoleName{Role: n[0], DB: n[1]}
			if auth.IsBuiltin(name) {
				out = append(out, &auth.Role{Name: name})
			} else if r, ok, err := a.role(op, name); err != nil {
				return nil, err
			} else if ok {
				out = append(out, r)
			}
		}
		return out, nil
	}
	docs, err := a.find(op, "system.roles", ofDB(op.Req.DB))
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		r, err := auth.ParseRole(d)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	if op.Bool("showBuiltinRoles") {
		names := auth.BuiltinNames(op.Req.DB)
		sort.Strings(names)
		for _, n := range names {
			out = append(out, &auth.Role{Name: auth.RoleName{Role: n, DB: op.Req.DB}})
		}
	}
	return out, nil
}

func (a *Access) runRolesInfo(op *Op, dst []byte) ([]byte, error) {
	list, err := a.rolesAsked(op)
	if err != nil {
		return dst, err
	}
	if op.Req.Str("showPrivileges") == "asUserFragment" {
		return a.asUserFragment(op, list, dst)
	}
	dst, m := value.BeginKey(dst, value.Array, "roles")
	for i, r := range list {
		shown, err := a.shownRole(op, r)
		if err != nil {
			return dst, err
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(shown))
	}
	return value.End(dst, m), nil
}

// shownRole returns a role as rolesInfo shows it.
func (a *Access) shownRole(op *Op, r *auth.Role) ([]byte, error) {
	builtin := auth.IsBuiltin(r.Name)
	res, err := auth.Resolve(r.Roles, a.roles(op))
	if err != nil {
		return nil, err
	}
	own := r.Privileges
	if builtin {
		own = auth.BuiltinPrivileges(r.Name)
	}
	var f []value.Field
	if !builtin {
		f = append(f, value.F("_id", value.NewString(r.Name.ID())))
	}
	f = append(f, value.F("role", value.NewString(r.Name.Role)), value.F("db", value.NewString(r.Name.DB)))
	if op.Bool("showPrivileges") {
		f = append(f, value.F("privileges", auth.Privileges(own)))
	}
	f = append(f, value.F("roles", auth.RoleNames(r.Roles)))
	limits := op.Bool("showAuthenticationRestrictions")
	if limits {
		f = append(f, value.F("authenticationRestrictions", append(auth.Restrictions{}, r.Limits...).Value()))
	}
	f = append(f, value.F("inheritedRoles", auth.RoleNames(res.Roles)))
	if op.Bool("showPrivileges") {
		all := slices.Clone(own)
		for _, p := range res.Privileges {
			all = auth.Merge(all, p)
		}
		f = append(f, value.F("inheritedPrivileges", auth.Privileges(all)))
	}
	if limits {
		f = append(f, value.F("inheritedAuthenticationRestrictions", limitsOf(res.Limits)))
	}
	return value.Doc(append(f, value.F("isBuiltin", value.NewBool(builtin)))...), nil
}

// asUserFragment shows the combination of several roles, in the form of a user.
func (a *Access) asUserFragment(op *Op, list []*auth.Role, dst []byte) ([]byte, error) {
	var names []auth.RoleName
	for _, r := range list {
		names = append(names, r.Name)
	}
	res, err := auth.Resolve(names, a.roles(op))
	if err != nil {
		return dst, err
	}
	frag := value.Doc(value.F("roles", auth.RoleNames(names)), value.F("inheritedRoles", auth.RoleNames(res.Roles)),
		value.F("inheritedPrivileges", auth.Privileges(res.Privileges)), value.F("inheritedAuthenticationRestrictions", limitsOf(res.Limits)))
	return value.Append(dst, "userFragment", value.NewDocument(frag)), nil
}
