package replication

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const (
	m0, m1, m2 = `{"_id": 0, "host": "a:1"}`, `{"_id": 1, "host": "b:1"}`, `{"_id": 2, "host": "c:1"}`
)

// Which documents are valid configurations, and the errors for the others.
func TestParseConfig(t *testing.T) {
	one := func(member string) string { return `{"_id": "rs", "members": [` + m0 + `, ` + member + `]}` }
	for _, x := range []struct{ name, doc, want string }{
		{"smallest", `{"_id": "rs", "members": [` + m0 + `]}`, ""},
		{"three", `{"_id": "rs", "version": 4, "members": [` + m0 + `, ` + m1 + `, ` + m2 + `]}`, ""},
		{"no name", `{"members": [` + m0 + `]}`, "BSON field 'ReplSetConfig._id' is missing but a required field"},
		{"no members", `{"_id": "rs"}`, "BSON field 'ReplSetConfig.members' is missing but a required field"},
		{"none", `{"_id": "rs", "members": []}`, "Replica set configuration contains 0 members, but must have at least 1 and no more than 50"},
		{"unknown field", `{"_id": "rs", "members": [` + m0 + `], "x": 1}`, "BSON field 'ReplSetConfig.x' is an unknown field."},
		{"version", `{"_id": "rs", "version": 0, "members": [` + m0 + `]}`, "BSON field 'version' value must be >= 1, actual value '0'"},
		{"protocol", `{"_id": "rs", "protocolVersion": 2, "members": [` + m0 + `]}`, "protocolVersion of 2 is not supported; 1 is the only one"},
		{"member's field", one(`{"_id": 1, "host": "b:1", "x": 1}`), "BSON field 'MemberConfig.x' is an unknown field."},
		{"member's type", one(`{"_id": "1", "host": "b:1"}`), "BSON field 'MemberConfig._id' is the wrong type 'string', expected types '[long, int, decimal, double]'"},
		{"same id", one(`{"_id": 0, "host": "b:1"}`), "Found two member configurations with same _id field, members.0._id == members.1._id == 0"},
		{"same host", one(`{"_id": 1, "host": "a:1"}`), "Found two member configurations with same host field, members.0.host == members.1.host == a:1"},
		{"local and not", one(`{"_id": 1, "host": "localhost:1"}`), "Either all host names in a replica set configuration must be localhost references, or none must be; found 1 out of 2"},
		{"priority", one(`{"_id": 1, "host": "b:1", "priority": 1001}`), "priority field value of 1001 is out of range"},
		{"votes", one(`{"_id": 1, "host": "b:1", "votes": 2}`), "votes field value is 2 but must be 0 or 1"},
		{"voteless priority", one(`{"_id": 1, "host": "b:1", "votes": 0}`), "Member priority must be 0 when non-voting (votes:0)"},
		{"hidden priority", one(`{"_id": 1, "host": "b:1", "hidden": true}`), "Member priority must be 0 when hidden=true"},
		{"hidden", one(`{"_id": 1, "host": "b:1", "hidden": true, "priority": 0}`), ""},
		{"arbiter", one(`{"_id": 1, "host": "b:1", "arbiterOnly": true}`), "Arbiters are not supported: member b:1 has arbiterOnly: true. " +
			"A member that votes must hold data; use a data-bearing member, with priority: 0 if it is not to become primary"},
		{"nobody electable", `{"_id": "rs", "members": [{"_id": 0, "host": "a:1", "priority": 0}]}`,
			"Replica set configuration must contain at least one non-arbiter member with priority > 0"},
		{"setting", `{"_id": "rs", "members": [` + m0 + `], "settings": {"electionTimeoutMillis": 0}}`,
			"BSON field 'electionTimeoutMillis' value must be >= 1, actual value '0'"},
		{"mode", `{"_id": "rs", "members": [` + m0 + `], "settings": {"getLastErrorModes": {"x": {"dc": 2}}}}`,
			"getLastErrorModes.x: no such tag dc in the tags of any member"},
		{"horizons", one(`{"_id": 1, "host": "b:1", "horizons": {"out": "x:1"}}`),
			"Each member of a replica set must have the same horizon names: member a:1 has [], member b:1 has [out]"},
	} {
		c, err := ParseConfig(valuetest.Doc(t, x.doc))
		if x.want != "" {
			if mongoerr.CodeOf(err) != mongoerr.InvalidReplicaSetConfig || mongoerr.From(err).Message != x.want {
				t.Errorf("%s: %v, want %s", x.name, err, x.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		again, err := ParseConfig(c.Doc())
		if err != nil || !bytes.Equal(again.Doc(), c.Doc()) {
			t.Errorf("%s: read back: %v\n%s\n%s", x.name, err, value.ShowDoc(c.Doc()), value.ShowDoc(again.Doc()))
		}
	}
}

// Which configuration may follow {a, b} of version 2.
func TestValidateReconfig(t *testing.T) {
	old, err := ParseConfig(valuetest.Doc(t, `{"_id": "rs", "version": 2, "members": [`+m0+`, `+m1+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, doc    string
		plain, force mongoerr.Code
	}{
		{"one more", `{"_id": "rs", "version": 3, "members": [` + m0 + `, ` + m1 + `, ` + m2 + `]}`, 0, 0},
		{"one less", `{"_id": "rs", "version": 3, "members": [` + m0 + `]}`, 0, 0},
		{"one exchanged", `{"_id": "rs", "version": 3, "members": [` + m0 + `, ` + m2 + `]}`, mongoerr.InvalidReplicaSetConfig, 0},
		{"voteless ones", `{"_id": "rs", "version": 3, "members": [` + m0 + `, ` + m1 + `, {"_id": 2, "host": "c:1", "votes": 0, "priority": 0},
			{"_id": 3, "host": "d:1", "votes": 0, "priority": 0}]}`, 0, 0},
		{"same version", `{"_id": "rs", "version": 2, "members": [` + m0 + `, ` + m1 + `]}`, mongoerr.NewReplicaSetConfigurationIncompatible, 0},
		{"another name", `{"_id": "r", "version": 3, "members": [` + m0 + `, ` + m1 + `]}`,
			mongoerr.NewReplicaSetConfigurationIncompatible, mongoerr.NewReplicaSetConfigurationIncompatible},
		{"ids exchanged", `{"_id": "rs", "version": 3, "members": [{"_id": 1, "host": "a:1"}, {"_id": 0, "host": "b:1"}]}`,
			mongoerr.NewReplicaSetConfigurationIncompatible, mongoerr.NewReplicaSetConfigurationIncompatible},
	} {
		c, err := ParseConfig(valuetest.Doc(t, x.doc))
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		if err := c.ValidateReconfig(old, false); mongoerr.CodeOf(err) != x.plain {
			t.Errorf("%s: %v, want code %d", x.name, err, x.plain)
		}
		if err := c.ValidateReconfig(old, true); mongoerr.CodeOf(err) != x.force {
			t.Errorf("%s, forced: %v, want code %d", x.name, err, x.force)
		}
	}
}

// Which members together satisfy each write concern.
func TestSatisfied(t *testing.T) {
	c, err := ParseConfig(valuetest.Doc(t, `{"_id": "rs", "members": [
		{"_id": 0, "host": "a:1", "tags": {"dc": "east"}}, {"_id": 1, "host": "b:1", "tags": {"dc": "east"}},
		{"_id": 2, "host": "c:1", "tags": {"dc": "west"}}, {"_id": 3, "host": "d:1", "votes": 0, "priority": 0}],
		"settings": {"getLastErrorModes": {"both": {"dc": 2}, "three": {"dc": 3}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		wc   WriteConcern
		has  []int
		want bool
	}{
		{"majority, a voter short", Majority, []int{0, 3}, false},
		{"majority", Majority, []int{0, 2}, true},
		{"w: 3 counts voteless members", WriteConcern{W: 3}, []int{0, 1, 3}, true},
		{"w: 3", WriteConcern{W: 3}, []int{0, 1}, false},
		{"tag, one value", WriteConcern{Tag: "both"}, []int{0, 1}, false},
		{"tag", WriteConcern{Tag: "both"}, []int{1, 2}, true},
	} {
		if got := c.Satisfied(x.wc, func(id int) bool { return slices.Contains(x.has, id) }); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	for tag, code := range map[string]mongoerr.Code{"both": 0, "three": mongoerr.UnsatisfiableWriteConcern, "none": mongoerr.UnknownReplWriteConcern} {
		if err := c.CheckWriteConcern(WriteConcern{Tag: tag}); mongoerr.CodeOf(err) != code {
			t.Errorf("%s: %v", tag, err)
		}
	}
	points := map[int]uint64{0: 9, 1: 4, 2: 7, 3: 20}
	if got := MajorityOf(c, func(id int) uint64 { return points[id] }); got != 7 {
		t.Errorf("majority point %d", got)
	}
}
