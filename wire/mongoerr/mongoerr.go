// Package mongoerr is the one table of server errors: codes, names, labels, and the shape they take in a reply.
package mongoerr

//go:generate go run ./gen

import (
	"errors"
	"fmt"
)

// Code is a server error code. Named ones are constants of this package; location codes (five digits and more) are
// written as numbers where they are raised.
type Code int32

// Error is an error as a client sees it.
type Error struct {
	Code    Code
	Message string
	Labels  []string // errorLabels of the reply
	Details []byte   // a raw document whose elements are added to the reply's top level (errInfo, keyPattern, …)
}

// New makes an error with a fixed message.
func New(c Code, msg string) *Error { return &Error{Code: c, Message: msg} }

// Newf makes an error with a formatted message.
func Newf(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string { return e.Code.Name() + ": " + e.Message }

// WithLabel returns a copy of e that carries one more error label.
func (e *Error) WithLabel(label string) *Error {
	c := *e
	c.Labels = append(append([]string(nil), e.Labels...), label)
	return &c
}

// WithDetails returns a copy of e whose reply also holds the elements of doc.
func (e *Error) WithDetails(doc []byte) *Error {
	c := *e
	c.Details = doc
	return &c
}

// Prefix returns a copy of e with text put before its message, as the server does when it adds context.
func (e *Error) Prefix(text string) *Error {
	c := *e
	c.Message = text + e.Message
	return &c
}

// Is makes errors.Is(err, mongoerr.New(code, "")) compare codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// From turns any error into one a client may see: unknown ones become InternalError.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: InternalError, Message: err.Error()}
}

// CodeOf is the code of err, 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	return From(err).Code
}

// Name is the code's name; codes without one are "Location" and the number.
func (c Code) Name() string {
	if n, ok := names[c]; ok {
		return n
	}
	return fmt.Sprintf("Location%d", int32(c))
}
