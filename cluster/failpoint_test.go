package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Half of the fail points that could be switched on were checked by no code.
func TestFailPointsAreAskedSomewhere(t *testing.T) {
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
			t.Errorf("nobody asks %s", name)
		}
	}
	if _, err := NewRouterFailPoints().Lookup("onPrimaryTransactionalWrite"); err == nil {
		t.Error("a router has a fail point of shards")
	}
}
