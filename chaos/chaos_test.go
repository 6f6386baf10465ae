package chaos

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Two plans of one seed draw the same steps, and each profile draws all of its kinds and no others.
func TestPlansOfOneSeed(t *testing.T) {
	for _, p := range Profiles {
		a, b, other := NewPlan(p, 7, 0), NewPlan(p, 7, 0), NewPlan(p, 8, 0)
		kinds, differ := make(map[Kind]int), false
		var sum time.Duration
		for range 2000 {
			x, y := a.next(), b.next()
			if x != y {
				t.Fatalf("%s: %v and %v", p.Name, x, y)
			}
			differ = differ || x != other.next()
			kinds[x.kind]++
			sum += x.gap
		}
		if !differ {
			t.Errorf("%s: another seed draws the same", p.Name)
		}
		if mean := sum / 2000; mean < p.Pace*9/10 || mean > p.Pace*11/10 {
			t.Errorf("%s: a step each %v, want %v", p.Name, mean, p.Pace)
		}
		for _, s := range p.shares {
			if kinds[s.kind] == 0 {
				t.Errorf("%s never draws %s", p.Name, s.kind)
			}
			delete(kinds, s.kind)
		}
		if len(kinds) > 0 {
			t.Errorf("%s draws %v besides", p.Name, kinds)
		}
	}
}

// A step that is read from a log is one that could have been drawn: the log, a file, cannot bring in other commands.
func TestStepsOfALog(t *testing.T) {
	str, num := value.NewString, value.NewInt32
	step := func(kind string, do []byte, more ...value.Field) []byte {
		return value.Doc(append([]value.Field{value.F("atMS", num(5)), value.F("kind", str(kind)), value.F("do", value.NewDocument(do))}, more...)...)
	}
	move := value.Doc(value.F("moveRange", str("d.c")), value.F("toShard", str("s")))
	down := value.Doc(value.F("replSetStepDown", num(3)))
	for _, x := range []struct {
		name string
		doc  []byte
		ok   bool
	}{
		{"a move", step("move", move), true},
		{"a collection's move", step("moveCollection", value.Doc(value.F("moveCollection", str("d.c")), value.F("toShard", str("s")))), true},
		{"a primary's move", step("movePrimary", value.Doc(value.F("movePrimary", str("d")), value.F("to", str("s")))), true},
		{"a primary's move as a collection's", step("moveCollection", value.Doc(value.F("movePrimary", str("d")), value.F("to", str("s")))), false},
		{"a step-down", step("stepDown", down, value.F("on", str("s"))), true},
		{"a delay", step("delay", value.Doc(value.F("delay", num(2)), value.F("delayMS", num(10)))), true},
		{"a cut", step("cutAfter", value.Doc(value.F("cutAfter", num(1)))), true},
		{"nothing", value.Doc(), false},
		{"another command", step("move", value.Doc(value.F("dropDatabase", num(1)), value.F("moveRange", str("d.c")))), false},
		{"another kind", step("shutdown", value.Doc(value.F("shutdown", num(1)))), false},
		{"a step-down of nobody", step("stepDown", down), false},
		{"a move on a shard", step("move", move, value.F("on", str("s"))), false},
		{"a delay for ever", step("delay", value.Doc(value.F("delay", num(2)), value.F("delayMS", num(1<<30)))), false},
		{"a cut of all", step("cut", value.Doc(value.F("cut", num(1<<30)))), false},
		{"a cut of none", step("cut", value.Doc(value.F("cut", num(0)))), false},
		{"before the beginning", value.Doc(value.F("atMS", num(-1)), value.F("kind", str("move")), value.F("do", value.NewDocument(move))), false},
	} {
		s, err := ParseStep(x.doc)
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", x.name, err)
		}
		if err != nil {
			continue
		}
		if again, err := ParseStep(s.Doc()); err != nil || value.ShowDoc(again.Doc()) != value.ShowDoc(s.Doc()) {
			t.Errorf("%s: %v, %v", x.name, again, err)
		}
	}
}

func FuzzParseStep(f *testing.F) {
	f.Add(value.Doc(value.F("atMS", value.NewInt32(1)), value.F("kind", value.NewString("cut")), value.F("do", value.NewDocument(value.Doc(value.F("cut", value.NewInt32(1)))))))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if wire.Validate(doc) != nil {
			return
		}
		if s, err := ParseStep(doc); err == nil {
			if _, err := ParseStep(s.Doc()); err != nil {
				t.Errorf("a step that was read cannot be read after it is written: %v", err)
			}
		}
	})
}

// Orders are taken in turn, each for the number of commands that it states.
func TestOrdersAreTakenOnce(t *testing.T) {
	d := &Disturber{}
	d.give(order{kind: Cut, left: 2})
	d.give(order{kind: Delay, left: 1, delay: time.Millisecond})
	var got []Kind
	for {
		o, ok := d.take()
		if !ok {
			break
		}
		got = append(got, o.kind)
	}
	if len(got) != 3 || got[0] != Cut || got[1] != Cut || got[2] != Delay {
		t.Errorf("%v", got)
	}
	d.give(order{kind: Cut, left: 2})
	d.cancelAll()
	if _, ok := d.take(); ok {
		t.Error("an order was left")
	}
}
