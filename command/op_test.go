package command

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire"
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

func TestWritesOutliveTheirClient(t *testing.T) {
	aggregate := &Spec{Name: "aggregate", Kind: Read, Fields: []Field{Opt("pipeline", TArray)}}
	mapReduce := &Spec{Name: "mapReduce", Kind: Read, Fields: []Field{Opt("out", TAny)}}
	for _, c := range []struct {
		spec *Spec
		cmd  string
		ends bool
	}{
		{&Spec{Name: "insert", Kind: Write}, `{"insert": "c"}`, false},
		{&Spec{Name: "createIndexes", Kind: DDL}, `{"createIndexes": "c"}`, false},
		{&Spec{Name: "find", Kind: Read}, `{"find": "c"}`, true},
		{aggregate, `{"aggregate": "c", "pipeline": []}`, true},
		{aggregate, `{"aggregate": "c", "pipeline": [{"$match": {}}]}`, true},
		{aggregate, `{"aggregate": "c", "pipeline": [{"$match": {}}, {"$out": "d"}]}`, false},
		{aggregate, `{"aggregate": "c", "pipeline": [{"$merge": {"into": "d"}}]}`, false},
		{mapReduce, `{"mapReduce": "c", "out": {"inline": 1}}`, true},
		{mapReduce, `{"mapReduce": "c", "out": "d"}`, false},
	} {
		op := &Op{Start: time.Now()}
		op.Req.Spec = c.spec
		for i := range c.spec.Fields {
			op.Req.args = append(op.Req.args, arg{&c.spec.Fields[i], value.Lookup(valuetest.Doc(t, c.cmd), c.spec.Fields[i].Name)})
		}
		if ends := op.endsWithClient(); ends != c.ends {
			t.Errorf("%s: ends %v", c.cmd, ends)
		}
	}
}

// Other goroutines read the requests of running operations, so an operation is listed only after its request is parsed.
func TestRunningOperationsAreParsed(t *testing.T) {
	s := NewService(Shard)
	s.Table.Add(Spec{Name: "noop", Roles: Shard, Lenient: true, Run: func(_ *Op, dst []byte) ([]byte, error) { return dst, nil }})
	body, err := bson.Marshal(bson.D{{Key: "noop", Value: 1}, {Key: "x", Value: bson.A{1, 2, 3}}, {Key: "$db", Value: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			s.EachOp(func(op *Op) {
				if seen.Add(1); op.Req.DB != "d" {
					t.Error("an operation is listed before its request is parsed")
					stop.Store(true)
				}
			})
		}
	})
	c := NewClient(1, "r", "l", func() context.Context { return context.Background() })
	for n := 0; !stop.Load() && (n < 2000 || seen.Load() < 100); n++ {
		s.Run(context.Background(), c, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
	}
	stop.Store(true)
	wg.Wait()
}
