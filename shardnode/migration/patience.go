package migration

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lockAttempt is the duration of one attempt to lock exclusively what transactions may hold; everybody else queues behind it meanwhile.
const lockAttempt = 500 * time.Millisecond

// patiently locks exclusively for an operation that nobody waits for, such as a migration, by a function that waits at most for a duration.
// It waits for transactions that have written as long as a transaction may live, and lets others through between two attempts. The error is LockTimeout if
// the last attempt was in vain, too.
//
// Rejected: one request without a limit. Behind it every write waits, for a database also those to collections that the operation does not touch, until a client
// ends its transaction.
func (s *ShardState) patiently(ctx context.Context, try func(wait time.Duration) (unlock func(), err error)) (unlock func(), err error) {
	waited, lifetime := time.Duration(0), time.Duration(s.params.Int("transactionLifetimeLimitSeconds"))*time.Second+time.Second
	for pause := lockAttempt / 16; ; pause = min(2*pause, 2*lockAttempt) {
		unlock, err := try(lockAttempt)
		if mongoerr.CodeOf(err) != mongoerr.LockTimeout || waited > lifetime {
			return unlock, err
		}
		if err := cluster.Sleep(ctx, pause); err != nil {
			return nil, err
		}
		waited += lockAttempt + pause
	}
}
