package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// Half of the fail points that could be switched on used to be checked by no code.
func TestFailPointsAreChecked(t *testing.T) {
	var code strings.Builder
	for _, room := range []string{"cluster", "command", "shardnode", "router", "configsvr", "storage"} {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "cluster/failpoint.go") {
				return err
			}
			b, err := os.ReadFile(path)
			code.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := NewFailPoints()
	for name := range r.mu.byName {
		asked := `"` + name + `"`
		if step, ok := strings.CutPrefix(name, "moveChunkHangAtStep"); ok && len(step) == 1 {
			asked = `"moveChunkHangAtStep" +`
		}
		if name == "failCommand" {
			asked = "FailPoints.FailCommand("
		}
		if !strings.Contains(code.String(), asked) {
			t.Errorf("no code checks %s", name)
		}
	}
	if _, err := NewRouterFailPoints().Lookup("onPrimaryTransactionalWrite"); err == nil {
		t.Error("a router has a fail point of shards")
	}
}

// Data of a wrong type used to be accepted: the point was on and never failed a command.
func TestFailCommandChecksItsData(t *testing.T) {
	r := NewFailPoints()
	array, text := value.NewArray(value.ArrayOf(value.NewString("find"))), value.NewString("x")
	for _, c := range []struct {
		key  string
		v    value.Value
		fits bool
	}{
		{"failCommands", array, true}, {"failCommands", value.NewString("find"), false}, {"failCommands", value.NewArray(value.ArrayOf(value.NewInt32(1))), false},
		{"errorCode", value.NewInt32(5), true}, {"errorCode", value.NewDouble(5), true}, {"errorCode", text, false},
		{"blockTimeMS", value.NewInt32(5), true}, {"blockTimeMS", text, false}, {"blockConnection", value.NewBool(true), true}, {"closeConnection", text, false},
		{"errorLabels", array, true}, {"errorLabels", text, false}, {"appName", text, true}, {"appName", value.NewInt32(1), false},
		{"writeConcernError", value.NewDocument(value.Doc()), true}, {"writeConcernError", text, false},
	} {
		_, err := r.Configure("failCommand", value.NewString("alwaysOn"), value.Doc(value.F(c.key, c.v)))
		if (err == nil) != c.fits {
			t.Errorf("%s: %s: %v", c.key, value.Show(c.v), err)
		}
	}
}
