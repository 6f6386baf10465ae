package shardnode

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// validationFailure is the error of a document that a validator refuses, with errInfo telling which and why.
func validationFailure(m *match.Matcher, doc []byte) error {
	info := []value.Field{value.F("failingDocumentId", value.Lookup(doc, "_id"))}
	return mongoerr.New(mongoerr.DocumentValidationFailure, "Document failed validation").
		WithDetails(value.Doc(value.F("errInfo", value.NewDocument(value.Doc(info...)))))
}
