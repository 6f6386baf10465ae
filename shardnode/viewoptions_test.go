package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A view stores nothing: options about how documents are stored and checked are refused (manual: db.createView has viewOn, pipeline and collation).
func TestViewsHaveNoStorageOptions(t *testing.T) {
	n := newTestNode(t)
	var steps []step
	for _, more := range []string{
		`"capped": true, "size": 4096`, `"validator": {"a": 1}`, `"validationLevel": "strict"`, `"validationAction": "warn"`, `"storageEngine": {"wiredTiger": {}}`,
		`"indexOptionDefaults": {"storageEngine": {"wiredTiger": {}}}`, `"autoIndexId": true`, `"expireAfterSeconds": 5`,
	} {
		steps = append(steps, step{`{"create": "v", "viewOn": "c", ` + more + `}`, mongoerr.InvalidOptions})
	}
	runSteps(t, n, append(steps, step{`{"create": "v", "viewOn": "c", "pipeline": [], "collation": {"locale": "fr"}, "capped": false}`, 0}))
}
