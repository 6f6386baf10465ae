package exec

import (
	"encoding/binary"
	"math"

	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/text"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// bindText binds a query's $text to the collection's text index.
func bindText(q *Query, c *plan.Collection) {
	if q.Matcher == nil {
		return
	}
	t, x := q.Matcher.Text(), c.TextIndex()
	if t == nil || x == nil {
		return
	}
	if i, ok := x.Handle.(*catalog.Index); ok {
		t.Bind(text.NewIndex(i.Spec.Raw))
	}
}

func (q *Query) hasText() bool { return q.Matcher != nil && q.Matcher.Text() != nil }

// textScore returns a document's text score, Missing if the query has no $text.
func (q *Query) textScore(doc []byte) value.Value {
	if !q.hasText() {
		return value.Value{}
	}
	score, _ := q.Matcher.Text().Score(doc)
	return value.NewDouble(score)
}

// scoreKeys makes sort keys for a pattern with the text score among its fields, which sorts the best first. Each
// field of the pattern contributes a part of the key.
type scoreKeys struct {
	q     *Query
	parts []*sortKeys // nil for the score
	key   []byte
}

// newScoreKeys returns nil for a pattern without the text score.
func newScoreKeys(q *Query) (*scoreKeys, error) {
	k := &scoreKeys{q: q}
	found := false
	for path, v := range value.Elements(q.Sort) {
		if v.T == value.Document {
			found = found || value.Lookup(v.Doc(), "$meta").Str() == "textScore"
			k.parts = append(k.parts, nil)
			continue
		}
		one, err := newSortKeys(value.Doc(value.F(path, v)), q.Collation.Collator())
		if err != nil {
			return nil, err
		}
		k.parts = append(k.parts, one)
	}
	if !found {
		return nil, nil
	}
	return k, nil
}

func (k *scoreKeys) of(doc []byte) ([]byte, error) {
	k.key = k.key[:0]
	for _, p := range k.parts {
		if p == nil {
			score := k.q.textScore(doc).AsFloat64() // never negative, so its bits are in order
			k.key = binary.BigEndian.AppendUint64(k.key, ^math.Float64bits(score))
			continue
		}
		part, err := p.of(doc)
		if err != nil {
			return nil, err
		}
		k.key = append(k.key, part...)
	}
	return k.key, nil
}
