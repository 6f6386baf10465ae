package auth

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// exchange runs a whole conversation; meddle may change each message on its way to the server.
func exchange(t *testing.T, mech, user, password string, creds func(string) ([]Credentials, error), meddle func(step int, msg string) string) (*Conversation, []string, error) {
	t.Helper()
	client, err := hashOf(mech).NewClientUnprepped(user, password, "")
	if err != nil {
		t.Fatal(err)
	}
	cc, sc := client.NewConversation(), NewConversation(mech, "admin", creds)
	var sent []string
	answer := ""
	for step := 1; step <= 2; step++ {
		msg, err := cc.Step(answer)
		if err != nil {
			return sc, sent, err
		}
		sent = append(sent, msg)
		if meddle != nil {
			msg = meddle(step, msg)
		}
		out, _, err := sc.Step([]byte(msg))
		if err != nil {
			return sc, sent, err
		}
		answer = string(out)
	}
	_, err = cc.Step(answer)
	return sc, sent, err
}

func stored(t *testing.T, mech, password string) func(string) ([]Credentials, error) {
	t.Helper()
	c, err := NewCredentials(mech, password, 5000)
	if err != nil {
		t.Fatal(err)
	}
	return func(string) ([]Credentials, error) { return []Credentials{c}, nil }
}

func TestConversation(t *testing.T) {
	for _, mech := range Mechanisms {
		sc, _, err := exchange(t, mech, "ann", "secret", stored(t, mech, "secret"), nil)
		if err != nil || !sc.Authenticated() || sc.User() != (UserName{"ann", "admin"}) {
			t.Errorf("%s: %v, %v", mech, err, sc.User())
		}
		if _, done, err := sc.Step(nil); !done || err != nil {
			t.Errorf("%s: the empty exchange ends with %v, %v", mech, done, err)
		}
		if sc, _, err := exchange(t, mech, "ann", "guess", stored(t, mech, "secret"), nil); mongoerr.CodeOf(err) != mongoerr.AuthenticationFailed || sc.Authenticated() {
			t.Errorf("%s: a wrong password gives %v", mech, err)
		}
	}
}

// Messages that were overheard are replayed or changed, by an eavesdropper or a man in the middle.
func TestTamperedConversations(t *testing.T) {
	creds := stored(t, SHA256, "secret")
	_, sent, err := exchange(t, SHA256, "ann", "secret", creds, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, meddle := range map[string]func(step int, msg string) string{
		"both messages replayed":  func(step int, _ string) string { return sent[step-1] },
		"the proof replayed":      func(step int, msg string) string { return []string{msg, sent[1]}[step-1] },
		"messages in other order": func(step int, _ string) string { return sent[2-step] },
		"another user's name":     func(step int, msg string) string { return strings.Replace(msg, "n=ann", "n=bob", 1) },
		"another nonce": func(step int, msg string) string {
			if step == 2 {
				return strings.Replace(msg, "r=", "r=x", 1)
			}
			return msg
		},
		"a channel binding": func(step int, msg string) string { return strings.Replace(msg, "n,,", "p=tls-unique,,", 1) },
		"downgraded":        func(step int, msg string) string { return strings.Replace(msg, "c=biws", "c=eSws", 1) },
		"another's rights":  func(step int, msg string) string { return strings.Replace(msg, "n,,", "n,a=root,", 1) },
		"nothing":           func(int, string) string { return "" },
		"too much":          func(int, string) string { return strings.Repeat("x", maxPayload+1) },
	} {
		sc, _, err := exchange(t, SHA256, "ann", "secret", creds, meddle)
		if err == nil || sc.Authenticated() {
			t.Errorf("%s: %v, authenticated %v", name, err, sc.Authenticated())
		}
	}
}

// Further steps after a failure find no conversation to continue.
func TestConversationEndsWithItsFailure(t *testing.T) {
	sc, _, err := exchange(t, SHA256, "ann", "guess", stored(t, SHA256, "secret"), nil)
	if err == nil {
		t.Fatal("a wrong password is accepted")
	}
	for range 3 {
		if _, done, err := sc.Step(nil); done || err == nil || sc.Authenticated() {
			t.Fatal("the conversation continues")
		}
	}
}

// A user that does not exist gets a salt like the others: the same each time and from each node that has the secret, and
// different from that of every other name.
func TestSimulatedCredentials(t *testing.T) {
	doc := NewSimulationSecret()
	one, other := Simulation{Secret: ParseSimulationSecret(doc)}, Simulation{Secret: ParseSimulationSecret(doc)}
	strange := Simulation{Secret: ParseSimulationSecret(NewSimulationSecret())}
	for _, mech := range Mechanisms {
		real, err := NewCredentials(mech, "x", 15000)
		if err != nil {
			t.Fatal(err)
		}
		a, again, b := one.Credentials(mech, UserName{"a", "admin"}, 15000), other.Credentials(mech, UserName{"a", "admin"}, 15000), one.Credentials(mech, UserName{"b", "admin"}, 15000)
		if !bytes.Equal(a.Salt, again.Salt) || bytes.Equal(a.Salt, b.Salt) || len(a.Salt) != len(real.Salt) || a.Iterations != real.Iterations ||
			len(a.StoredKey) != len(real.StoredKey) || len(a.ServerKey) != len(real.ServerKey) {
			t.Errorf("%s: %v, %v, %v, %v", mech, a, again, b, real)
		}
		if bytes.Equal(a.Salt, strange.Credentials(mech, UserName{"a", "admin"}, 15000).Salt) {
			t.Errorf("%s: the salt does not depend on the secret", mech)
		}
		if bytes.Equal(a.Salt, one.Credentials(mech, UserName{"a", "admin"}, 20000).Salt) {
			t.Errorf("%s: other iterations, with the earlier salt", mech)
		}
	}
}

// Unknown names have the shapes of the known ones, with the same frequencies; more users of a shape change names only to that shape.
func TestSimulatedShapes(t *testing.T) {
	sim := Simulation{Secret: ParseSimulationSecret(NewSimulationSecret())}
	if _, ok := sim.Shape(UserName{"a", "admin"}); ok {
		t.Error("without users there is no shape")
	}
	both, old, weak := map[string]int{SHA1: 10000, SHA256: 15000}, map[string]int{SHA256: 5000}, map[string]int{SHA1: 10000}
	sim.Shapes = []Shape{{both, 700}, {old, 200}, {weak, 100}}
	more := Simulation{Secret: sim.Secret, Shapes: []Shape{{weak, 100}, {both, 700}, {old, 400}}}
	const names = 10000
	got := map[string]int{}
	for i := range names {
		u := UserName{fmt.Sprint("user", i), "admin"}
		shape, _ := sim.Shape(u)
		got[fmt.Sprint(shape.Iterations)]++
		if now, _ := more.Shape(u); fmt.Sprint(now.Iterations) != fmt.Sprint(shape.Iterations) && fmt.Sprint(now.Iterations) != fmt.Sprint(old) {
			t.Fatalf("%v: %v became %v", u, shape, now)
		}
	}
	for _, shape := range sim.Shapes {
		if n := got[fmt.Sprint(shape.Iterations)]; n < names*shape.Users/1000*9/10 || n > names*shape.Users/1000*11/10 {
			t.Errorf("%v: %d of %d names, %d of 1000 users", shape.Iterations, n, names, shape.Users)
		}
	}
}

// Each of several keys is accepted, and no other.
func TestKeys(t *testing.T) {
	server, err := NewKey([]string{"oldkeyoldkey", "newkeynewkey"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"oldkeyoldkey": true, "newkeynewkey": true, "otherkeyother": false} {
		sc, _, err := exchange(t, SHA256, System.User, key, server.Lookup, nil)
		if (err == nil && sc.Authenticated()) != want {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, _, err := exchange(t, SHA256, "root", "oldkeyoldkey", server.Lookup, nil); err == nil {
		t.Error("a key proves another user")
	}
}

func TestReadKeyFile(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		text string
		mode os.FileMode
		keys int
		err  string
	}{
		"one":   {text: "abc def\nghi\n", mode: 0o600, keys: 1},
		"list":  {text: "- abcdefgh\n- ijklmnop\n", mode: 0o400, keys: 2},
		"open":  {text: "abcdefgh", mode: 0o640, err: "too open"},
		"short": {text: "abc", mode: 0o600, err: "between 6 and 1024"},
		"none":  {text: "", mode: 0o600, err: "between 6 and 1024"},
		"odd":   {text: "abc§defgh", mode: 0o600, err: "base64"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(tc.text), tc.mode); err != nil {
			t.Fatal(err)
		}
		k, err := ReadKeyFile(path)
		if tc.err == "" && (err != nil || k.Len() != tc.keys) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %v, %v", name, k, err)
		}
	}
	if _, err := ReadKeyFile(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a file that does not exist is read")
	}
}

// A stage without a row would be refused to every user.
func TestEveryStageHasARule(t *testing.T) {
	for _, name := range agg.StageNames() {
		if StageRuleFor(name) == nil {
			t.Errorf("stage %s has no row", name)
		}
	}
}

func user(t *testing.T, roles ...RoleName) *Identity {
	t.Helper()
	id, err := NewIdentity(&User{Name: UserName{"ann", "admin"}, Roles: roles}, func(RoleName) (*Role, bool, error) { return nil, false, nil })
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// The manual's rules on the resources that a role covers.
func TestBuiltinRoles(t *testing.T) {
	for _, tc := range []struct {
		role     RoleName
		action   string
		db, coll string
		want     bool
	}{
		{RoleName{"read", "shop"}, "find", "shop", "c", true},
		{RoleName{"read", "shop"}, "find", "shop", "system.js", true},
		{RoleName{"read", "shop"}, "find", "shop", "system.views", false},
		{RoleName{"read", "shop"}, "find", "other", "c", false},
		{RoleName{"read", "shop"}, "insert", "shop", "c", false},
		{RoleName{"readWrite", "shop"}, "remove", "shop", "c", true},
		{RoleName{"readWrite", "shop"}, "dropDatabase", "shop", "", false},
		{RoleName{"dbAdmin", "shop"}, "find", "shop", "c", false},
		{RoleName{"dbAdmin", "shop"}, "find", "shop", "system.profile", true},
		{RoleName{"dbOwner", "shop"}, "createUser", "shop", "", true},
		{RoleName{"readAnyDatabase", "admin"}, "find", "other", "c", true},
		{RoleName{"readAnyDatabase", "admin"}, "find", "local", "oplog.rs", false},
		{RoleName{"readAnyDatabase", "admin"}, "find", "config", "shards", false},
		{RoleName{"readAnyDatabase", "other"}, "find", "other", "c", false}, // only admin has it
		{RoleName{"clusterMonitor", "admin"}, "find", "config", "shards", true},
		{RoleName{"clusterMonitor", "admin"}, "find", "shop", "c", false},
		{RoleName{"userAdminAnyDatabase", "admin"}, "find", "admin", "system.users", true},
		{RoleName{"userAdminAnyDatabase", "admin"}, "remove", "admin", "system.users", false},
		{RoleName{"root", "admin"}, "find", "shop", "c", true},
		{RoleName{"root", "admin"}, "find", "local", "oplog.rs", true},
		{RoleName{"root", "admin"}, "find", "shop", "system.buckets.weather", true},
		{RoleName{"root", "admin"}, "internal", "shop", "c", false},
		{RoleName{"__system", "admin"}, "internal", "shop", "c", true},
		{RoleName{"backup", "admin"}, "find", "admin", "system.users", true},
		{RoleName{"restore", "admin"}, "insert", "shop", "c", true},
		{RoleName{"restore", "admin"}, "find", "shop", "c", false},
	} {
		g := user(t, tc.role).Grants
		if got := g.Allow(Actions(tc.action), tc.db, tc.coll); got != tc.want {
			t.Errorf("%s: %s on %s.%s: %v", tc.role, tc.action, tc.db, tc.coll, got)
		}
	}
}

func allows(t *testing.T, id *Identity, db string, cmd []byte, seqs ...wire.Sequence) bool {
	t.Helper()
	it := value.Walk(cmd)
	name, _, _ := it.Next()
	rule := RuleFor(string(name))
	if rule == nil {
		t.Fatalf("no rule for %s", name)
	}
	return rule.Allows(&Request{Name: string(name), DB: db, Msg: &wire.Message{Body: cmd, Seqs: seqs}, Who: id})
}

func s(text string) value.Value           { return value.NewString(text) }
func d(fields ...value.Field) value.Value { return value.NewDocument(value.Doc(fields...)) }
func arr(vs ...value.Value) value.Value   { return value.NewArray(value.ArrayOf(vs...)) }

// Nothing can be read or written through a stage, an upsert or a target that the user could not access directly.
func TestDeputiesAreNotConfused(t *testing.T) {
	id := user(t, RoleName{"read", "shop"})
	writer := user(t, RoleName{"readWrite", "shop"})
	aggregate := func(on value.Value, stages ...value.Value) []byte {
		return value.Doc(value.F("aggregate", on), value.F("pipeline", arr(stages...)))
	}
	lookup := func(from value.Value) value.Value {
		return d(value.F("$lookup", d(value.F("from", from), value.F("as", s("x")))))
	}
	hidden := d(value.F("db", s("other")), value.F("coll", s("secret")))
	for i, tc := range []struct {
		cmd  []byte
		want bool
	}{
		{aggregate(s("c")), true},
		{aggregate(s("c"), lookup(s("d"))), true},
		{aggregate(s("c"), lookup(hidden)), false},
		{aggregate(s("c"), lookup(s("system.views"))), false},
		{aggregate(s("c"), d(value.F("$lookup", d(value.F("from", s("d")), value.F("from", hidden), value.F("as", s("x")))))), false},
		{aggregate(s("c"), d(value.F("$facet", d(value.F("f", arr(lookup(hidden))))))), false},
		{aggregate(s("c"), d(value.F("$unionWith", d(value.F("coll", s("d")), value.F("pipeline", arr(lookup(hidden))))))), false},
		{aggregate(s("c"), d(value.F("$unionWith", s("system.profile")))), false},
		{aggregate(s("c"), d(value.F("$graphLookup", d(value.F("from", hidden))))), false},
		{aggregate(s("c"), d(value.F("$out", s("d")))), false},
		{aggregate(s("c"), d(value.F("$merge", s("d")))), false},
		{aggregate(s("c"), d(value.F("$indexStats", d()))), false},
		{aggregate(s("c"), d(value.F("$collStats", d()))), true},
		{aggregate(value.NewInt32(1), d(value.F("$currentOp", d(value.F("allUsers", value.NewBool(true)))))), false},
		{aggregate(value.NewInt32(1), d(value.F("$currentOp", d()))), true},
		{aggregate(value.NewInt32(1), d(value.F("$documents", arr())), lookup(hidden)), false},
		{aggregate(s("c"), d(value.F("$_internalUnpackBucket", d()))), false},
		{value.Doc(value.F("explain", d(value.F("aggregate", s("c")), value.F("pipeline", arr(lookup(hidden)))))), false},
		{value.Doc(value.F("explain", d(value.F("find", s("c"))))), true},
		{value.Doc(value.F("explain", d(value.F("delete", s("c"))))), false},
		{value.Doc(value.F("mapReduce", s("c")), value.F("out", d(value.F("inline", value.NewInt32(1))))), true},
		{value.Doc(value.F("mapReduce", s("c")), value.F("out", s("d"))), false},
		{value.Doc(value.F("find", value.NewBinary(4, make([]byte, 16)))), false}, // a UUID may be that of any collection
		{value.Doc(value.F("_shardsvrDropDatabase", value.NewInt32(1))), false},
		{value.Doc(value.F("usersInfo", s("ann"))), false}, // ann of shop is another user
		{value.Doc(value.F("usersInfo", d(value.F("user", s("ann")), value.F("db", s("admin"))))), true},
	} {
		if got := allows(t, id, "shop", tc.cmd); got != tc.want {
			t.Errorf("%d: %s: %v", i, value.ShowDoc(tc.cmd), got)
		}
	}
	view := value.Doc(value.F("create", s("v")), value.F("viewOn", s("c")), value.F("pipeline", arr(lookup(hidden))))
	if allows(t, writer, "shop", view) {
		t.Error("a view may show what its creator cannot read")
	}
	if !allows(t, writer, "shop", value.Doc(value.F("create", s("v")), value.F("viewOn", s("c")), value.F("pipeline", arr()))) {
		t.Error("a view of what its creator can read is refused")
	}
}

// Statistics of queries require one action for plain names and another for transformed ones (manual: Privilege Actions): neither includes
// the other.
func TestQueryStatsActions(t *testing.T) {
	for _, action := range []string{"queryStatsRead", "queryStatsReadTransformed"} {
		id := user(t)
		id.Grants = Compile([]Privilege{{On: Resource{Cluster: true}, Actions: Actions(action)}})
		for _, transformed := range []bool{false, true} {
			arg := d()
			if transformed {
				arg = d(value.F("transformIdentifiers", d(value.F("algorithm", s("hmac-sha-256")))))
			}
			cmd := value.Doc(value.F("aggregate", value.NewInt32(1)), value.F("pipeline", arr(d(value.F("$queryStats", arg)))))
			if got := allows(t, id, "admin", cmd); got != (transformed == (action == "queryStatsReadTransformed")) {
				t.Errorf("%s: %s: %v", action, value.ShowDoc(cmd), got)
			}
		}
	}
}

// Statements in sections after the body are checked like those in it.
func TestUpsertsAskForInsert(t *testing.T) {
	role := &Role{Name: RoleName{"u", "admin"}, Privileges: []Privilege{{Resource{DB: "shop", Coll: "c"}, Actions("update")}}}
	id, err := NewIdentity(&User{Name: UserName{"ann", "admin"}, Roles: []RoleName{role.Name}}, func(RoleName) (*Role, bool, error) { return role, true, nil })
	if err != nil {
		t.Fatal(err)
	}
	st := func(upsert bool) value.Value {
		return d(value.F("q", d()), value.F("u", d()), value.F("upsert", value.NewBool(upsert)))
	}
	if !allows(t, id, "shop", value.Doc(value.F("update", s("c")), value.F("updates", arr(st(false))))) {
		t.Error("an update is refused")
	}
	if allows(t, id, "shop", value.Doc(value.F("update", s("c")), value.F("updates", arr(st(false), st(true))))) {
		t.Error("an upsert is allowed")
	}
	seq := wire.Sequence{ID: "updates", Docs: st(true).Doc()}
	if allows(t, id, "shop", value.Doc(value.F("update", s("c"))), seq) {
		t.Error("an upsert in a document sequence is allowed")
	}
	ops := wire.Sequence{ID: "ops", Docs: value.Doc(value.F("update", value.NewInt32(0)), value.F("upsert", value.NewBool(true)))}
	if allows(t, id, "admin", value.Doc(value.F("bulkWrite", value.NewInt32(1)), value.F("nsInfo", arr(d(value.F("ns", s("shop.c")))))), ops) {
		t.Error("an upsert in a bulkWrite is allowed")
	}
}

// Resolving roles that inherit from each other in a cycle terminates.
func TestResolve(t *testing.T) {
	a, b := RoleName{"a", "admin"}, RoleName{"b", "admin"}
	roles := map[RoleName]*Role{
		a: {Name: a, Roles: []RoleName{b}},
		b: {Name: b, Roles: []RoleName{a, {"read", "shop"}, {"gone", "admin"}}},
	}
	res, err := Resolve([]RoleName{a}, func(n RoleName) (*Role, bool, error) { r, ok := roles[n]; return r, ok, nil })
	if err != nil || len(res.Roles) != 3 || len(res.Missing) != 1 || !Compile(res.Privileges).Allow(actFind, "shop", "c") {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestRestrictions(t *testing.T) {
	doc := arr(d(value.F("clientSource", arr(s("192.0.2.0/24"), s("127.0.0.1"))), value.F("serverAddress", arr(s("10.0.0.1")))))
	rs, err := ParseRestrictions(doc)
	if err != nil {
		t.Fatal(err)
	}
	if value.Compare(rs.Value(), doc) != 0 {
		t.Errorf("stored as %s", value.Show(rs.Value()))
	}
	for _, tc := range []struct {
		client, server string
		want           bool
	}{
		{"192.0.2.7:50000", "10.0.0.1:27017", true}, {"127.0.0.1:1", "10.0.0.1:27017", true}, {"127.0.0.1:1", "10.0.0.2:27017", false},
		{"192.0.3.7:1", "10.0.0.1:27017", false}, {"[::ffff:192.0.2.7]:1", "10.0.0.1:27017", true}, {"@", "/tmp/mongodb.sock", false},
	} {
		if got := rs.Met(tc.client, tc.server); got != tc.want {
			t.Errorf("%s to %s: %v", tc.client, tc.server, got)
		}
	}
	if !Restrictions(nil).Met("@", "/tmp/x") {
		t.Error("no restriction refuses")
	}
	for _, field := range []string{"clientSource", "serverAddress"} { // an empty list contains no address
		empty := arr(d(value.F(field, arr())))
		rs, err := ParseRestrictions(empty)
		if err != nil || rs.Met("127.0.0.1:1", "127.0.0.1:27017") || value.Compare(rs.Value(), empty) != 0 {
			t.Errorf("%s: %v, stored as %s, %v", value.Show(empty), rs, value.Show(rs.Value()), err)
		}
	}
	for _, bad := range []value.Value{s("x"), arr(s("x")), arr(d(value.F("clientSource", arr(s("house"))))), arr(d(value.F("other", arr())))} {
		if _, err := ParseRestrictions(bad); err == nil {
			t.Errorf("%s is accepted", value.Show(bad))
		}
	}
}

// A stored user is read back unchanged.
func TestUserDocument(t *testing.T) {
	c, err := NewCredentials(SHA1, PasswordDigest("ann", "x"), 10000)
	if err != nil {
		t.Fatal(err)
	}
	u := &User{Name: UserName{"ann", "shop"}, UUID: value.NewBinary(4, make([]byte, 16)), Credentials: map[string]Credentials{SHA1: c},
		CustomData: d(value.F("a", s("b"))), Roles: []RoleName{{"read", "shop"}}}
	doc := u.Doc()
	again, err := ParseUser(doc)
	if err != nil || !bytes.Equal(again.Doc(), doc) {
		t.Errorf("%s, %v", value.ShowDoc(doc), err)
	}
}

// A user who may apply operations but not bypass validation may not bypass it by applyOps either, nor by a nested one.
func TestAppliedOperationsBypass(t *testing.T) {
	role := func(RoleName) (*Role, bool, error) { return nil, false, nil }
	for _, may := range []bool{false, true} {
		id, err := NewIdentity(&User{Name: UserName{"ann", "admin"}}, role)
		if err != nil {
			t.Fatal(err)
		}
		actions := "insert update"
		if may {
			actions += " bypassDocumentValidation"
		}
		id.Grants = Compile([]Privilege{{On: Resource{Cluster: true}, Actions: Actions("applyOps")}, {On: Resource{DB: "shop"}, Actions: Actions(actions)}})
		op := func(kind, ns string, o []byte) value.Value {
			return d(value.F("op", s(kind)), value.F("ns", s(ns)), value.F("o", value.NewDocument(o)))
		}
		insert := op("i", "shop.c", value.Doc(value.F("_id", value.NewInt32(1))))
		apply := func(bypass bool, ops ...value.Value) []byte {
			return value.Doc(value.F("applyOps", value.NewArray(value.ArrayOf(ops...))), value.F("bypassDocumentValidation", value.NewBool(bypass)))
		}
		for body, want := range map[string]bool{
			string(apply(false, insert)): true, string(apply(true, insert)): may, string(apply(true)): true,
			string(apply(false, op("c", "admin.$cmd", apply(true, insert)))): may, string(apply(false, op("c", "admin.$cmd", apply(false, insert)))): true,
		} {
			if got := RuleFor("applyOps").Allows(&Request{Name: "applyOps", DB: "admin", Msg: &wire.Message{Body: []byte(body)}, Who: id}); got != want {
				t.Errorf("%s: allowed is %v", value.ShowDoc([]byte(body)), got)
			}
		}
	}
}

func BenchmarkAllowFind(b *testing.B) {
	id, _ := NewIdentity(&User{Roles: []RoleName{{"readWrite", "shop"}}}, nil)
	msg := &wire.Message{Body: value.Doc(value.F("find", s("c")), value.F("filter", d(value.F("_id", value.NewInt32(1)))))}
	for b.Loop() {
		if !RuleFor("find").Allows(&Request{Name: "find", DB: "shop", Msg: msg, Who: id}) {
			b.Fatal("refused")
		}
	}
}

// BenchmarkSCRAM runs a whole authentication of 15,000 iterations by a client that has its keys: both sides; the server's work is
// about half.
func BenchmarkSCRAM(b *testing.B) {
	creds, err := NewCredentials(SHA256, "secret", 15000)
	if err != nil {
		b.Fatal(err)
	}
	client, err := hashOf(SHA256).NewClientUnprepped("ann", "secret", "")
	if err != nil {
		b.Fatal(err)
	}
	login := func() {
		server := NewConversation(SHA256, "admin", func(string) ([]Credentials, error) { return []Credentials{creds}, nil })
		server.SkipEmpty = true
		conv := client.NewConversation()
		msg, _ := conv.Step("")
		answer, _, err := server.Step([]byte(msg))
		if err != nil {
			b.Fatal(err)
		}
		if msg, err = conv.Step(string(answer)); err != nil {
			b.Fatal(err)
		}
		if _, done, err := server.Step([]byte(msg)); err != nil || !done {
			b.Fatal(err)
		}
	}
	login() // derives the client's keys, which it keeps
	for b.Loop() {
		login()
	}
}
