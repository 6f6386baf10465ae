package console

import (
	"errors"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// redacted takes the place of values that came from clients.
const redacted = "###"

// SetRedaction turns redaction on and off: the parameter redactClientLogData. With it, documents, and texts of errors that
// clients caused, are logged without values; the names of fields and of errors remain.
func (l *Log) SetRedaction(on bool) { l.redact.Store(on) }

// Redacts reports whether values that came from clients are left out.
func (l *Log) Redacts() bool { return l.redact.Load() }

// redactDocument returns a document, or an array, with every value in it replaced; nested ones keep their field names.
func redactDocument(doc []byte) []byte {
	out, mark := value.Begin(make([]byte, 0, len(doc)))
	for k, v := range value.Elements(doc) {
		out = value.Append(out, k, redactValue(v))
	}
	return value.End(out, mark)
}

func redactValue(v value.Value) value.Value {
	switch v.T {
	case value.Document:
		return value.NewDocument(redactDocument(v.Doc()))
	case value.Array:
		return value.NewArray(redactDocument(v.Doc()))
	}
	return value.NewString(redacted)
}

// redactError returns the text of an error without what may come from a client. Errors of the system have no such parts.
func redactError(err error) string {
	var e *mongoerr.Error
	if errors.As(err, &e) {
		return e.Code.Name() + ": " + redacted
	}
	return err.Error()
}

// clientAttrs are the attributes of an operation's line that have a client's values.
var clientAttrs = map[string]bool{"command": true, "originatingCommand": true, "errMsg": true}

// redactAttrs returns the attributes of an operation's line without a client's values.
func redactAttrs(attrs []byte) []byte {
	out, mark := value.Begin(make([]byte, 0, len(attrs)))
	for k, v := range value.Elements(attrs) {
		if clientAttrs[k] {
			v = redactValue(v)
		}
		out = value.Append(out, k, v)
	}
	return value.End(out, mark)
}
