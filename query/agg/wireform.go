package agg

import "github.com/shoaldb/shoal/query/value"

// Wire gives the stages as an array that Parse reads back: what a router sends to shards. It differs from Serialize where
// explain shows a stage in a form of its own.
func (p *Pipeline) Wire() value.Value {
	dst, mark := value.Begin(nil)
	n := 0
	add := func(v value.Value) {
		dst = value.AppendIndex(dst, n, v)
		n++
	}
	for _, s := range p.stages {
		if sort, ok := s.(*sortStage); ok {
			add(doc(f("$sort", value.NewDocument(sort.pattern.Spec()))))
			if sort.limit > 0 {
				add(doc(f("$limit", value.NewInt64(sort.limit))))
			}
			continue
		}
		add(stageDocument(s))
	}
	return value.NewArray(value.End(dst, mark))
}
