package auth

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/wire"
)

// The access matrix: what the manual says about roles (testdata/manual/roles.txt) and about the privileges that commands and
// stages require (testdata/manual/access.txt) is combined here by independent code, and compared with what the program's tables
// allow. The two sides share nothing but the requests.

// manualRole is a role as the manual describes it: resources as they are written there, and the actions on them.
type manualRole struct {
	admin    bool
	includes []string
	grants   map[string]map[string]bool
}

// lines calls f with each line of a file that is neither empty nor a comment.
func lines(t *testing.T, name string, f func(text string)) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "manual", name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for sc := bufio.NewScanner(file); sc.Scan(); {
		if text := strings.TrimSpace(sc.Text()); text != "" && text[0] != '#' {
			f(text)
		}
	}
}

func manualRoles(t *testing.T) map[string]*manualRole {
	t.Helper()
	roles := map[string]*manualRole{}
	var role *manualRole
	lines(t, "roles.txt", func(text string) {
		kind, rest, _ := strings.Cut(text, " ")
		words := strings.Fields(rest)
		switch kind {
		case "role":
			role = &manualRole{admin: len(words) > 1, grants: map[string]map[string]bool{}}
			roles[words[0]] = role
		case "includes":
			role.includes = words
		case "on", "also", "more":
			on, actions, _ := strings.Cut(rest, ":")
			actions, source, ok := strings.Cut(actions, "--")
			if ok != (kind != "on") || ok && strings.TrimSpace(source) == "" {
				t.Fatalf("%s: an exception from the manual's page needs a reason", text)
			}
			if role.grants[on] == nil {
				role.grants[on] = map[string]bool{}
			}
			for _, a := range strings.Fields(actions) {
				role.grants[on][a] = true
			}
		default:
			t.Fatal(text)
		}
	})
	return roles
}

// allows reports, by the manual alone, whether a role that is held on its database allows an action on a resource of
// the access file, of a request to db.
func (m *manualRole) allows(roles map[string]*manualRole, own, action, resource, db string) bool {
	for _, in := range m.includes {
		if roles[in].allows(roles, own, action, resource, db) {
			return true
		}
	}
	for on, actions := range m.grants {
		if (actions[action] || actions["anyAction"]) && manualCovers(on, own, resource, db) {
			return true
		}
	}
	return false
}

// manualCovers implements the manual's page Resource Document: which resources a privilege on another one covers.
func manualCovers(on, own, resource, db string) bool {
	if on == "any" {
		return true
	}
	if resource == "cluster" || on == "cluster" || resource == "any" {
		return on == resource
	}
	if resource == "alldb" {
		return on == "alldb"
	}
	d, c, _ := strings.Cut(resource, ".")
	if d == "" {
		d = db
	}
	system := strings.HasPrefix(c, "system.") || d == "local" && strings.HasPrefix(c, "replset.")
	if on == "alldb" {
		return !system && d != "local" && d != "config"
	}
	grantDB, grantColl, named := strings.Cut(on, ".")
	if grantDB == "db" {
		grantDB = own
	}
	if grantDB != "*" && grantDB != d {
		return false
	}
	if named {
		series, buckets := strings.CutPrefix(grantColl, "system.buckets.")
		return grantColl == c || buckets && series == "" && strings.HasPrefix(c, grantColl)
	}
	return !system
}

// manualAccess is a line of access.txt.
type manualAccess struct {
	only           string // the only database that it is sent to; "" for all
	router         bool   // it is sent to a router, which requires something else
	request, needs string
}

// allowed reports, by the manual alone, whether a role may make a request.
func (a manualAccess) allowed(may func(action, resource string) bool) bool {
	needs := strings.TrimPrefix(a.needs, "silent ")
	if needs == "nobody" || needs == "user" {
		return true
	}
	for _, alternative := range strings.Split(needs, "|") {
		ok := true
		for _, need := range strings.Fields(alternative) {
			action, resource, _ := strings.Cut(need, "@")
			action, not := strings.CutPrefix(action, "!")
			ok = ok && may(action, resource) != not
		}
		if ok {
			return true
		}
	}
	return false
}

func manualAccesses(t *testing.T) (out []manualAccess) {
	lines(t, "access.txt", func(text string) {
		request, needs, ok := strings.Cut(text, " => ")
		if !ok {
			t.Fatal(text)
		}
		a := manualAccess{request: request, needs: strings.TrimSpace(needs)}
		a.request, a.router = strings.CutPrefix(a.request, "router ")
		if rest, ok := strings.CutPrefix(request, "only "); ok {
			a.only, a.request, _ = strings.Cut(rest, " ")
		}
		out = append(out, a)
	})
	return out
}

// document returns a request as BSON, and its name.
func (a manualAccess) document(t *testing.T, db string) (doc bson.Raw, name string) {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(strings.ReplaceAll(a.request, `"DB`, `"`+db)), false, &d); err != nil {
		t.Fatalf("%s: %v", a.request, err)
	}
	doc, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return doc, d[0].Key
}

// Every command and stage, for every built-in role on its own database and on admin, sent to its own database, to another, to admin,
// config and local: allowed or refused as the manual's pages say.
func TestAccessIsTheManuals(t *testing.T) {
	roles, accesses := manualRoles(t), manualAccesses(t)
	cases, allowed := 0, 0
	for name, role := range roles {
		homes := []string{"shop", "admin"}
		if role.admin {
			homes = homes[1:]
		}
		for _, own := range homes {
			id := user(t, RoleName{name, own})
			for _, db := range []string{"shop", "elsewhere", "admin", "config", "local"} {
				for _, a := range accesses {
					if a.only != "" && a.only != db {
						continue
					}
					doc, command := a.document(t, db)
					want := id.System || a.allowed(func(action, resource string) bool {
						return role.allows(roles, own, action, resource, db)
					})
					rule := RuleFor(command)
					if rule == nil {
						t.Fatalf("no rule for %s", command)
					}
					req := &Request{Name: command, DB: db, Msg: &wire.Message{Body: doc}, Who: id, Router: a.router}
					if got := id.System || rule.Open || rule.Allows(req); got != want {
						t.Errorf("%s@%s on %s: %s: allowed is %v, by the manual (%s) %v", name, own, db, a.request, got, a.needs, want)
					}
					cases++
					if want {
						allowed++
					}
				}
			}
		}
	}
	t.Logf("%d cases, %d of them allowed", cases, allowed)
	if cases < 20000 || allowed < 3000 {
		t.Errorf("only %d cases, %d of them allowed", cases, allowed)
	}
}

// A built-in role grants exactly the actions that the manual lists for it.
func TestRolesAreTheManuals(t *testing.T) {
	roles := manualRoles(t)
	for name := range builtins {
		if roles[name] == nil && name != "__queryableBackup" {
			t.Errorf("role %s is not in the manual's", name)
		}
	}
	for name, role := range roles {
		own := "shop"
		if role.admin {
			own = "admin"
		}
		if !IsBuiltin(RoleName{name, own}) {
			t.Errorf("role %s is not built in", name)
			continue
		}
		for _, p := range BuiltinPrivileges(RoleName{name, own}) {
			resource := manualResource(p.On)
			for _, a := range p.Actions.Names() {
				if !role.allows(roles, own, a, resource, own) {
					t.Errorf("role %s grants %s on %s, by the manual it does not", name, a, resource)
				}
			}
		}
	}
}

// manualResource is a resource as the manual's file writes it.
func manualResource(r Resource) string {
	switch {
	case r.Any:
		return "any"
	case r.Cluster:
		return "cluster"
	case r == Resource{}:
		return "alldb"
	case r.Buckets:
		return r.DB + ".system.buckets." + r.Coll
	case r.DB == "":
		return "*." + r.Coll
	}
	return r.DB + "." + r.Coll
}

// Every command that has a row, and every stage, has a line in access.txt.
func TestTheManualsFileIsWhole(t *testing.T) {
	commands, stages := map[string]bool{}, map[string]bool{}
	for _, a := range manualAccesses(t) {
		doc, name := a.document(t, "shop")
		commands[name] = true
		list, _ := doc.Lookup("pipeline").ArrayOK()
		values, _ := list.Values()
		for _, v := range values {
			elems, err := v.Document().Elements()
			if err != nil {
				t.Fatal(err)
			}
			stages[elems[0].Key()] = true
		}
	}
	for name, rule := range rules {
		if !commands[name] && rule != members && !slices.Contains(testCommands, name) {
			t.Errorf("testdata/manual/access.txt has no line of the command %s", name)
		}
	}
	for _, name := range agg.StageNames() {
		if !stages[name] {
			t.Errorf("testdata/manual/access.txt has no line of the stage %s", name)
		}
	}
}
