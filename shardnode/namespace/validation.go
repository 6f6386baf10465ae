package namespace

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// validationInfo returns the errInfo of a document that a validator rejects: its _id, and why.
func validationInfo(m *match.Matcher, doc []byte) []byte {
	info := []value.Field{value.F("failingDocumentId", value.Lookup(doc, "_id"))}
	if details := m.Explain(doc); details != nil {
		info = append(info, value.F("details", value.NewDocument(details)))
	}
	return value.Doc(info...)
}

// validationFailure returns the error of such a document.
func validationFailure(info []byte) error {
	return mongoerr.New(mongoerr.DocumentValidationFailure, "Document failed validation").
		WithDetails(value.Doc(value.F("errInfo", value.NewDocument(info))))
}
