package console

import (
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

// manualOCSF is the manual's table of action types and their type_uid.
const manualOCSF = `addShard 500101 applicationMessage 100799 authenticate 300201 clientMetadata 400101 createCollection 300401 createDatabase 300401
createIndex 300401 createRole 300101 createUser 300101 directAuthMutation 300100 dropAllRolesFromDatabase 300106 dropAllUsersFromDatabase 300106
dropCollection 300404 dropDatabase 300404 dropIndex 300404 dropRole 300106 dropUser 300106 enableSharding 500201 getClusterParameter 600302
grantRolesToRole 300107 grantRolesToUser 300107 importCollection 300401 logout 300202 refineCollectionShardKey 500201 removeShard 500201
renameCollection 300403 replSetReconfig 500201 revokePrivilegesFromRole 300108 revokeRolesFromRole 300108 revokeRolesFromUser 300108 rotateLog 100799
setClusterParameter 500201 shardCollection 500201 shutdown 100702 startup 100701 updateCachedClusterServerParameter 500201 updateRole 300199 updateUser 300199`

func TestOCSFTypes(t *testing.T) {
	words := strings.Fields(manualOCSF)
	for i := 0; i < len(words); i += 2 {
		e := OCSFEvent(auditEvent(words[i], "a.b"))
		kind := value.Lookup(e, "type_uid").Int32()
		if strconv.Itoa(int(kind)) != words[i+1] {
			t.Errorf("%s is %d, want %s", words[i], kind, words[i+1])
		}
		if c, a, cat := value.Lookup(e, "class_uid").Int32(), value.Lookup(e, "activity_id").Int32(), value.Lookup(e, "category_uid").Int32(); c*100+a != kind || c/1000 != cat {
			t.Errorf("%s: class %d, activity %d, category %d", words[i], c, a, cat)
		}
	}
	for cmd, activity := range map[string]int32{"insert": 1, "find": 2, "update": 3, "delete": 4, "getParameter": 0} {
		e := value.Doc(value.F("atype", value.NewString("authCheck")), value.F("param", value.NewDocument(value.Doc(value.F("command", value.NewString(cmd))))), value.F("result", value.NewInt32(13)))
		if got := value.Lookup(OCSFEvent(e), "type_uid").Int32(); got != 600300+activity {
			t.Errorf("authCheck of %s is %d", cmd, got)
		}
	}
}

// No field of an event is lost, and a failure is recorded with its reason.
func TestOCSFIsComplete(t *testing.T) {
	param := value.Doc(value.F("old", value.NewString("a.b")), value.F("new", value.NewString("a.c")), value.F("more", value.NewInt32(1)))
	remote := value.Doc(value.F("ip", value.NewString("::1")), value.F("port", value.NewInt32(7)))
	e := OCSFEvent(value.Doc(value.F("atype", value.NewString("renameCollection")), value.F("remote", value.NewDocument(remote)),
		value.F("local", value.NewDocument(value.Doc(value.F("unix", value.NewString("/tmp/x"))))),
		value.F("intermediates", value.NewArray(value.ArrayOf(value.NewDocument(remote)))), value.F("param", value.NewDocument(param)), value.F("result", value.NewInt32(26))))
	got := string(AppendValue(nil, value.NewDocument(e)))
	for _, part := range []string{`"entity":{"name":"a.b","type":"collection"},"entity_result":{"name":"a.c","type":"collection"}`, `"unmapped":{"atype":"renameCollection","more":1}`,
		`"status_id":2,"status_code":"26"`, `"src_endpoint":{"ip":"::1","port":7,"intermediate_ips":[{"ip":"::1","port":7}]}`, `"dst_endpoint":{"interface":"unix"}`, `"actor":{}`} {
		if !strings.Contains(got, part) {
			t.Errorf("no %s in %s", part, got)
		}
	}
	if OCSFEvent(auditEvent("startup", "x")); (&AuditOptions{Destination: "console", Schema: "XML"}).Check() == nil || (&AuditOptions{Schema: "OCSF"}).Check() == nil {
		t.Error("a schema that does not fit is accepted")
	}
}

// Events of any form are rewritten without a panic.
func FuzzOCSF(f *testing.F) {
	for _, s := range []string{`{"atype":"authenticate","ts":{"$date":"2021-08-09T15:05:05.372Z"},"users":[{"user":"a","db":"b"}],"roles":[{"role":"r","db":"d"}],"param":{"user":"x","db":"y","mechanism":"z"},"result":18}`,
		`{"atype":"authCheck","param":{"command":"find","ns":"a.b","args":{}},"result":13}`, `{"atype":"createIndex","param":{"ns":"a.b"}}`, `{"users":1,"param":[],"ts":1,"uuid":"x","remote":{"unix":"x"}}`, `{"users":[1]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var doc bson.Raw
		if bson.UnmarshalExtJSON([]byte(s), false, &doc) != nil {
			return
		}
		if e := OCSFEvent(doc); bson.Raw(e).Validate() != nil {
			t.Errorf("%s gives %x", s, e)
		}
	})
}
