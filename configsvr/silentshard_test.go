package configsvr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// A draining shard that does not answer is not removed because of one question without an answer: it may coordinate a transaction whose decision a participant has not executed. It was, after
// five seconds without a primary. One that has been silent for long has failed for good, and is removed; an answer begins the time anew.
func TestSilentShardIsRemovedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, unanswered := false, 0
		m := managerOf(&catalogStore{}, func(ctx context.Context, w *wire.Message, dst []byte) ([]byte, error) {
			if unanswered--; !answers || unanswered >= 0 {
				return frozen(ctx, w, dst)
			}
			decision := doc(fld("_id", str("a commit that is under way")))
			return append(dst, value.Doc(fld("cursor", doc(fld("id", value.NewInt64(0)), fld("ns", str("config.transaction_coordinators")), fld("firstBatch", arr(decision)))), fld("ok", value.NewDouble(1)))...), nil
		})
		state := func() string {
			t.Helper()
			report, err := m.continueRemoval(t.Context(), "b")
			if err != nil {
				t.Fatal(err)
			}
			return value.Lookup(value.Doc(report...), "state").Str()
		}
		for range 3 {
			for range 5 {
				if got := state(); got != "ongoing" {
					t.Fatalf("a shard that may answer again: %s", got)
				}
			}
			time.Sleep(silentFor / 2)
			answers = true
			if got := state(); got != "ongoing" {
				t.Fatalf("a shard with a commit under way: %s", got)
			}
			answers = false
		}
		state()
		time.Sleep(2 * silentFor)
		answers, unanswered = true, 2
		if got := state(); got != "ongoing" {
			t.Fatalf("a shard that did not answer twice, long apart: %s", got)
		}
		answers = false
		from := time.Now()
		for state() != "completed" {
			if time.Since(from) > 3*silentFor {
				t.Fatal("it is never removed")
			}
			time.Sleep(time.Second)
		}
		if silent := time.Since(from); silent < silentFor {
			t.Errorf("it is removed after %v", silent)
		}
	})
}
