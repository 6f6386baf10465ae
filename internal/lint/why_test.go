package lint

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// hardest lists the parts of the code that are hardest to change without harm, by file, with their difficulty. A comment in each gives
// the invariant, what breaks without it, and the design that was rejected.
var hardest = map[string]string{
	"cluster/catalog.go":                    "reading a table and its entry, and what a stale error invalidates",
	"cluster/catalogcache.go":               "an invalidation during a refresh",
	"cluster/chunkmap.go":                   "a refresh that shares the leaves that have not changed",
	"cluster/clock.go":                      "three times that are read together, and times from outside",
	"cluster/sdam/set.go":                   "calls to members that a set has replaced",
	"configsvr/chunks.go":                   "the commit of a migration",
	"configsvr/reshard.go":                  "the states and the decision of a resharding",
	"query/changestream/token.go":           "the order of events over all shards",
	"replication/apply.go":                  "from the election to the first write",
	"replication/handover.go":               "handing over the leadership",
	"replication/install.go":                "a snapshot that replaces store and log",
	"replication/membership.go":             "changes of the configuration",
	"replication/services.go":               "stepping up and down",
	"replication/snapshots.go":              "sending a snapshot",
	"router/shardmerge.go":                  "merging the change streams of shards",
	"router/txn.go":                         "statements of a transaction that are sent again",
	"router/txncommit.go":                   "participants that only read",
	"router/writeparts.go":                  "statements that are executed in part",
	"shardnode/coordinator/coordinators.go": "the locks of runs that an earlier primary began",
	"shardnode/coordinator/run.go":          "phases that are repeated",
	"shardnode/metadata.go":                 "versions, snapshot and filter of a query",
	"shardnode/migration/donor.go":          "the critical section of a migration",
	"shardnode/migration/movestore.go":      "parts of a movePrimary that arrive late",
	"shardnode/migration/rangedeleter.go":   "deleting a range that may come back",
	"shardnode/migration/recipient.go":      "when a recipient has everything",
	"shardnode/migration/recvsection.go":    "the recipient's critical section",
	"shardnode/migration/sections.go":       "critical sections that outlive a primary",
	"shardnode/migration/shardstate.go":     "comparing versions",
	"shardnode/resharding/apply.go":         "documents with the same _id from several donors",
	"shardnode/txn/adopt.go":                "history of sessions that are in use",
	"shardnode/txn/coordinator.go":          "two-phase commit",
	"shardnode/txn/inquiry.go":              "votes whose coordinator is lost",
	"shardnode/txn/prepared.go":             "recovery of prepared transactions",
	"shardnode/txn/retryable.go":            "the table of retryable writes",
	"shardnode/write/multi.go":              "statements on many documents",
	"storage/agreed.go":                     "transactions that are visible from an earlier time on",
	"storage/build.go":                      "an index build while writers go on",
	"storage/chain.go":                      "building on commits that are not decided",
	"storage/claims.go":                     "write conflicts",
	"storage/commit.go":                     "the commit leader",
	"storage/detached.go":                   "commits whose caller stops waiting",
	"storage/late.go":                       "versions in the store that are not visible yet",
	"storage/oplogpin.go":                   "truncating the oplog under its readers",
	"storage/oplogrefs.go":                  "oplog entries that refer to versions",
	"storage/prepared.go":                   "votes in the oplog",
	"storage/snapshotfiles.go":              "installing a snapshot of the store",
	"storage/staged.go":                     "large units of work",
}

func TestHardCodeSaysWhy(t *testing.T) {
	explained, seen := map[string]bool{}, map[string]bool{}
	eachSource(t, func(path string, _ *token.FileSet, file *ast.File) {
		path = filepath.ToSlash(path)
		seen[path] = true
		for _, g := range file.Comments {
			text := strings.Join(strings.Fields(g.Text()), " ")
			danger := strings.Contains(text, "Invariant: ") || strings.Contains(text, "Hazard: ")
			if danger && strings.Contains(text, "Rejected: ") {
				explained[path] = true
			}
		}
	})
	for path, what := range hardest {
		switch {
		case !seen[path]:
			t.Errorf("%s is gone: where is it now (%s)?", path, what)
		case !explained[path]:
			t.Errorf("%s (%s): no comment has an invariant or a hazard, and the design that was rejected", path, what)
		}
	}
}
