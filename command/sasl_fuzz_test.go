package command

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Whatever documents a client sends, it is not authenticated without the password.
func FuzzSASL(f *testing.F) {
	known, err := auth.NewCredentials(auth.SHA256, "never guessed 81ab", 5000)
	if err != nil {
		f.Fatal(err)
	}
	ann := (&auth.User{Name: auth.UserName{User: "ann", DB: "admin"}, UUID: value.NewBinary(4, make([]byte, 16)), Credentials: map[string]auth.Credentials{auth.SHA256: known}}).Doc()
	users := func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
		cursor := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(value.NewDocument(ann)))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("admin.system.users")))
		return append(dst, value.Doc(value.F("cursor", value.NewDocument(cursor)), value.F("ok", value.NewDouble(1)))...), nil
	}
	s := NewService(Shard)
	a := &Access{Enforced: true, Params: cluster.NewParams(), Users: cluster.LocalPeer(users)}
	a.Install(s)
	start := func(mech, payload string) []byte {
		return value.Doc(value.F("saslStart", value.NewInt32(1)), value.F("mechanism", value.NewString(mech)), value.F("payload", value.NewBinary(0, []byte(payload))),
			value.F("options", value.NewDocument(value.Doc(value.F("skipEmptyExchange", value.NewBool(true))))), value.F("db", value.NewString("admin")))
	}
	for _, seed := range [][2]string{{auth.SHA256, "n,,n=ann,r=abc"}, {auth.SHA1, "n,,n=ann,r=abc"}, {auth.SHA256, "n,,n=__system,r=abc"}, {auth.X509, "CN=ann"}, {auth.OIDC, ""}, {auth.Plain, "\x00ann\x00x"}, {"", ""}} {
		f.Add(start(seed[0], seed[1]), []byte("c=biws,r=abc,p=AAAA"), true)
		f.Add(start(seed[0], seed[1]), []byte(""), false)
	}
	f.Fuzz(func(t *testing.T, doc, next []byte, external bool) {
		if wire.Validate(doc) != nil {
			return
		}
		db := "admin"
		if external {
			db = auth.External
		}
		op := &Op{Service: s, Client: &Client{}}
		op.Req = Request{Spec: s.Table.Lookup("saslStart"), DB: db, Body: doc, Msg: &wire.Message{Body: doc}}
		_, _ = a.start(op, db, doc, false)
		_ = a.speculate(op, doc)
		for range 2 {
			if l := op.Client.takeLogin(); l != nil {
				op.Client.setLogin(l)
				_, _ = a.step(op, l, value.NewBinary(0, next))
			}
		}
		if id := op.Client.LoggedIn(); id != nil {
			t.Errorf("%s is authenticated by %q", id.Name, doc)
		}
	})
}
