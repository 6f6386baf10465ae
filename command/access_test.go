package command

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire"
)

// Neither a password nor a proof of it appears in any output.
func TestWithoutSecrets(t *testing.T) {
	for name, field := range map[string]string{"createUser": "pwd", "updateUser": "pwd", "saslStart": "payload", "saslContinue": "payload"} {
		body := value.Doc(value.F(name, value.NewString("ann")), value.F(field, value.NewString("hunter2")), value.F("$db", value.NewString("admin")))
		if shown := value.ShowDoc(WithoutSecrets(body)); strings.Contains(shown, "hunter2") || !strings.Contains(shown, "xxx") {
			t.Error(shown)
		}
	}
	const credentials = `{"_id": "admin.ann", "credentials": {"SCRAM-SHA-256": {"salt": "hunter2", "storedKey": "hunter2", "serverKey": "hunter2"}}}`
	for _, cmd := range []string{
		`{"createUser": "ann", "PWD": "hunter2"}`, `{"createUser": "ann", "password": "hunter2", "pwd": "hunter2"}`, `{"authenticate": 1, "user": "ann", "pwd": "hunter2"}`,
		`{"explain": {"createUser": "ann", "pwd": "hunter2"}, "verbosity": "queryPlanner"}`, `{"explain": {"explain": {"saslStart": 1, "payload": "hunter2"}}}`,
		`{"applyOps": [{"op": "n"}, {"op": "c", "ns": "admin.$cmd", "o": {"createUser": "ann", "pwd": "hunter2"}}]}`,
		`{"hello": 1, "speculativeAuthenticate": {"saslStart": 1, "payload": "hunter2"}}`, `{"insert": "system.users", "documents": [` + credentials + `]}`,
		`{"update": "system.users", "updates": [{"q": {}, "u": {"$set": {"x": ` + credentials + `}}}]}`, `{"aggregate": "c", "pipeline": [{"$documents": [` + credentials + `]}]}`,
	} {
		if shown := value.ShowDoc(WithoutSecrets(valuetest.Doc(t, cmd))); strings.Contains(shown, "hunter2") || !strings.Contains(shown, "xxx") {
			t.Error(shown)
		}
	}
	own := valuetest.Doc(t, `{"insert": "c", "documents": [{"credentials": "of an application"}]}`)
	if string(WithoutSecrets(own)) != string(own) {
		t.Error("an application's document is changed")
	}
	find := value.Doc(value.F("find", value.NewString("c")), value.F("pwd", value.NewString("x")))
	if string(WithoutSecrets(find)) != string(find) {
		t.Error("a command without a password is changed")
	}
}

// authorized returns, by name, functions that authorize a find by _id, including $$USER_ROLES: with a driver's session, without one, for a user of 1,000
// roles with privileges on 1,000 databases, and on a node that has read 1,000 users.
func authorized(t testing.TB) map[string]func() {
	one := []auth.RoleName{{Role: "readWrite", DB: "shop"}}
	many := one
	for i := range 1000 {
		many = append(many, auth.RoleName{Role: "readWrite", DB: "shop" + strconv.Itoa(i)})
	}
	session := value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16))))
	body := value.Doc(value.F("find", value.NewString("c")), value.F("filter", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))),
		value.F("limit", value.NewInt32(1)), value.F("lsid", value.NewDocument(session)), value.F("$db", value.NewString("shop")))
	out := map[string]func(){}
	for _, tc := range []struct {
		name  string
		roles []auth.RoleName
		lsid  []byte
	}{{"session", one, session}, {"none", one, nil}, {"1000roles", many, session}, {"1000users", one, session}} {
		s := NewService(Shard)
		a := &Access{Enforced: true, Params: cluster.NewParams()}
		a.Install(s)
		s.Table.Add(Spec{Name: "find"})
		id, err := auth.NewIdentity(&auth.User{Name: auth.UserName{User: "ann", DB: "admin"}, Roles: tc.roles}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.name == "1000users" { // users that the node has read before
			a.mu.known = map[auth.UserName]*auth.Identity{}
			for i := range 1000 {
				a.mu.known[auth.UserName{User: strconv.Itoa(i), DB: "admin"}] = id
			}
		}
		op := &Op{Service: s, Client: &Client{}}
		op.Client.login.Store(id)
		op.Req = Request{Spec: s.Table.Lookup("find"), DB: "shop", Body: body, Msg: &wire.Message{Body: body}}
		out[tc.name] = func() {
			op.Req.LSID = tc.lsid
			if err := a.authorize(op, ""); err != nil || op.UserRoles().T != value.Array {
				t.Fatal(err)
			}
		}
	}
	return out
}

// BenchmarkAuthorize measures the cost of authorization in a find by _id.
func BenchmarkAuthorize(b *testing.B) {
	cases := authorized(b)
	for _, name := range []string{"session", "none", "1000roles", "1000users"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cases[name]()
			}
		})
	}
}

// Authorization allocates nothing, and takes no longer for a user of 1,000 roles, or with 1,000 users stored: the fastest of many short rounds, which
// other work on the machine does not disturb, take about the same time.
func TestAuthorizationIsFlat(t *testing.T) {
	cases, fastest := authorized(t), map[string]time.Duration{}
	for name, run := range cases {
		if n := testing.AllocsPerRun(1000, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for range 200 {
		for name, run := range cases {
			began := time.Now()
			for range 200 {
				run()
			}
			if d := time.Since(began); fastest[name] == 0 || d < fastest[name] {
				fastest[name] = d
			}
		}
	}
	t.Logf("200 times: %v", fastest)
	for _, name := range []string{"1000roles", "1000users"} {
		if fastest[name] > 2*fastest["session"] {
			t.Errorf("%s: %v, %v for one", name, fastest[name], fastest["session"])
		}
	}
}

// Only a command that has run, and may have written users or roles, invalidates the identities of all clients: neither a user without privileges nor
// an application that writes to its own collections on admin must be able to empty the cache.
func TestWhatInvalidatesIdentities(t *testing.T) {
	for _, tc := range []struct {
		name, db, role string
		cmd            []value.Field
		changes        bool
	}{
		{"refused", "admin", "read", []value.Field{value.F("insert", value.NewString("system.users"))}, false},
		{"refused, another's", "admin", "read", []value.Field{value.F("bulkWrite", value.NewInt32(1)), value.F("nsInfo", nsInfo("admin.system.users")),
			value.F("ops", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("insert", value.NewInt32(0)))))))}, false},
		{"users", "admin", "__system", []value.Field{value.F("insert", value.NewString("system.users"))}, true},
		{"many collections", "admin", "__system", []value.Field{value.F("bulkWrite", value.NewInt32(1))}, true},
		{"an application's collection", "admin", "__system", []value.Field{value.F("insert", value.NewString("c"))}, false},
		{"another database", "shop", "__system", []value.Field{value.F("insert", value.NewString("system.users"))}, false},
	} {
		s := NewService(Shard)
		a := &Access{Enforced: true, Params: cluster.NewParams()}
		a.Install(s)
		done := func(_ *Op, dst []byte) ([]byte, error) { return dst, nil }
		s.Table.Add(Spec{Name: "insert", Roles: All, Kind: Write, Namespace: true, Lenient: true, Run: done},
			Spec{Name: "bulkWrite", Roles: All, Kind: Write, Lenient: true, Run: done})
		id, err := auth.NewIdentity(&auth.User{Name: auth.UserName{User: "ann", DB: "admin"}, Roles: []auth.RoleName{{Role: tc.role, DB: "admin"}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{}
		c.login.Store(id)
		reply := s.Run(t.Context(), c, &wire.Message{Body: value.Doc(append(tc.cmd, value.F("$db", value.NewString(tc.db)))...)}, nil)
		if ok := value.Lookup(reply, "ok").Truthy(); ok != (tc.role == "__system") {
			t.Fatalf("%s: %s", tc.name, value.ShowDoc(reply))
		}
		if changed := a.generation.Load() > 0; changed != tc.changes {
			t.Errorf("%s: identities are read again: %v", tc.name, changed)
		}
	}
}

func nsInfo(ns string) value.Value {
	return value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("ns", value.NewString(ns))))))
}
