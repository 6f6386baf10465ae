package command

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A context made from an operation may outlive it: by then Done is closed and Err must say why.
func TestContextsOutliveTheirOperation(t *testing.T) {
	op := &Op{Start: time.Now()}
	child, cancel := context.WithTimeout(op, time.Hour)
	defer cancel()
	<-afterRelease(op)
	<-child.Done()
	if child.Err() == nil || op.Err() == nil {
		t.Fatalf("child %v, operation %v: both must have an error", child.Err(), op.Err())
	}
}

func afterRelease(op *Op) <-chan struct{} {
	done := op.Done()
	op.release()
	return done
}

func TestDeadlineEndsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := &Op{Start: time.Now()}
		op.SetDeadline(time.Now().Add(50 * time.Millisecond))
		<-op.Done()
		if got := mongoerr.CodeOf(op.Err()); got != mongoerr.MaxTimeMSExpired {
			t.Fatalf("code %v, want MaxTimeMSExpired", got)
		}
		op.release()
	})
}

func TestDisconnectEndsOperation(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	op := &Op{Start: time.Now(), Client: NewClient(1, "r", "l", func() context.Context { return ctx })}
	done := op.Done()
	cancel()
	<-done
	if got := mongoerr.CodeOf(op.Err()); got != mongoerr.ClientDisconnect {
		t.Fatalf("code %v, want ClientDisconnect", got)
	}
	op.release()
}
