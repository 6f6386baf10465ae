package command

import (
	"context"

	"github.com/xdg-go/scram"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Handshake begins a connection to another node: the sender identifies itself as a member, and proves it with the
// key if there is one. Several keys are tried in turn. With optional set, as while a cluster is changing over to a
// key, a node that accepts none of them is used nevertheless.
func Handshake(key *auth.Key, optional bool) func(ctx context.Context, cc *wire.ClientConn) error {
	return func(ctx context.Context, cc *wire.ClientConn) error {
		err := cluster.Handshake(ctx, cc)
		if err != nil || key == nil {
			return err
		}
		for i := range key.Len() {
			if err = proveMember(ctx, cc, key.Client(i)); mongoerr.CodeOf(err) != mongoerr.AuthenticationFailed {
				break
			}
		}
		if optional && cc.Usable() {
			return nil
		}
		return err
	}
}

// proveMember runs one SCRAM conversation as the members' user.
func proveMember(ctx context.Context, cc *wire.ClientConn, conv *scram.ClientConversation) error {
	first, err := conv.Step("")
	if err != nil {
		return err
	}
	options := value.Doc(value.F("skipEmptyExchange", value.NewBool(true)))
	reply, err := askMember(ctx, cc, value.F("saslStart", value.NewInt32(1)), value.F("mechanism", value.NewString(auth.SHA256)),
		value.F("payload", value.NewBinary(0, []byte(first))), value.F("options", value.NewDocument(options)))
	if err != nil {
		return err
	}
	final, err := conv.Step(string(value.Lookup(reply, "payload").Bytes()))
	if err != nil {
		return mongoerr.New(mongoerr.AuthenticationFailed, err.Error())
	}
	reply, err = askMember(ctx, cc, value.F("saslContinue", value.NewInt32(1)), value.F("conversationId", value.Lookup(reply, "conversationId")),
		value.F("payload", value.NewBinary(0, []byte(final))))
	if err != nil {
		return err
	}
	// The other side proves that it knows the key too.
	if _, err := conv.Step(string(value.Lookup(reply, "payload").Bytes())); err != nil || !conv.Valid() {
		return mongoerr.New(mongoerr.AuthenticationFailed, "the node that was asked does not know the key")
	}
	return nil
}

func askMember(ctx context.Context, cc *wire.ClientConn, fields ...value.Field) ([]byte, error) {
	body := value.Doc(append(fields, value.F("$db", value.NewString(auth.System.DB)))...)
	reply, err := cc.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: body})
	if err != nil {
		return nil, err
	}
	return reply.Body, cluster.ReplyError(reply.Body)
}
