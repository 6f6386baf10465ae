package update

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzUpdate: no update may do worse than fail to compile or to apply; its result is a document, which the oplog entry makes, too.
func FuzzUpdate(f *testing.F) {
	names := []string{"$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$setOnInsert", "$currentDate", "$addToSet", "$push", "$pull", "$pullAll", "$pop", "$bit", "$each",
		"$position", "$slice", "$sort", "$type", "and", "or", "xor", "$in", "$gt", "a.$[]", "a.$[i].b", "b.$", "b.0", "b.$[i]", "$replaceWith", "$project", "$addFields", "$add", "$elemMatch"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		u := value.NewDocument(g.Doc())
		if len(in) > 0 && in[0]%5 == 0 {
			u = g.Array()
		}
		var filters []value.Value
		if len(in) > 1 && in[1]%2 == 0 {
			filters = []value.Value{value.NewDocument(value.Doc(value.F("i", g.Value())))}
		}
		up, err := Compile(u, Options{ArrayFilters: filters, HasFilters: filters != nil})
		if err != nil {
			return
		}
		up.Paths()
		for _, d := range valuetest.Subjects() {
			ctx := &Context{Doc: d, Positional: 0, NowMS: 1, ClusterTime: 1 << 32}
			out, changed, err := up.Apply(ctx)
			if err == nil && out != nil {
				valuetest.JSON(t, out)
			}
			if err == nil && changed && up.form == operators {
				applyTwice(t, d, up.OplogEntry(ctx, out), out)
			}
		}
		_, _ = up.NewUpsertDocument(value.Doc(value.F("a", value.NewInt32(1))), &Context{Insert: true, Positional: -1}, func() value.Value { return value.NewInt32(9) })
	})
}
