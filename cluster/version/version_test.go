package version

import (
	"math"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func chunk(major, minor uint32, epoch byte, ts uint64) Chunk {
	return Chunk{Major: major, Minor: minor, Epoch: Epoch{epoch}, Timestamp: ts}
}

// TestOrderOfVersions compares each version of a list with each other one: one that is listed later within an incarnation, or is of a later
// incarnation, is newer, and the reverse comparison agrees.
func TestOrderOfVersions(t *testing.T) {
	inOrder := []Chunk{
		chunk(0, 0, 1, 5), // a shard that has no chunk
		chunk(0, 1, 1, 5),
		chunk(1, 0, 1, 5),
		chunk(1, 1, 1, 5),
		chunk(1, math.MaxUint32, 1, 5),
		chunk(2, 0, 1, 5),
		chunk(math.MaxUint32, math.MaxUint32, 1, 5),
		chunk(0, 0, 2, 6), // dropped and created again: newer, whatever its major
		chunk(1, 0, 2, 6),
		chunk(1, 0, 1, 7), // an epoch alone says nothing about the order
		chunk(1, 0, 3, ^uint64(0)-1),
	}
	for i, a := range inOrder {
		for j, b := range inOrder {
			want := order(uint64(i), uint64(j))
			if got := a.Compare(b); got != want {
				t.Errorf("%v against %v: %d, want %d", a, b, got, want)
			}
			if same := a.Timestamp == b.Timestamp && a.Epoch == b.Epoch; a.SameGeneration(b) != same {
				t.Errorf("%v and %v: SameGeneration is %v", a, b, !same)
			}
		}
	}
	for _, a := range []Chunk{chunk(1, 0, 1, 5), chunk(0, 0, 1, 5)} {
		for _, b := range []Chunk{Unsharded, Ignored, chunk(1, 0, 2, 5)} {
			if a.Compare(b) != Incomparable || b.Compare(a) != Incomparable {
				t.Errorf("%v against %v: %d and %d, want %d", a, b, a.Compare(b), b.Compare(a), Incomparable)
			}
		}
	}
	if Unsharded.Compare(Unsharded) != Same || Ignored.Compare(Ignored) != Same || Unsharded.Compare(Ignored) != Incomparable {
		t.Error("the special versions do not compare as the same, or as each other")
	}
}

func TestKindsOfVersions(t *testing.T) {
	for _, c := range []struct {
		v                Chunk
		sharded, ignored bool
	}{
		{Unsharded, false, false},
		{Ignored, false, true},
		{Ignored.WithCombined(1 << 32), false, true},
		{chunk(0, 0, 1, 5), true, false},
		{chunk(2, 1, 0, 5), true, false},
	} {
		if c.v.IsSharded() != c.sharded || c.v.IsIgnored() != c.ignored {
			t.Errorf("%v: sharded %v, ignored %v", c.v, c.v.IsSharded(), c.v.IsIgnored())
		}
	}
}

func TestArithmetic(t *testing.T) {
	v := chunk(2, 7, 1, 5)
	for _, c := range []struct {
		name string
		got  Chunk
		want Chunk
	}{
		{"a move", v.IncMajor(), chunk(3, 0, 1, 5)},
		{"a split", v.IncMinor(), chunk(2, 8, 1, 5)},
		{"another place of the incarnation", v.WithCombined(9<<32 | 4), chunk(9, 4, 1, 5)},
		{"its own place", v.WithCombined(v.Combined()), v},
		{"the highest numbers", v.WithCombined(^uint64(0)), chunk(math.MaxUint32, math.MaxUint32, 1, 5)},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
		if c.got.Combined() != uint64(c.want.Major)<<32+uint64(c.want.Minor) {
			t.Errorf("%s: Combined is %x", c.name, c.got.Combined())
		}
	}
	if v != chunk(2, 7, 1, 5) {
		t.Errorf("the version itself has become %v", v)
	}
	if want := "2|7||010000000000000000000000||Timestamp(1, 5)"; chunk(2, 7, 1, 1<<32|5).String() != want {
		t.Errorf("%v, want %s", chunk(2, 7, 1, 1<<32|5), want)
	}
}

func TestVersionsAsDocuments(t *testing.T) {
	for _, v := range []Chunk{Unsharded, Ignored, chunk(2, 7, 1, 1<<32|5), chunk(math.MaxUint32, math.MaxUint32, 0xff, ^uint64(0)-1)} {
		if got, err := ParseChunk(value.NewDocument(v.Doc())); err != nil || got != v {
			t.Errorf("%v: read back as %v, %v", v, got, err)
		}
	}
	for _, v := range []Database{{}, {UUID: [16]byte{1, 15: 2}, Timestamp: 1<<32 | 5, LastMod: 1}, {Timestamp: ^uint64(0), LastMod: math.MaxInt32}} {
		if got, err := ParseDatabase(value.NewDocument(v.Doc())); err != nil || got != v {
			t.Errorf("%v: read back as %v, %v", v, got, err)
		}
	}
	// lastMod may be any number: shells send doubles.
	d := value.Doc(value.F("uuid", value.NewBinary(4, make([]byte, 16))), value.F("timestamp", value.NewTimestampU64(5)), value.F("lastMod", value.NewDouble(3)))
	if got, err := ParseDatabase(value.NewDocument(d)); err != nil || got.LastMod != 3 || got.Timestamp != 5 {
		t.Errorf("read as %v, %v", got, err)
	}
}

// TestMalformedVersions gives the parsers documents in which one field is missing or of another type.
func TestMalformedVersions(t *testing.T) {
	chunks := []value.Field{value.F("e", value.NewObjectID([12]byte{1})), value.F("t", value.NewTimestampU64(5)), value.F("v", value.NewTimestampU64(1<<32))}
	databases := []value.Field{value.F("uuid", value.NewBinary(4, make([]byte, 16))), value.F("timestamp", value.NewTimestampU64(5)), value.F("lastMod", value.NewInt32(1))}
	wrong := map[string][]value.Value{
		"e":         {value.NewString("x"), value.NewNull(), value.NewBinary(0, make([]byte, 12))},
		"t":         {value.NewInt64(5), value.NewDateTime(5)},
		"v":         {value.NewInt64(1 << 32), value.NewNull()},
		"uuid":      {value.NewString("0123456789abcdef"), value.NewBinary(4, make([]byte, 15)), value.NewBinary(4, make([]byte, 17))},
		"timestamp": {value.NewInt64(5), value.NewNull(), value.NewBool(true)},
		"lastMod":   {value.NewString("1"), value.NewDouble(1.5), value.NewInt64(1<<32 + 1), value.NewInt64(math.MinInt32 - 1), value.NewDouble(math.NaN())},
	}
	for _, kind := range []struct {
		fields []value.Field
		parse  func(value.Value) error
	}{
		{chunks, func(v value.Value) error { _, err := ParseChunk(v); return err }},
		{databases, func(v value.Value) error { _, err := ParseDatabase(v); return err }},
	} {
		if err := kind.parse(value.NewDocument(value.Doc(kind.fields...))); err != nil {
			t.Fatal(err)
		}
		for i, f := range kind.fields {
			without := append(append([]value.Field{}, kind.fields[:i]...), kind.fields[i+1:]...)
			if err := kind.parse(value.NewDocument(value.Doc(without...))); mongoerr.CodeOf(err) != mongoerr.FailedToParse {
				t.Errorf("without %s: %v", f.Key, err)
			}
			for _, v := range wrong[f.Key] {
				bad := append([]value.Field{}, kind.fields...)
				bad[i].Val = v
				if err := kind.parse(value.NewDocument(value.Doc(bad...))); mongoerr.CodeOf(err) != mongoerr.FailedToParse {
					t.Errorf("%s is %s: %v", f.Key, value.Show(v), err)
				}
			}
		}
		for _, v := range []value.Value{{}, value.NewNull(), value.NewInt32(1), value.NewArray(value.ArrayOf())} {
			if err := kind.parse(v); mongoerr.CodeOf(err) != mongoerr.TypeMismatch {
				t.Errorf("%s: %v", value.Show(v), err)
			}
		}
	}
}

func TestOrderOfDatabaseVersions(t *testing.T) {
	at := func(uuid byte, ts uint64, n int32) Database {
		return Database{UUID: [16]byte{uuid}, Timestamp: ts, LastMod: n}
	}
	for _, c := range []struct {
		name string
		a, b Database
		want Order
	}{
		{"the same", at(1, 5, 2), at(1, 5, 2), Same},
		{"its primary shard has changed", at(1, 5, 2), at(1, 5, 3), Older},
		{"dropped and created again", at(1, 5, 9), at(2, 6, 1), Older},
		{"two databases of one time", at(1, 5, 1), at(2, 5, 2), Incomparable},
		{"a new incarnation may have the same UUID", at(1, 6, 1), at(1, 5, 1), Newer},
	} {
		back := map[Order]Order{Older: Newer, Newer: Older}
		reverse, ordered := back[c.want]
		if !ordered {
			reverse = c.want
		}
		if got := c.a.Compare(c.b); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if got := c.b.Compare(c.a); got != reverse {
			t.Errorf("%s, reversed: %d, want %d", c.name, got, reverse)
		}
	}
	if !(Database{}).IsFixed() || at(1, 5, 1).IsFixed() {
		t.Error("IsFixed is true for a database that can move, or false for admin")
	}
}
