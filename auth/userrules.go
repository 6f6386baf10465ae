package auth

import "github.com/shoaldb/shoal/query/value"

// Commands on users and roles require actions on the databases of the users and roles that they name, which may
// differ from the database that they are sent to.

// roleDatabases reports whether an action is allowed on the database of each role that the command lists.
func (r *Request) roleDatabases(g *Grants, action string) bool {
	list, err := ParseRoleNames(r.Arg("roles").Doc(), r.DB)
	if err != nil {
		return true // the command refuses it with the appropriate error
	}
	for _, role := range list {
		if !g.Allow(Actions(action), role.DB, "") {
			return false
		}
	}
	return true
}

// privilegeDatabases is roleDatabases for privileges; those on more than one database require the action on admin.
func (r *Request) privilegeDatabases(g *Grants, action string) bool {
	for _, v := range value.Values(r.Arg("privileges").Doc()) {
		if v.T != value.Document {
			continue
		}
		res := r.lookup(v.Doc(), "resource")
		on := r.lookup(res.Doc(), "db").Str()
		if on == "" {
			on = "admin"
		}
		if !g.Allow(Actions(action), on, "") {
			return false
		}
	}
	return true
}

func (r *Request) mayRestrict(g *Grants) bool {
	return r.Arg("authenticationRestrictions").IsMissing() || g.Allow(Actions("setAuthenticationRestriction"), r.DB, "")
}

func checkCreateUser(g *Grants, r *Request) bool {
	return g.Allow(Actions("createUser"), r.DB, "") && r.roleDatabases(g, "grantRole") && r.mayRestrict(g)
}

// checkUpdateUser lets users change their own password and data with actions for that. Setting roles also requires the right to revoke roles.
func checkUpdateUser(g *Grants, r *Request) bool {
	own := UserName{r.coll(), r.DB} == r.Who.Name
	for field, act := range map[string]string{"pwd": "Password", "customData": "CustomData"} {
		if r.Arg(field).IsMissing() {
			continue
		}
		if !g.Allow(Actions("change"+act), r.DB, "") && !(own && g.Allow(Actions("changeOwn"+act), r.DB, "")) {
			return false
		}
	}
	if !r.Arg("roles").IsMissing() && !(g.AllowAll(Actions("revokeRole")) && r.roleDatabases(g, "grantRole")) {
		return false
	}
	if !r.Arg("mechanisms").IsMissing() && r.Arg("pwd").IsMissing() && !g.Allow(Actions("changePassword"), r.DB, "") {
		return false
	}
	return r.mayRestrict(g)
}

func checkDropUser(g *Grants, r *Request) bool { return g.Allow(Actions("dropUser"), r.DB, "") }

func checkGrantRoles(g *Grants, r *Request) bool { return r.roleDatabases(g, "grantRole") }

func checkRevokeRoles(g *Grants, r *Request) bool { return r.roleDatabases(g, "revokeRole") }

func checkGrantPrivileges(g *Grants, r *Request) bool { return r.privilegeDatabases(g, "grantRole") }

func checkRevokePrivileges(g *Grants, r *Request) bool { return r.privilegeDatabases(g, "revokeRole") }

func checkCreateRole(g *Grants, r *Request) bool {
	return g.Allow(Actions("createRole"), r.DB, "") && r.roleDatabases(g, "grantRole") && r.privilegeDatabases(g, "grantRole") && r.mayRestrict(g)
}

func checkUpdateRole(g *Grants, r *Request) bool {
	return g.AllowAll(Actions("revokeRole")) && r.roleDatabases(g, "grantRole") && r.privilegeDatabases(g, "grantRole") && r.mayRestrict(g)
}

// checkUsersInfo allows users to see themselves.
func checkUsersInfo(g *Grants, r *Request) bool {
	view := Actions("viewUser")
	what := r.first()
	if what.T == value.Document && !r.lookup(what.Doc(), "forAllDBs").IsMissing() {
		return g.AllowAll(view)
	}
	if what.T.Numeric() {
		return g.Allow(view, r.DB, "")
	}
	for _, name := range r.named(what, "user") {
		if own := name == [2]string{r.Who.Name.User, r.Who.Name.DB}; !own && !g.Allow(view, name[1], "") {
			return false
		}
	}
	return true
}

// checkRolesInfo allows users to see the roles that they have.
func checkRolesInfo(g *Grants, r *Request) bool {
	view := Actions("viewRole")
	what := r.first()
	if what.T.Numeric() {
		return g.Allow(view, r.DB, "")
	}
	has := map[RoleName]bool{}
	for _, role := range r.Who.AllRoles {
		has[role] = true
	}
	for _, name := range r.named(what, "role") {
		if !has[RoleName{name[0], name[1]}] && !g.Allow(view, name[1], "") {
			return false
		}
	}
	return true
}

// named lists the names in usersInfo and rolesInfo: one or several, each a string or a document with name and database.
func (r *Request) named(what value.Value, field string) (out [][2]string) {
	one := func(v value.Value) {
		switch v.T {
		case value.String:
			out = append(out, [2]string{v.Str(), r.DB})
		case value.Document:
			out = append(out, [2]string{r.lookup(v.Doc(), field).Str(), r.lookup(v.Doc(), "db").Str()})
		}
	}
	if what.T != value.Array {
		one(what)
		return out
	}
	for _, v := range value.Values(what.Doc()) {
		one(v)
	}
	return out
}

// checkMerge requires actions on all databases, or on the one that is named: the merged users and roles may belong to any.
func checkMerge(g *Grants, r *Request) bool {
	need := Actions("createUser createRole grantRole")
	if r.Arg("drop").Truthy() {
		need.AddAll(Actions("dropUser dropRole"))
	}
	if name := r.Arg("db"); name.T == value.String && name.Str() != "" {
		return g.Allow(need, name.Str(), "")
	}
	return g.AllowAll(need)
}
