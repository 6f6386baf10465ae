package mongoerr

//go:generate go run ./gen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
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

// WithLabel returns a copy of e with one more error label.
func (e *Error) WithLabel(label string) *Error {
	c := *e
	c.Labels = append(append([]string(nil), e.Labels...), label)
	return &c
}

// WithDetails returns a copy of e whose reply also has the elements of doc.
func (e *Error) WithDetails(doc []byte) *Error {
	c := *e
	c.Details = doc
	return &c
}

// Prefix returns a copy of e with text before its message, as the server adds context.
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

// CodeOf returns the code of err, 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	return From(err).Code
}

// Name returns the code's name; codes without one are "Location" and the number.
func (c Code) Name() string {
	if n, ok := names[c]; ok {
		return n
	}
	return fmt.Sprintf("Location%d", int32(c))
}

// AppendReply appends the error document of a command's reply, fields in the server's order: errorLabels, ok, errmsg,
// code, codeName, the error's own details. $clusterTime and operationTime follow; they are added where replies are signed.
func AppendReply(dst []byte, err error) []byte {
	e := From(err)
	mark := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = appendLabels(dst, e.Labels)
	dst = append(dst, "\x01ok\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	dst = appendString(dst, "errmsg", e.Message)
	dst = appendInt32(dst, "code", int32(e.Code))
	dst = appendString(dst, "codeName", e.Code.Name())
	if len(e.Details) > 5 {
		dst = append(dst, e.Details[4:len(e.Details)-1]...)
	}
	return finish(dst, mark)
}

// AppendLegacyReply appends the error document of an OP_QUERY that is not a command.
func AppendLegacyReply(dst []byte, err error) []byte {
	e := From(err)
	mark := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = appendString(dst, "$err", e.Message)
	dst = appendInt32(dst, "code", int32(e.Code))
	dst = append(dst, "\x01ok\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	return finish(dst, mark)
}

func finish(dst []byte, mark int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[mark:], uint32(len(dst)-mark))
	return dst
}

func appendString(dst []byte, key, s string) []byte {
	dst = append(append(append(dst, 0x02), key...), 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s)+1))
	return append(append(dst, s...), 0)
}

func appendInt32(dst []byte, key string, n int32) []byte {
	dst = append(append(append(dst, 0x10), key...), 0)
	return binary.LittleEndian.AppendUint32(dst, uint32(n))
}

func appendLabels(dst []byte, labels []string) []byte {
	if len(labels) == 0 {
		return dst
	}
	dst = append(dst, "\x04errorLabels\x00"...)
	mark := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for i, l := range labels {
		dst = appendString(dst, strconv.Itoa(i), l)
	}
	return finish(dst, mark)
}
