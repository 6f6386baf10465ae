package txn

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// What readers at a time have to do about prepared transactions: wait for the decision, wait for a commit to be visible, or nothing.
func TestReadersAndPreparedTransactions(t *testing.T) {
	var p preparedTxns
	lsid := value.Doc(value.F("id", value.NewString("s")))
	now := time.Now()
	notice := func(ts storage.Timestamp, state string, number int64, decided storage.Timestamp) {
		p.onCommitNotice(ts, prepareNotice(state, lsid, number, value.F("decided", decided.Value())), now)
	}
	expect := func(at storage.Timestamp, wait bool, upTo storage.Timestamp) {
		t.Helper()
		if w, ts := p.at(at); w != wait || ts != upTo {
			t.Errorf("a reader at %d: waits %v, then for %d; want %v, %d", at, w, ts, wait, upTo)
		}
	}
	expect(5, false, 0)
	if p.count.Load() != 0 {
		t.Error("readers look without need")
	}
	notice(10, "prepared", 1, 0)
	expect(9, false, 0)
	changed := p.change()
	expect(10, true, 0)
	notice(20, "prepared", 2, 0)
	notice(30, "committed", 1, 15)
	select {
	case <-changed:
	default:
		t.Error("a waiting reader is not woken")
	}
	expect(14, false, 0)
	expect(15, false, 30)
	expect(25, true, 0) // because of the other one
	notice(40, "forgotten", 2, 0)
	expect(29, false, 30)
	expect(30, false, 0)
	expect(45, false, 0)
	p.onCommitNotice(50, nil, now) // a snapshot is about to replace everything
	expect(60, true, 0)
}
