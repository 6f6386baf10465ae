package command

import (
	"context"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// audited describes the audit event of a successful command: its type, and how param is built from the command and the elements of its
// reply. The event is recorded once, by the node that the client is connected to, which knows the client's identity.
type audited struct {
	atype string
	param func(op *Op, before, reply []byte) []value.Field
	// before returns a command that the node runs itself before this one, and whose reply the event needs; nil for
	// none.
	before func(op *Op) msg.Message
}

// auditedCommands has the commands with an event of their own (manual: Audit Event Actions, Details, and Results). Changes to the catalog
// are recorded where they are made.
var auditedCommands = map[string]audited{
	"createUser":               {param: auditUser("customData", "roles")},
	"updateUser":               {param: auditUser("passwordChanged", "customData", "roles")},
	"dropUser":                 {param: auditUser()},
	"dropAllUsersFromDatabase": {param: auditDB},
	"grantRolesToUser":         {param: auditUser("roles")},
	"revokeRolesFromUser":      {param: auditUser("roles")},
	"createRole":               {param: auditRole("roles", "privileges")},
	"updateRole":               {param: auditRole("roles", "privileges")},
	"dropRole":                 {param: auditRole()},
	"dropAllRolesFromDatabase": {param: auditDB},
	"grantRolesToRole":         {param: auditRole("roles")},
	"revokeRolesFromRole":      {param: auditRole("roles")},
	"grantPrivilegesToRole":    {param: auditRole("privileges")},
	"revokePrivilegesFromRole": {param: auditRole("privileges")},
	"enableSharding":           {param: auditNS()},
	"shardCollection":          {param: auditShardCollection},
	"refineCollectionShardKey": {param: auditNS("key")},
	"addShard": {param: func(op *Op, _, reply []byte) []value.Field {
		return []value.Field{value.F("shard", value.Lookup(wholeReply(reply), "shardAdded")), value.F("connectionString", op.Req.Cmd)}
	}},
	"removeShard": {param: func(op *Op, _, _ []byte) []value.Field { return []value.Field{value.F("shard", op.Req.Cmd)} }},
	"getClusterParameter": {param: func(op *Op, _, _ []byte) []value.Field {
		return []value.Field{value.F("requestedClusterServerParameters", op.Req.Cmd)}
	}},
	"setClusterParameter": {param: auditClusterParameter, before: clusterParameterBefore},
	"replSetReconfig":     {param: auditReconfig, before: func(*Op) msg.Message { return new(msg.SetConfig) }},
	"logApplicationMessage": {atype: "applicationMessage", param: func(op *Op, _, _ []byte) []value.Field {
		return []value.Field{value.F("msg", op.Req.Cmd)}
	}},
}

// byClient reports whether the operation comes from a client that is connected to this node.
func (op *Op) byClient() bool { return !op.Client.InProcess && !op.Client.Internal }

// auditBefore returns the part of the state before the operation that the operation's event needs.
func (op *Op) auditBefore() []byte {
	if !op.Audits() || !op.byClient() {
		return nil
	}
	if a := auditedCommands[op.Req.Spec.Name]; a.before != nil {
		return op.ownReply(a.before(op))
	}
	return nil
}

// auditDone records a successful command; reply has the elements of its reply.
func (op *Op) auditDone(before, reply []byte) {
	if !op.Audits() || !op.byClient() {
		return
	}
	a, known := auditedCommands[op.Req.Spec.Name]
	if !known {
		op.auditUserWrites()
		return
	}
	if a.atype == "" {
		a.atype = op.Req.Spec.Name
	}
	op.Audit(a.atype, mongoerr.OK, a.param(op, before, reply)...)
}

// wholeReply makes a document of a reply's elements.
func wholeReply(elements []byte) []byte {
	dst, mark := value.Begin(make([]byte, 0, len(elements)+5))
	return value.End(append(dst, elements...), mark)
}

// ownReply runs a command on the node itself and returns its reply; nil if it fails.
func (op *Op) ownReply(m msg.Message) []byte {
	reply, err := op.Service.Direct(context.WithoutCancel(op), OwnClient(), &wire.Message{OpCode: wire.OpMsg, Body: msg.Doc(m)}, nil)
	if err != nil || !value.Lookup(reply, "ok").Truthy() {
		return nil
	}
	return reply
}

func auditDB(op *Op, _, _ []byte) []value.Field {
	return []value.Field{value.F("db", value.NewString(op.Req.DB))}
}

// given appends those of the named arguments that were sent. Roles given by name alone belong to the command's
// database.
func given(op *Op, out []value.Field, names []string) []value.Field {
	for _, n := range names {
		switch v := op.Req.Shared(n); {
		case n == "passwordChanged":
			out = append(out, value.F(n, value.NewBool(!op.Req.Shared("pwd").IsMissing())))
		case v.IsMissing():
		case n == "roles":
			roles, err := auth.ParseRoleNames(v.Doc(), op.Req.DB)
			if err == nil {
				out = append(out, value.F(n, auth.RoleNames(roles)))
			}
		default:
			out = append(out, value.F(n, v))
		}
	}
	return out
}

func auditUser(fields ...string) func(*Op, []byte, []byte) []value.Field {
	return func(op *Op, _, _ []byte) []value.Field {
		return given(op, []value.Field{value.F("user", op.Req.Cmd), value.F("db", value.NewString(op.Req.DB))}, fields)
	}
}

func auditRole(fields ...string) func(*Op, []byte, []byte) []value.Field {
	return func(op *Op, _, _ []byte) []value.Field {
		return given(op, []value.Field{value.F("role", op.Req.Cmd), value.F("db", value.NewString(op.Req.DB))}, fields)
	}
}

func auditNS(fields ...string) func(*Op, []byte, []byte) []value.Field {
	return func(op *Op, _, _ []byte) []value.Field {
		return given(op, []value.Field{value.F("ns", op.Req.Cmd)}, fields)
	}
}

func auditShardCollection(op *Op, _, _ []byte) []value.Field {
	options := value.Doc(value.F("unique", value.NewBool(op.Req.Shared("unique").Truthy())))
	return append(auditNS("key")(op, nil, nil), value.F("options", value.NewDocument(options)))
}

// clusterParameterBefore reads the parameter that a command sets.
func clusterParameterBefore(op *Op) msg.Message {
	it := value.Walk(op.Req.Cmd.Doc())
	name, _, _ := it.Next()
	return &msg.GetClusterParameter{Name: string(name)}
}

func auditClusterParameter(op *Op, before, _ []byte) (out []value.Field) {
	if was := value.Values(value.Lookup(before, "clusterParameters").Doc()); len(was) == 1 {
		out = append(out, value.F("originalClusterServerParameter", was[0]))
	}
	return append(out, value.F("updatedClusterServerParameter", op.Req.Cmd))
}

func auditReconfig(op *Op, before, _ []byte) (out []value.Field) {
	if was := value.Lookup(before, "config"); was.T == value.Document {
		out = append(out, value.F("old", was))
	}
	return append(out, value.F("new", op.Req.Cmd))
}

// auditUserWrites records direct writes to the collections of users and roles.
func (op *Op) auditUserWrites() {
	if op.Req.DB != "admin" || op.Req.Spec.Kind != Write {
		return
	}
	list := map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}[op.Req.Spec.Name]
	if op.Req.Cmd.T != value.String || op.Req.Cmd.Str() != "system.users" && op.Req.Cmd.Str() != "system.roles" {
		return
	}
	record := func(doc []byte) error {
		op.Audit("directAuthMutation", mongoerr.OK, value.F("document", value.NewDocument(withoutCredentials(doc))),
			value.F("ns", value.NewString(op.Req.NS(op.Req.Cmd.Str()))), value.F("operation", value.NewString(op.Req.Spec.Name)))
		return nil
	}
	if list == "" {
		_ = record(op.Req.Body)
		return
	}
	_ = op.Req.DocList(list).Each(list, func(_ int, doc []byte) error { return record(doc) })
}
