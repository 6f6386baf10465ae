package mapreduce

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestData runs testdata: "docs" defines the collection, "mapreduce" runs a command (and prints its pipeline's results,
// ordered by key), "pipeline" prints the stages. Errors show their code.
func TestData(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var docs [][]byte
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "docs" {
				docs = valuetest.Docs(t, "["+strings.ReplaceAll(d.Input, "\n", ",")+"]")
				return ""
			}
			cmd := valuetest.Doc(t, d.Input)
			c, err := Parse("c", func(name string) value.Value { return value.Lookup(cmd, name) })
			if err != nil {
				return showError(err)
			}
			if d.Cmd == "pipeline" {
				return lines(t, value.Values(c.Pipeline("db").Doc()))
			}
			out, err := run(c, docs)
			if err != nil {
				return showError(err)
			}
			return lines(t, out)
		})
	})
}

func run(c *Command, docs [][]byte) (out []value.Value, err error) {
	env := &expr.Env{}
	env.SetConstants(c.Constants().Doc())
	stages := append(value.Values(c.Pipeline("db").Doc()), one("$sort", one("_id", value.NewInt32(1))))
	p, err := agg.Parse(array(stages...), &agg.Options{NS: agg.Namespace{DB: "db", Coll: "c"}, Scope: expr.NewScope(env)})
	if err != nil {
		return nil, err
	}
	src, err := p.Run(agg.NewSliceSource(docs))
	if err != nil {
		return nil, err
	}
	defer src.Close()
	for {
		d, ok, err := src.Next(context.Background())
		if err != nil || !ok {
			return out, err
		}
		out = append(out, value.NewDocument(d.Raw).Clone())
	}
}

func lines(t *testing.T, docs []value.Value) string {
	var b strings.Builder
	for _, d := range docs {
		js, err := bson.MarshalExtJSON(bson.Raw(d.Doc()), false, false)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", js)
	}
	return b.String()
}

func showError(err error) string {
	e := mongoerr.From(err)
	return fmt.Sprintf("error %d %s: %s\n", e.Code, e.Code.Name(), e.Message)
}
