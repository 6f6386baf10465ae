package update

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// dice makes documents and operator updates at random, of few names and values, so that paths often meet.
type dice struct{ *rand.Rand }

var diceNames = []string{"a", "b", "c", "0", "1", "2", "9", "10", "1a", "02"}

func (d dice) value(depth int) value.Value {
	switch k := d.IntN(10); {
	case depth > 0 && k < 3:
		return value.NewDocument(d.doc(depth - 1))
	case depth > 0 && k < 7:
		vs := make([]value.Value, d.IntN(5))
		for i := range vs {
			vs[i] = d.value(depth - 1)
		}
		return value.NewArray(value.ArrayOf(vs...))
	case k == 7:
		return value.NewString("x")
	}
	return value.NewInt32(int32(d.IntN(4)))
}

func (d dice) doc(depth int) []byte {
	names := slices.Clone(diceNames)
	d.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	var fs []value.Field
	for _, n := range names[:d.IntN(5)] {
		fs = append(fs, value.F(n, d.value(depth)))
	}
	return value.Doc(fs...)
}

func (d dice) path(dynamic bool) string {
	parts := []string{diceNames[d.IntN(len(diceNames))]}
	for d.IntN(3) > 0 && len(parts) < 4 {
		next := diceNames[d.IntN(len(diceNames))]
		if k := d.IntN(8); dynamic && k < 3 {
			next = []string{"$", "$[]", "$[i]"}[k]
		}
		parts = append(parts, next)
	}
	return strings.Join(parts, ".")
}

func (d dice) push() value.Value {
	each := make([]value.Value, d.IntN(3))
	for i := range each {
		each[i] = d.value(1)
	}
	fs := []value.Field{value.F("$each", value.NewArray(value.ArrayOf(each...)))}
	if d.IntN(3) == 0 {
		fs = append(fs, value.F("$slice", value.NewInt32(int32(d.IntN(9)-4))))
	}
	if d.IntN(3) == 0 {
		fs = append(fs, value.F("$position", value.NewInt32(int32(d.IntN(9)-4))))
	}
	if d.IntN(3) == 0 {
		fs = append(fs, value.F("$sort", value.NewInt32(int32(d.IntN(2)*2-1))))
	}
	return value.NewDocument(value.Doc(fs...))
}

func (d dice) update() value.Value {
	one := value.NewInt32(1)
	operands := map[string]func() value.Value{
		"$set": func() value.Value { return d.value(2) }, "$unset": func() value.Value { return one },
		"$inc": func() value.Value { return value.NewInt32(int32(d.IntN(2))) }, "$mul": func() value.Value { return value.NewInt32(2) },
		"$min": func() value.Value { return d.value(1) }, "$max": func() value.Value { return d.value(1) },
		"$bit":         func() value.Value { return value.NewDocument(value.Doc(value.F("xor", one))) },
		"$currentDate": func() value.Value { return value.NewBool(true) },
		"$push":        d.push, "$addToSet": func() value.Value { return d.value(1) },
		"$pop":    func() value.Value { return value.NewInt32(int32(d.IntN(2)*2 - 1)) },
		"$pull":   func() value.Value { return value.NewInt32(int32(d.IntN(4))) },
		"$rename": func() value.Value { return value.NewString(d.path(false)) },
	}
	names := make([]string, 0, len(operands))
	for name := range operands {
		names = append(names, name)
	}
	slices.Sort(names)
	var fs []value.Field
	for _, i := range d.Perm(len(names))[:1+d.IntN(4)] {
		var args []value.Field
		for range 1 + d.IntN(2) {
			args = append(args, value.F(d.path(names[i] != "$rename"), operands[names[i]]()))
		}
		fs = append(fs, value.F(names[i], value.NewDocument(value.Doc(args...))))
	}
	return value.NewDocument(value.Doc(fs...))
}

// The entries of operator updates make the new document of the old one, and of the new one itself, and never tell that an array was
// truncated, which is for updates by pipelines.
func TestEntriesOfRandomUpdates(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	d := dice{rand.New(rand.NewPCG(seed, 0))}
	filters := []value.Value{value.NewDocument(value.Doc(value.F("i", value.NewDocument(value.Doc(value.F("$gte", value.NewInt32(1)))))))}
	changes, ctx := 0, &Context{Positional: 1, NowMS: 1700000000000}
	for n := 0; changes < 5000; n++ {
		if n > 1_000_000 {
			t.Fatalf("only %d updates of %d change a document", changes, n)
		}
		u := d.update()
		opts := Options{}
		if strings.Contains(value.Show(u), "$[i]") {
			opts.ArrayFilters, opts.HasFilters = filters, true
		}
		up, err := Compile(u, opts)
		if err != nil {
			continue
		}
		ctx.Doc = d.doc(3)
		now, changed, err := up.Apply(ctx)
		if err != nil || !changed {
			continue
		}
		changes++
		entry := up.OplogEntry(ctx, now)
		checkDelta(t, applyTwice(t, ctx.Doc, entry, now))
		if t.Failed() {
			t.Fatalf("%s of %s is logged as %s", value.Show(u), show(ctx.Doc), show(entry))
		}
	}
}

// checkDelta checks that a delta is not empty at any level and truncates nothing.
func checkDelta(t *testing.T, diff []byte) {
	t.Helper()
	changes := 0
	for k, v := range value.Elements(diff) {
		switch {
		case k == "a":
			continue
		case k == "l":
			t.Errorf("an array is truncated: %s", show(diff))
		case k[0] == 's':
			checkDelta(t, v.Doc())
		case len(k) == 1 && len(v.Doc()) <= 5:
			t.Errorf("%s is empty: %s", k, show(diff))
		}
		changes++
	}
	if changes == 0 {
		t.Errorf("no change: %s", show(diff))
	}
}

// Names that are numbers and others that begin with a digit have one order. Without one, an update of these paths had two nodes for a name, and added the field twice.
func TestOrderOfNames(t *testing.T) {
	names := []string{"", "-1", "9", "10", "010", "1a", "2", "02", "a", "9z", "0", "00", " "}
	for _, a := range names {
		for _, b := range names {
			if (compareNames(a, b) == 0) != (a == b) || compareNames(a, b) < 0 != (compareNames(b, a) > 0) {
				t.Errorf("%q, %q: %d, and %d the other way", a, b, compareNames(a, b), compareNames(b, a))
			}
			for _, c := range names {
				if compareNames(a, b) < 0 && compareNames(b, c) < 0 && compareNames(a, c) >= 0 {
					t.Errorf("%q < %q < %q, and %d", a, b, c, compareNames(a, c))
				}
			}
		}
	}
}
