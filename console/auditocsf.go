package console

import (
	"encoding/hex"
	"strconv"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// This file implements the audit log's schema OCSF (manual: OCSF Schema Audit Messages). Events are made in the schema mongo and rewritten here:
// the action type determines an OCSF class and an activity, and data for which the class has no field goes into "unmapped".

// ocsfTypes maps action types to their type_uid: the class times 100, plus the activity (manual: OCSF Type Mapping).
var ocsfTypes = map[string]int32{
	"addShard": 500101, "applicationMessage": 100799, "auditConfigure": 500203, "authCheck": 600300, "authenticate": 300201, "clientMetadata": 400101,
	"createCollection": 300401, "createDatabase": 300401, "createIndex": 300401, "importCollection": 300401, "renameCollection": 300403,
	"dropCollection": 300404, "dropDatabase": 300404, "dropIndex": 300404,
	"createRole": 300101, "createUser": 300101, "updateRole": 300199, "updateUser": 300199, "directAuthMutation": 300100,
	"dropAllRolesFromDatabase": 300106, "dropAllUsersFromDatabase": 300106, "dropRole": 300106, "dropUser": 300106,
	"grantPrivilegesToRole": 300107, "grantRolesToRole": 300107, "grantRolesToUser": 300107,
	"revokePrivilegesFromRole": 300108, "revokeRolesFromRole": 300108, "revokeRolesFromUser": 300108,
	"logout": 300202, "getClusterParameter": 600302,
	"enableSharding": 500201, "refineCollectionShardKey": 500201, "removeShard": 500201, "replSetReconfig": 500201, "setClusterParameter": 500201,
	"shardCollection": 500201, "updateCachedClusterServerParameter": 500201,
	"rotateLog": 100799, "shutdown": 100702, "startup": 100701,
}

// ocsfAccess maps the commands in authCheck events to activities; all others have activity 0, unknown.
var ocsfAccess = map[string]int32{
	"insert": 1, "find": 2, "aggregate": 2, "count": 2, "distinct": 2, "getMore": 2, "update": 3, "findAndModify": 3, "findandmodify": 3, "delete": 4,
}

// ocsfEntities maps action types of the class Entity Management to the kind of entity that they concern.
var ocsfEntities = map[string]string{
	"createCollection": "collection", "importCollection": "collection", "renameCollection": "collection", "dropCollection": "collection",
	"createDatabase": "database", "dropDatabase": "database", "createIndex": "index", "dropIndex": "index",
}

const ocsfInformational = 1

// OCSFEvent rewrites an event of the schema mongo.
func OCSFEvent(event []byte) []byte {
	param, atype := value.Lookup(event, "param").Doc(), value.Lookup(event, "atype").Str()
	kind := ocsfTypes[atype]
	if atype == "authCheck" {
		kind += ocsfAccess[value.Lookup(param, "command").Str()]
	}
	class := kind / 100
	out, mark := value.Begin(make([]byte, 0, len(event)+256))
	for _, f := range []struct {
		name string
		n    int32
	}{{"activity_id", kind % 100}, {"category_uid", class / 1000}, {"class_uid", class}} {
		out = value.Append(out, f.name, value.NewInt32(f.n))
	}
	out = value.Append(out, "time", value.NewInt64(value.Lookup(event, "ts").DateTime()))
	out = value.Append(out, "severity_id", value.NewInt32(ocsfInformational))
	out = value.Append(out, "type_uid", value.NewInt32(kind))
	out = value.Append(out, "metadata", subdocument(value.F("correlation_uid", value.NewString(uuidText(value.Lookup(event, "uuid").Bytes()))),
		value.F("product", value.NewString("MongoDB Server")), value.F("version", value.NewString("1.0.0"))))
	out = value.Append(out, "actor", ocsfActor(event))
	out = value.Append(out, "src_endpoint", ocsfEndpoint(value.Lookup(event, "remote"), value.Lookup(event, "intermediates")))
	out = value.Append(out, "dst_endpoint", ocsfEndpoint(value.Lookup(event, "local"), value.Value{}))
	for _, f := range ocsfDetails(atype, param, value.Lookup(event, "result")) {
		out = value.Append(out, f.Key, f.Val)
	}
	return value.End(out, mark)
}

func subdocument(fields ...value.Field) value.Value { return value.NewDocument(value.Doc(fields...)) }

// uuidText writes an identifier in the usual groups of digits.
func uuidText(b []byte) string {
	if len(b) != 16 {
		return hex.EncodeToString(b)
	}
	out := make([]byte, 0, 36)
	for i, n := range []int{4, 2, 2, 2, 6} {
		if i > 0 {
			out = append(out, '-')
		}
		out = hex.AppendEncode(out, b[:n])
		b = b[n:]
	}
	return string(out)
}

// ocsfName joins a database and a name in it, the notation for users and roles.
func ocsfName(doc []byte, name string) value.Value {
	return value.NewString(value.Lookup(doc, "db").Str() + "." + value.Lookup(doc, name).Str())
}

// ocsfActor returns the user who caused the event, with all roles; it is empty if there is no user.
func ocsfActor(event []byte) value.Value {
	users := value.Values(value.Lookup(event, "users").Doc())
	if len(users) == 0 {
		return subdocument()
	}
	var groups []value.Value
	for _, r := range value.Values(value.Lookup(event, "roles").Doc()) {
		groups = append(groups, subdocument(value.F("name", ocsfName(r.Doc(), "role"))))
	}
	return subdocument(value.F("user", subdocument(value.F("type_id", value.NewInt32(1)), value.F("name", ocsfName(users[0].Doc(), "user")),
		value.F("groups", value.NewArray(value.ArrayOf(groups...))))))
}

// ocsfEndpoint returns one end of the connection; it is empty for the server itself.
func ocsfEndpoint(end, between value.Value) value.Value {
	var out []value.Field
	switch {
	case !value.Lookup(end.Doc(), "unix").IsMissing():
		out = append(out, value.F("interface", value.NewString("unix")))
	case !value.Lookup(end.Doc(), "ip").IsMissing():
		out = append(out, value.F("ip", value.Lookup(end.Doc(), "ip")), value.F("port", value.Lookup(end.Doc(), "port")))
	}
	if between.T == value.Array {
		out = append(out, value.F("intermediate_ips", between))
	}
	return subdocument(out...)
}

// ocsfDetails returns the fields of the event's class. Those of param for which it has none are unmapped.
func ocsfDetails(atype string, param []byte, result value.Value) (out []value.Field) {
	code, _ := result.AsInt64()
	if atype == "authCheck" {
		response := []value.Field{value.F("code", result)}
		if code != 0 {
			response = append(response, value.F("error", value.NewString(mongoerr.Code(code).Name())))
		}
		return []value.Field{value.F("api", subdocument(value.F("operation", value.Lookup(param, "command")),
			value.F("request", subdocument(value.F("uid", value.Lookup(param, "ns")))), value.F("response", subdocument(response...))))}
	}
	if code != 0 {
		out = append(out, value.F("status_id", value.NewInt32(2)), value.F("status_code", value.NewString(strconv.FormatInt(code, 10))))
	}
	mapped := map[string]bool{}
	if class := ocsfTypes[atype] / 100; (class == 3001 || class == 3002) && !value.Lookup(param, "user").IsMissing() {
		out = append(out, value.F("user", subdocument(value.F("type_id", value.NewInt32(1)), value.F("name", ocsfName(param, "user")))))
		mapped["user"], mapped["db"] = true, true
	}
	if atype == "authenticate" {
		out = append(out, value.F("auth_protocol", value.Lookup(param, "mechanism")))
		mapped["mechanism"] = true
	}
	if kind := ocsfEntities[atype]; kind != "" {
		for _, f := range [][2]string{{"ns", "entity"}, {"old", "entity"}, {"new", "entity_result"}} {
			if v := value.Lookup(param, f[0]); !v.IsMissing() {
				out = append(out, value.F(f[1], subdocument(value.F("name", v), value.F("type", value.NewString(kind)))))
				mapped[f[0]] = true
			}
		}
	}
	rest := []value.Field{value.F("atype", value.NewString(atype))}
	for k, v := range value.Elements(param) {
		if !mapped[k] {
			rest = append(rest, value.F(k, v))
		}
	}
	return append(out, value.F("unmapped", subdocument(rest...)))
}
