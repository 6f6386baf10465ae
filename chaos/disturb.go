package chaos

import (
	"sync"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Disturber delays client commands or breaks their connections. It does nothing until a step requests it, and never
// affects handshakes, the monitoring commands of drivers, or shoalChaos.
type Disturber struct {
	mu struct {
		sync.Mutex
		orders []order
	}
	broken sync.Map // commands after which the connection breaks
}

// order requests that a number of the next client commands be disturbed.
type order struct {
	kind  Kind
	left  int           // commands still to be disturbed
	delay time.Duration // of Delay
}

// maxDisturbed limits the number of commands that one step disturbs, and maxDelay the time that each of them waits.
const (
	maxDisturbed = 8
	maxDelay     = 2 * time.Second
)

// give adds an order to the queue.
func (d *Disturber) give(o order) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.orders = append(d.mu.orders, o)
}

// cancelAll cancels all orders.
func (d *Disturber) cancelAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.orders = nil
}

// take returns the order that applies to the next command; false if there is none.
func (d *Disturber) take() (order, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mu.orders) == 0 {
		return order{}, false
	}
	o := &d.mu.orders[0]
	out := *o
	if o.left--; o.left <= 0 {
		d.mu.orders = d.mu.orders[1:]
	}
	return out, true
}

// spared has the commands that are never disturbed: those of handshakes, monitoring and administration, and shoalChaos.
var spared = map[string]bool{
	"hello": true, "isMaster": true, "ping": true, "saslStart": true, "saslContinue": true, "authenticate": true, "endSessions": true,
	"buildInfo": true, "shoalChaos": true, "configureFailPoint": true, "shutdown": true,
}

// Before implements command.Disturber.
func (d *Disturber) Before(op *command.Op) error {
	if op.Client.InProcess || op.Client.Internal || spared[op.Req.Spec.Name] {
		return nil
	}
	o, ok := d.take()
	if !ok {
		return nil
	}
	switch o.kind {
	case Delay:
		t := time.NewTimer(o.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-op.Done():
			return op.Err()
		}
	case Cut:
		if op.Client.Close != nil {
			op.Client.Close()
		}
		return mongoerr.New(mongoerr.HostUnreachable, "the connection was broken by shoalChaos before the command ran")
	case CutAfter:
		d.broken.Store(op, nil)
	}
	return nil
}

// After implements command.Disturber.
func (d *Disturber) After(op *command.Op) {
	if _, cut := d.broken.LoadAndDelete(op); cut && op.Client.Close != nil {
		op.Client.Close()
	}
}

// doc returns an order in the form of a step's field do, which orderOf parses.
func (o order) doc() []byte {
	f := []value.Field{value.F(string(o.kind), value.NewInt32(int32(o.left)))}
	if o.kind == Delay {
		f = append(f, value.F("delayMS", value.NewInt64(o.delay.Milliseconds())))
	}
	return value.Doc(f...)
}

func orderOf(kind Kind, doc []byte) (order, error) {
	o := order{kind: kind}
	n, ok := value.Lookup(doc, string(kind)).AsInt64()
	ms, _ := value.Lookup(doc, "delayMS").AsInt64()
	if o.left, o.delay = int(n), time.Duration(ms)*time.Millisecond; !ok || n < 1 || n > maxDisturbed || ms < 0 || o.delay > maxDelay {
		return o, mongoerr.Newf(mongoerr.BadValue, "a step '%s' disturbs 1 to %d commands, by at most %d milliseconds", kind, maxDisturbed, maxDelay.Milliseconds())
	}
	return o, nil
}
