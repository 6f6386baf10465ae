package replication

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzConfig: no configuration of a set may do worse than be refused; one that is accepted can be shown and is accepted again.
func FuzzConfig(f *testing.F) {
	names := []string{"_id", "version", "term", "members", "settings", "host", "priority", "votes", "hidden", "arbiterOnly", "buildIndexes", "tags", "secondaryDelaySecs", "protocolVersion",
		"writeConcernMajorityJournalDefault", "configsvr", "chainingAllowed", "heartbeatIntervalMillis", "heartbeatTimeoutSecs", "electionTimeoutMillis", "catchUpTimeoutMillis",
		"getLastErrorModes", "getLastErrorDefaults", "replicaSetId", "w", "dc"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		rest := g.Doc()
		b, mark := value.Begin(nil)
		b = value.Append(b, "_id", value.NewString("rs"))
		b = value.Append(b, "version", value.NewInt32(1))
		b = value.Append(b, "members", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("_id", value.NewInt32(0)), value.F("host", value.NewString("a:1")))), g.Value())))
		for _, d := range [][]byte{g.Doc(), value.End(append(b, rest[4:len(rest)-1]...), mark)} {
			c, err := ParseConfig(d)
			if err != nil {
				continue
			}
			if _, err := ParseConfig(c.Doc()); err != nil {
				t.Fatalf("%s is shown as %s: %v", value.ShowDoc(d), value.ShowDoc(c.Doc()), err)
			}
		}
	})
}
