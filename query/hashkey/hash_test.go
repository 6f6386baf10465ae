package hashkey

import (
	"math"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func TestKnownHashes(t *testing.T) {
	d := func(s string) value.Value {
		v, err := value.ParseDecimal128(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	const one = 5902408780260971510 // of {x: 1} in the manual's chunk listings
	for _, v := range []value.Value{value.NewInt32(1), value.NewInt64(1), value.NewDouble(1), value.NewDouble(1.9), d("1"), d("1.999"), d("1.0E0")} {
		if got := Hash(v); got != one {
			t.Errorf("Hash(%s %v) = %d", v.T.Name(), v, got)
		}
	}
	if Hash(value.NewDouble(math.NaN())) != Hash(value.NewInt32(0)) {
		t.Error("NaN does not hash as 0")
	}
	if Hash(value.NewDouble(math.Inf(1))) != Hash(value.NewInt64(math.MaxInt64)) {
		t.Error("infinity does not hash as the greatest long")
	}
	if Hash(value.Value{}) != Hash(value.NewNull()) || Hash(value.NewNull()) == Hash(value.NewUndefined()) {
		t.Error("missing, null and undefined")
	}
}

func TestHashTakesNoMemory(t *testing.T) {
	for _, v := range []value.Value{value.NewObjectID([12]byte{1}), value.NewInt32(1), value.NewInt64(-1), value.NewDouble(2.5), value.NewString("abc"), value.NewNull()} {
		if n := testing.AllocsPerRun(100, func() { Hash(v) }); n >= 1 {
			t.Errorf("the hash of a value of type %v takes %v allocations", v.T, n)
		}
	}
}
