package bsontext

import (
	"math"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func TestText(t *testing.T) {
	for want, v := range map[string]value.Value{
		"5.0": value.NewDouble(5), "1.5": value.NewDouble(1.5), "-inf.0": value.NewDouble(math.Inf(-1)), "nan.0": value.NewDouble(math.NaN()),
		"5": value.NewInt64(5), `"a"`: value.NewString("a"), "[ 1, 2 ]": value.NewArray(value.ArrayOf(value.NewInt32(1), value.NewInt32(2))),
		"[]": value.NewArray(value.ArrayOf()), "{}": value.NewDocument(value.Doc()), "new Date(-5)": value.NewDateTime(-5),
		`{ a: { b: null }, c: MinKey }`: value.NewDocument(value.Doc(value.F("a", value.NewDocument(value.Doc(value.F("b", value.NewNull())))), value.F("c", value.NewMinKey()))),
		"Timestamp(1, 2)":               value.NewTimestamp(1, 2), "ObjectId('010000000000000000000000')": value.NewObjectID([12]byte{1}),
		"BinData(0, 6162)": value.NewBinary(0, []byte("ab")), "/^a/i": value.NewRegex("^a", "i"), "1e+30": value.NewDouble(1e30), "true": value.NewBool(true),
	} {
		if got := Value(v); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
