package command

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// A password, or what proves it, is in nothing that is shown.
func TestWithoutSecrets(t *testing.T) {
	for name, field := range map[string]string{"createUser": "pwd", "updateUser": "pwd", "saslStart": "payload", "saslContinue": "payload"} {
		body := value.Doc(value.F(name, value.NewString("ann")), value.F(field, value.NewString("hunter2")), value.F("$db", value.NewString("admin")))
		if shown := value.ShowDoc(WithoutSecrets(body)); strings.Contains(shown, "hunter2") || !strings.Contains(shown, "xxx") {
			t.Error(shown)
		}
	}
	find := value.Doc(value.F("find", value.NewString("c")), value.F("pwd", value.NewString("x")))
	if string(WithoutSecrets(find)) != string(find) {
		t.Error("a command without a password is changed")
	}
}

// BenchmarkAuthorize is what authorization adds to a find by _id: once for a driver's session, once without.
func BenchmarkAuthorize(b *testing.B) {
	s := NewService(Shard)
	a := &Access{Enforced: true, Params: cluster.NewParams()}
	a.Install(s)
	id, err := auth.NewIdentity(&auth.User{Name: auth.UserName{User: "ann", DB: "admin"}, Roles: []auth.RoleName{{Role: "readWrite", DB: "shop"}}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	session := value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16))))
	body := value.Doc(value.F("find", value.NewString("c")), value.F("filter", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))),
		value.F("limit", value.NewInt32(1)), value.F("lsid", value.NewDocument(session)), value.F("$db", value.NewString("shop")))
	for name, lsid := range map[string][]byte{"session": session, "none": nil} {
		b.Run(name, func(b *testing.B) {
			op := &Op{Service: s, Client: &Client{}}
			op.Client.login.Store(id)
			op.Req = Request{Spec: &Spec{Name: "find"}, DB: "shop", Body: body, Msg: &wire.Message{Body: body}}
			b.ReportAllocs()
			for b.Loop() {
				op.Req.LSID = lsid
				if err := a.authorize(op); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
