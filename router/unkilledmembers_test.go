package router

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// gonePeer is a member that never replies.
type gonePeer struct{ asked atomic.Int64 }

func (p *gonePeer) Call(ctx context.Context, _ *wire.Message, _ []byte) ([]byte, error) {
	p.asked.Add(1)
	<-ctx.Done()
	return nil, mongoerr.New(mongoerr.HostUnreachable, "the member does not answer")
}

// killedPeer is a member that records the cursors of the killCursors that it receives.
type killedPeer struct{ ids []int64 }

func (p *killedPeer) Call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	for _, v := range value.Values(value.Lookup(m.Body, "cursors").Doc()) {
		p.ids = append(p.ids, v.Int64())
	}
	return append(dst, value.Doc(value.F("ok", value.NewDouble(1)))...), nil
}

// The cursors of a member that is gone for good used to be sent forever, sixteen calls at a time, and those of other members waited until all of them had
// timed out. A member gets one call at a time, less and less often, and is given up in the end; the number of its cursors that are remembered is bounded.
func TestMembersThatNeverReplyAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, gone, live := new(Router), new(gonePeer), new(killedPeer)
		u := &r.cursors.unkilled
		for i := range 3 * maxUnkilledOf {
			u.add(gone, memberCursor{"d.c", int64(i + 1)}, time.Now())
		}
		if u.mu.cursors != maxUnkilledOf {
			t.Errorf("%d cursors of one member are remembered", u.mu.cursors)
		}
		for i, ns := range []string{"d.c", "d.other", "d.c"} {
			u.add(live, memberCursor{ns, int64(i + 1)}, time.Now())
		}
		time.Sleep(killAgainEvery)
		began := time.Now()
		r.killAgain(t.Context(), began)
		if took := time.Since(began); len(live.ids) != 3 || took > memberTimeout {
			t.Errorf("with a member that is gone, %v were ended on another within %v", live.ids, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), unkilledFor+time.Hour)
		defer cancel()
		r.killing(ctx)
		if n, most := gone.asked.Load(), int64(unkilledFor/killAgainMax)+10; n < 100 || n > most {
			t.Errorf("the member was asked %d times", n)
		}
		if len(u.mu.members) != 0 || u.mu.cursors != 0 {
			t.Errorf("%d members and %d cursors are remembered", len(u.mu.members), u.mu.cursors)
		}
	})
}
