package write

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func nested(depth int) []byte {
	doc := value.Doc(value.F("leaf", value.NewInt32(1)))
	for range depth {
		doc = value.Doc(value.F("n", value.NewDocument(doc)))
	}
	return doc
}

func TestPrepareInsert(t *testing.T) {
	now := func() uint64 { return 7<<32 | 1 }
	id := value.F("_id", value.NewInt32(1))
	a := value.F("a", value.NewInt32(2))
	empty := value.F("t", value.NewTimestampU64(0))
	filled := value.F("t", value.NewTimestampU64(7<<32|1))
	for _, c := range []struct {
		name     string
		doc      []byte
		keep     bool
		want     []byte
		wantCode mongoerr.Code
	}{
		{"as it is", value.Doc(id, a), false, value.Doc(id, a), 0},
		{"_id comes first", value.Doc(a, id), false, value.Doc(id, a), 0},
		{"empty timestamp is filled", value.Doc(id, empty), false, value.Doc(id, filled), 0},
		{"empty timestamp is kept", value.Doc(id, empty), true, value.Doc(id, empty), 0},
		{"array as _id", value.Doc(value.F("_id", value.NewArray(value.ArrayOf()))), false, nil, mongoerr.InvalidIdField},
		{"two _ids", value.Doc(id, id), false, nil, mongoerr.BadValue},
		{"dollar in _id", value.Doc(value.F("_id", value.NewDocument(value.Doc(value.F("$x", value.NewInt32(1)))))), false, nil, mongoerr.DollarPrefixedFieldName},
		{"too deep", value.Doc(id, value.F("d", value.NewDocument(nested(maxDepth+5)))), false, nil, mongoerr.Overflow},
	} {
		got, err := prepareInsert(c.doc, c.keep, now)
		if mongoerr.CodeOf(err) != c.wantCode || (c.wantCode == 0 && string(got) != string(c.want)) {
			t.Errorf("%s: %s, %v", c.name, value.ShowDoc(got), err)
		}
	}
	made, err := prepareInsert(value.Doc(a), false, now)
	if v := value.Lookup(made, "_id"); err != nil || v.T != value.ObjectID {
		t.Errorf("no _id was made: %s, %v", value.ShowDoc(made), err)
	}
}

func BenchmarkPrepareInsert(b *testing.B) {
	doc := value.Doc(value.F("_id", value.NewInt32(1)), value.F("name", value.NewString("a name of some length")),
		value.F("n", value.NewInt64(5)), value.F("x", value.NewDouble(1.5)), value.F("tags", value.NewArray(value.ArrayOf(value.NewString("a"), value.NewString("b")))),
		value.F("pad", value.NewString("0123456789012345678901234567890123456789012345678901234567890123456789")))
	for b.Loop() {
		if _, err := prepareInsert(doc, false, nil); err != nil {
			b.Fatal(err)
		}
	}
}
