package txn

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/shoaldb/shoal/storage"
)

// A part of a history is durable when it is returned, whether it is read from the sessions or from the oplog, and contains everything that was executed before. Another shard kept statements
// that the power had taken back. What is durable already is not synced again, whatever else is written meanwhile.
func TestHistoryIsDurableBeforeItIsSent(t *testing.T) {
	m, _ := newTestManagerOn(t, storage.Options{Dir: "db", FS: vfs.NewCrashableMem(), MinFreeDisk: 1, JournalInterval: time.Hour})
	m.write(t, 1, 5, 0, 1)
	next := m.HistoryOf(partOf(0, 100), m.Engine.Visible())
	for _, want := range []string{"1/5/0", "2/7/0"} {
		if got := statements(read(t, next)); got != want {
			t.Errorf("%s is sent, want %s", got, want)
		}
		if m.Engine.Durable() < m.Engine.Visible() {
			t.Errorf("%s is sent before it is durable", want)
		}
		m.write(t, 2, 7, 0, 2)
	}
	read(t, next)
	durable := m.Engine.Durable()
	m.write(t, 3, 1, 0, 200)
	if got := statements(read(t, next)); got != "" || m.Engine.Durable() != durable {
		t.Errorf("%q is sent of other documents, durable %v and then %v", got, durable, m.Engine.Durable())
	}
}
