package cluster

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// logLevel takes numbers beyond its range: a fraction is dropped, and a level that is too high means the highest one. What it refuses it quotes.
func TestLogLevelOutOfRange(t *testing.T) {
	for _, tc := range []struct {
		v    value.Value
		want int64
		err  string
	}{
		{value.NewInt32(3), 3, ""}, {value.NewDouble(1.9), 1, ""}, {value.NewDouble(-0.5), 0, ""}, {value.NewBool(true), 1, ""}, {value.NewBool(false), 0, ""},
		{value.NewInt32(6), 5, ""}, {value.NewInt64(99), 5, ""},
		{value.NewInt32(-1), 0, "Invalid value for logLevel: logLevel: -1"},
		{value.NewInt64(1 << 31), 0, "Invalid value for logLevel: logLevel: 2147483648"},
		{value.NewString("nope"), 0, `Invalid value for logLevel: logLevel: "nope"`},
		{value.NewArray(value.ArrayOf(value.NewInt32(1), value.NewInt32(2))), 0, "Invalid value for logLevel: logLevel: [ 1, 2 ]"},
		{value.NewDocument(value.Doc(value.F("a", value.NewInt32(1)))), 0, "Invalid value for logLevel: logLevel: { a: 1 }"},
		{value.NewNull(), 0, "Invalid value for logLevel: logLevel: null"},
	} {
		p := NewParams()
		_, err := p.SetRuntime([]value.Field{value.F("logLevel", tc.v)})
		if got := p.Int("logLevel"); got != tc.want {
			t.Errorf("%s becomes %d, want %d", value.Show(tc.v), got, tc.want)
		}
		text := ""
		if err != nil {
			text = mongoerr.From(err).Message
		}
		if text != tc.err || err != nil && mongoerr.CodeOf(err) != mongoerr.BadValue {
			t.Errorf("%s: %v, want %s", value.Show(tc.v), err, tc.err)
		}
	}
}
