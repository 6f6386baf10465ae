package command

import (
	"context"
	"sync/atomic"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// waiting is a getMore that waits for documents, possibly for a long time.
type waiting struct {
	op      *Op // valid while Access.mu.waiting has it
	client  *Client
	owner   *CursorOwner
	opened  []byte
	revoked atomic.Bool
}

// WhileAllowed runs a getMore that may wait for documents. It ends at once if a privilege that its cursor requires is revoked
// meanwhile.
func (op *Op) WhileAllowed(cursor int64, o *CursorOwner, opened, dst []byte, run func(dst []byte) ([]byte, error)) ([]byte, error) {
	id := op.Client.login.Load()
	if !op.Service.enforces() || op.Client.InProcess || id == nil || id.System {
		return run(dst)
	}
	a := op.Service.Access
	w := &waiting{op: op, client: op.Client, owner: o, opened: opened}
	a.mu.Lock()
	if a.mu.waiting == nil {
		a.mu.waiting = map[*waiting]struct{}{}
	}
	a.mu.waiting[w] = struct{}{}
	a.mu.Unlock()
	if a.generation.Load() != id.Generation { // changed since the request was authorized
		a.endWait(op, w)
	}
	dst, err := run(dst)
	a.mu.Lock()
	delete(a.mu.waiting, w)
	a.mu.Unlock()
	if w.revoked.Load() {
		err = mongoerr.Newf(mongoerr.Unauthorized, "not authorized for getMore with cursor id %d", cursor)
	}
	return dst, err
}

// EndWaits ends the getMores that wait for documents which their users may no longer read.
func (a *Access) EndWaits(ctx context.Context) {
	a.mu.Lock()
	list := make([]*waiting, 0, len(a.mu.waiting))
	for w := range a.mu.waiting {
		list = append(list, w)
	}
	a.mu.Unlock()
	for _, w := range list {
		a.endWait(ctx, w)
	}
}

func (a *Access) endWait(ctx context.Context, w *waiting) {
	id, err := a.current(ctx, w.client)
	if err != nil {
		return // users cannot be read: the next getMore fails for that
	}
	if id != nil && !expired(id) && (id.System || w.owner.may(id, w.opened)) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.mu.waiting[w]; ok {
		w.revoked.Store(true)
		w.op.Kill(mongoerr.Unauthorized)
	}
}
