package changestream

import (
	"bytes"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckID returns an error if the stages of a pipeline have changed an event's _id, which was id: a stream could
// not resume after it. Otherwise it returns the position after what the stages have made of the event: its own
// token, or that of one of its fragments.
func CheckID(event, id []byte, token *Token) (*Token, error) {
	got := value.Lookup(event, "_id")
	if got.T == value.Document && bytes.Equal(got.Doc(), id) {
		return token, nil
	}
	if got.T == value.Document && !value.Lookup(event, "splitEvent").IsMissing() {
		if t, err := ParseToken(got.Doc()); err == nil && t.Fragment >= 0 && bytes.Equal(t.Before().Document(), id) {
			return t, nil
		}
	}
	shown := "missing"
	if !got.IsMissing() {
		shown = value.Show(got)
	}
	return nil, mongoerr.Newf(mongoerr.ChangeStreamFatalError, "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. "+
		"Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed. "+
		"Expected: %s but found: %s", value.ShowDoc(id), shown).WithLabel(mongoerr.LabelNonResumableStream)
}
