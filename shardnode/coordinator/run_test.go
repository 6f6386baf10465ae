package coordinator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The outcome of an operation on the config server is not retried, whatever its code: a run that took it for an error of the request asked forever, and
// kept its locks. The same error of a request is retried.
func TestOutcomeIsNotRepeated(t *testing.T) {
	why := mongoerr.New(mongoerr.ConflictingOperationInProgress, "something is behind")
	for _, c := range []struct {
		err   error
		calls int
	}{{permanent{why}, 1}, {why, 3}} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		r, calls := &run{m: &Coordinators{}}, 0
		err := r.retry(ctx, false, func() error {
			if calls++; calls == 3 {
				return nil
			}
			return c.err
		})
		cancel()
		if calls != c.calls || c.calls == 1 && (!errors.Is(err, c.err) || failure(err) != why) {
			t.Errorf("%v: called %d times, %v", c.err, calls, err)
		}
	}
}
