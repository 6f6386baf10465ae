package write

import "github.com/shoaldb/shoal/query/value"

// sampledWrite is the sampling state of a statement.
type sampledWrite struct {
	id   value.Value // the sample's; Missing if the statement is not sampled
	on   bool        // whether its changes are recorded
	diff []byte      // the fields of the document that it has changed
}

// recordsDiff reports whether a statement's changes are recorded: it was sampled by this server or by a router. A client's sampleId does
// not count.
func (w *Command) recordsDiff(st *statement) bool {
	if st.sampled.id.T != value.Binary || st.multi || st.u.IsMissing() {
		return false
	}
	c := w.Op.Client
	st.sampled.on = w.writer.Service.Sampler != nil && (w.Op.Req.Sampled || c.InProcess || c.Internal)
	return st.sampled.on
}

// noteDiff records the fields that a sampled statement has changed.
func (w *Command) noteDiff(ns string, st *statement) {
	if c := w.Catalog().Lookup(ns); c != nil && len(st.sampled.diff) > 5 {
		w.writer.Service.Sampler.NoteDiff(ns, c.UUID, st.sampled.id, st.sampled.diff)
	}
}
