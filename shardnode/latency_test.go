package shardnode

import (
	"fmt"
	"strings"
	"testing"
)

// The operation counters by namespace kept every name that a client ever sent, a kilobyte each, and those of dropped
// collections and views.
func TestLatenciesAreKeptOfNamespacesThatExist(t *testing.T) {
	n := newTestNode(t)
	names := func() (out []string) {
		n.srv.Node.latency.byNS.Range(func(k, _ any) bool {
			if strings.HasPrefix(k.(string), "d.") {
				out = append(out, k.(string))
			}
			return true
		})
		return out
	}
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	n.ok("d", `{"find": "v"}`)
	for i := range 50 {
		for _, cmd := range []string{`{"find": %q}`, `{"count": %q}`, `{"delete": %q, "deletes": [{"q": {}, "limit": 0}]}`, `{"listIndexes": %q}`} {
			n.do("d", fmt.Sprintf(cmd, fmt.Sprint("misspelt", i)))
		}
	}
	for _, ns := range names() {
		if ns != "d.c" && ns != "d.v" && ns != "d.system.views" {
			t.Errorf("%s is counted", ns)
		}
	}
	for i := range leastSwept + 10 { // dropped views are not reported
		n.ok("d", fmt.Sprintf(`{"create": "v%d", "viewOn": "c", "pipeline": []}`, i))
		n.ok("d", fmt.Sprintf(`{"find": "v%d"}`, i))
		n.ok("d", fmt.Sprintf(`{"drop": "v%d"}`, i))
	}
	if got := len(names()); got > leastSwept/2 {
		t.Errorf("%d names are counted", got)
	}
	stats := n.first("d", `{"aggregate": "v", "pipeline": [{"$collStats": {"latencyStats": {}}}], "cursor": {}}`)
	if len(stats) != 1 || !strings.Contains(stats[0], "ops: 1") {
		t.Errorf("the view's counts are %s", stats)
	}
}
