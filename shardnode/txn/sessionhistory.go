package txn

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// History returns the records of the sessions with retryable writes, of those that wrote after a time. A session may have several,
// with different statements.
func (m *Manager) History(since storage.Timestamp) [][]byte {
	t := &m.retries
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([][]byte, 0, len(t.mu.sessions)+1)
	if h := t.mu.hole; h.matters(m.Now()) {
		out = append(out, h.record())
	}
	for _, s := range t.mu.sessions {
		s.mu.Lock()
		if h := s.newest(); h.torn || len(h.runs) > 0 && h.last.TS >= since {
			for _, part := range h.statements() {
				out = append(out, s.withStatements(part))
			}
		}
		s.mu.Unlock()
	}
	return out
}

// WithImage adds to a record the reply of the session's findAndModify, if that is stored.
func (m *Manager) WithImage(rec []byte) ([]byte, error) {
	image, err := m.Docs.Get(ImagesNS, value.Lookup(rec, "_id"))
	if err != nil {
		return nil, err
	}
	if image != nil && value.SafeInt64(value.Lookup(image, "txnNum")) == value.SafeInt64(value.Lookup(rec, "txnNum")) {
		rec = value.WithField(rec, "image", value.NewDocument(image))
	}
	return rec, nil
}
