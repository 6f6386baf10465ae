package auth

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Commands on users and roles require actions on the databases of the users and roles that they name, which may
// differ from the database that they are sent to.

// roleDatabases reports whether an action is allowed on the database of each role that the command lists.
func (r *Request) roleDatabases(g *Grants, action string) bool {
	list, err := ParseRoleNames(r.Arg("roles").Doc(), r.DB)
	if err != nil {
		return r.wrong(err)
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
			return r.wrongType("privileges", v, "object")
		}
		p, err := ParsePrivilege(v.Doc())
		if err != nil {
			return r.wrong(err)
		}
		on := p.On.DB
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

// checkUpdateUser checks updateUser. The actions changeOwnPassword and changeOwnCustomData suffice for one's own password and data; setting
// roles also requires the right to revoke roles.
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
	names, ok := r.named(what, "user")
	for _, name := range names {
		if own := name == [2]string{r.Who.Name.User, r.Who.Name.DB}; !own && !g.Allow(view, name[1], "") {
			return false
		}
	}
	return ok
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
	names, ok := r.named(what, "role")
	for _, name := range names {
		if !has[RoleName{name[0], name[1]}] && !g.Allow(view, name[1], "") {
			return false
		}
	}
	return ok
}

// named lists the names in usersInfo and rolesInfo: one or several, each a string or a document with name and database.
func (r *Request) named(what value.Value, field string) (out [][2]string, ok bool) {
	one := func(v value.Value) bool {
		switch v.T {
		case value.String:
			out = append(out, [2]string{v.Str(), r.DB})
			return true
		case value.Document:
			if name, db := r.lookup(v.Doc(), field), r.lookup(v.Doc(), "db"); name.T == value.String && db.T == value.String {
				out = append(out, [2]string{name.Str(), db.Str()})
				return true
			}
		}
		return r.wrong(mongoerr.Newf(mongoerr.BadValue, "%s takes names, or documents with the fields '%s' and 'db'", r.Name, field))
	}
	if what.T != value.Array {
		return out, one(what)
	}
	for _, v := range value.Values(what.Doc()) {
		if !one(v) {
			return out, false
		}
	}
	return out, true
}

// checkMerge requires the actions on all databases, even if the command names one: the users and roles of that one may have roles
// and privileges on any other. Reading the source collections requires nothing more: whoever has these actions may grant themselves any
// role, and the role restore, which has to suffice for mongorestore, may not read them.
func checkMerge(g *Grants, r *Request) bool {
	need := Actions("createUser createRole grantRole")
	if r.Arg("drop").Truthy() {
		need.AddAll(Actions("dropUser dropRole"))
	}
	for _, field := range []string{"tempUsersCollection", "tempRolesCollection"} {
		if _, ok := r.text(field, r.Arg(field)); !ok {
			return false
		}
	}
	return g.AllowAll(need)
}
