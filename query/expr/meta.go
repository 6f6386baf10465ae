package expr

import "github.com/shoaldb/shoal/query/value"

// metaNode is $meta: it reads metadata that the plan provides with the document.
type metaNode struct{ kind string }

func (m *metaNode) eval(f *Frame) (value.Value, error) {
	if f.meta == nil {
		return value.Value{}, nil
	}
	return f.meta.Meta(m.kind), nil
}
func (m *metaNode) visit(fn func(node)) { fn(m) }
func (m *metaNode) serialize() value.Value {
	return value.NewDocument(value.Doc(value.F("$meta", value.NewString(m.kind))))
}
