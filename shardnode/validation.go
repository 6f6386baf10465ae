package shardnode

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// validationFailure is the error of a document that a validator refuses, with errInfo telling which and why.
func validationFailure(m *match.Matcher, doc []byte) error {
	info := []value.Field{value.F("failingDocumentId", value.Lookup(doc, "_id"))}
	if details := m.Explain(doc); details != nil {
		info = append(info, value.F("details", value.NewDocument(details)))
	}
	return mongoerr.New(mongoerr.DocumentValidationFailure, "Document failed validation").
		WithDetails(value.Doc(value.F("errInfo", value.NewDocument(value.Doc(info...)))))
}
