package console

import (
	"strconv"
	"sync"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// Severity is the field s.
type Severity uint8

// The severities; D1 to D5 are Debug1 and the following ones.
const (
	SevFatal Severity = iota
	SevError
	SevWarning
	SevInfo
	SevDebug1
)

var severityNames = [...]string{"F", "E", "W", "I", "D1", "D2", "D3", "D4", "D5"}

// Entry is a line under construction. A nil Entry is one below its level: all its methods do nothing.
type Entry struct {
	log     *Log
	at      time.Time
	sev     Severity
	comp    Component
	id      int32
	ctx     string
	msg     string
	attr    []byte // JSON members, each followed by a comma
	cut     []byte // members of "truncated", as attr
	sizes   []byte // members of "size", as attr
	startup bool
}

var entries = sync.Pool{New: func() any { return &Entry{attr: make([]byte, 0, 512)} }}

// On reports whether lines of a debug level (0 for Info and above) of c are written.
func (l *Log) On(c Component, level int) bool { return int(l.levels.effective[c].Load()) >= level }

func (l *Log) entry(sev Severity, c Component, id int32, ctx, msg string) *Entry {
	e := entries.Get().(*Entry)
	*e = Entry{log: l, at: time.Now(), sev: sev, comp: c, id: id, ctx: ctx, msg: msg, attr: e.attr[:0]}
	return e
}

// Info starts a line that is always written.
func (l *Log) Info(c Component, id int32, ctx, msg string) *Entry {
	return l.entry(SevInfo, c, id, ctx, msg)
}

// Warning starts a line about something that an operator should check.
func (l *Log) Warning(c Component, id int32, ctx, msg string) *Entry {
	return l.entry(SevWarning, c, id, ctx, msg)
}

// Error starts a line about something that went wrong.
func (l *Log) Error(c Component, id int32, ctx, msg string) *Entry {
	return l.entry(SevError, c, id, ctx, msg)
}

// Fatal starts the last line before the process ends; it does not end it.
func (l *Log) Fatal(c Component, id int32, ctx, msg string) *Entry {
	return l.entry(SevFatal, c, id, ctx, msg)
}

// Debug starts a line of level 1 to 5; nil if the component's verbosity is lower.
func (l *Log) Debug(level int, c Component, id int32, ctx, msg string) *Entry {
	if !l.On(c, level) {
		return nil
	}
	return l.entry(SevDebug1+Severity(min(max(level, 1), 5)-1), c, id, ctx, msg)
}

// StartupWarning marks the line as one that getLog: "startupWarnings" lists, which mongosh shows when it connects.
func (e *Entry) StartupWarning() *Entry {
	if e != nil {
		e.startup = true
	}
	return e
}

func (e *Entry) key(k string) {
	e.attr = append(appendJSONString(e.attr, k), ':')
}

// Str adds a string.
func (e *Entry) Str(k, v string) *Entry {
	if e != nil {
		e.key(k)
		e.attr = append(appendJSONString(e.attr, v), ',')
	}
	return e
}

// Int adds a number.
func (e *Entry) Int(k string, v int64) *Entry {
	if e != nil {
		e.key(k)
		e.attr = append(strconv.AppendInt(e.attr, v, 10), ',')
	}
	return e
}

// Float adds a number.
func (e *Entry) Float(k string, v float64) *Entry {
	if e != nil {
		e.key(k)
		e.attr = append(appendJSONFloat(e.attr, v), ',')
	}
	return e
}

// Bool adds a boolean.
func (e *Entry) Bool(k string, v bool) *Entry {
	if e != nil {
		e.key(k)
		e.attr = append(strconv.AppendBool(e.attr, v), ',')
	}
	return e
}

// Millis adds a duration as a number of milliseconds, under the key with "Millis" as the real server names it.
func (e *Entry) Millis(k string, d time.Duration) *Entry { return e.Int(k+"Millis", d.Milliseconds()) }

// Strs adds a list of strings.
func (e *Entry) Strs(k string, v []string) *Entry {
	if e == nil {
		return nil
	}
	e.key(k)
	e.attr = append(e.attr, '[')
	for i, s := range v {
		if i > 0 {
			e.attr = append(e.attr, ',')
		}
		e.attr = appendJSONString(e.attr, s)
	}
	e.attr = append(e.attr, ']', ',')
	return e
}

// Err adds the text of an error under the key error.
func (e *Entry) Err(err error) *Entry {
	if e == nil || err == nil {
		return e
	}
	if e.log.Redacts() {
		return e.Str("error", redactError(err))
	}
	return e.Str("error", err.Error())
}

// ClientDoc is Doc for a document that came from a client.
func (e *Entry) ClientDoc(k string, doc []byte) *Entry {
	if e != nil && e.log.Redacts() {
		doc = redactDocument(doc)
	}
	return e.Doc(k, doc)
}

// Doc adds a BSON document as relaxed extended JSON.
func (e *Entry) Doc(k string, doc []byte) *Entry {
	if e == nil {
		return nil
	}
	e.key(k)
	limit := int(e.log.maxAttr.Load())
	if limit <= 0 || len(doc) <= limit {
		e.attr = append(AppendDocument(e.attr, doc), ',')
		return e
	}
	var c cutter
	e.attr = append(c.document(e.attr, doc, limit), ',')
	e.cut = append(append(append(append(e.cut, appendJSONString(nil, k)...), ':'), c.report()...), ',')
	e.sizes = append(append(e.sizes, appendJSONString(nil, k)...), ':')
	e.sizes = append(strconv.AppendInt(e.sizes, int64(len(doc)), 10), ',')
	return e
}

// Elements adds the elements of a BSON document as separate attributes.
func (e *Entry) Elements(doc []byte) *Entry {
	if e == nil || len(doc) <= 5 {
		return e
	}
	if limit := int(e.log.maxAttr.Load()); limit > 0 && len(doc) > limit {
		for k, v := range value.Elements(doc) {
			if v.T == value.Document {
				e.Doc(k, v.Doc())
				continue
			}
			e.key(k)
			e.attr = append(AppendValue(e.attr, v), ',')
		}
		return e
	}
	at := len(e.attr)
	e.attr = AppendDocument(e.attr, doc) // {…}: drop the opening brace, turn the closing one into the comma
	copy(e.attr[at:], e.attr[at+1:])
	e.attr = e.attr[:len(e.attr)-1]
	e.attr[len(e.attr)-1] = ','
	return e
}

// JSON adds a value that is JSON already.
func (e *Entry) JSON(k, v string) *Entry {
	if e != nil {
		e.key(k)
		e.attr = append(append(e.attr, v...), ',')
	}
	return e
}

// Write writes the line; the Entry must not be used afterwards.
func (e *Entry) Write() {
	if e == nil {
		return
	}
	e.log.emit(e)
	if cap(e.attr) > 64<<10 {
		e.attr = make([]byte, 0, 512)
	}
	entries.Put(e)
}

const timeFormat = "2006-01-02T15:04:05.000-07:00"

// appendJSON appends the line in the real server's form, with its column padding.
func (e *Entry) appendJSON(dst []byte, service string) []byte {
	dst = append(dst, `{"t":{"$date":"`...)
	dst = e.at.AppendFormat(dst, timeFormat)
	dst = append(dst, `"},"s":"`...)
	dst = append(dst, severityNames[e.sev]...)
	dst = pad(append(dst, `",`...), 5-len(severityNames[e.sev])-2)
	dst = append(dst, `"c":"`...)
	c := components[e.comp].short
	dst = pad(append(append(dst, c...), `",`...), 12-3-len(c))
	dst = append(dst, `"id":`...)
	at := len(dst)
	dst = append(strconv.AppendInt(dst, int64(e.id), 10), ',')
	dst = pad(dst, max(9-(len(dst)-at), 1))
	dst = append(append(append(dst, `"svc":"`...), service...), `", "ctx":`...)
	dst = appendJSONString(dst, e.ctx)
	dst = appendJSONString(append(dst, `,"msg":`...), e.msg)
	if len(e.attr) > 0 {
		dst = append(append(dst, `,"attr":{`...), e.attr[:len(e.attr)-1]...)
		dst = append(dst, '}')
	}
	if len(e.cut) > 0 {
		dst = append(append(append(dst, `,"truncated":{`...), e.cut[:len(e.cut)-1]...), '}')
		dst = append(append(append(dst, `,"size":{`...), e.sizes[:len(e.sizes)-1]...), '}')
	}
	if e.startup {
		dst = append(dst, `,"tags":["startupWarnings"]`...)
	}
	return append(dst, '}')
}

// appendText appends the line for people to read: --log-format text.
func (e *Entry) appendText(dst []byte) []byte {
	dst = e.at.AppendFormat(dst, timeFormat)
	dst = append(append(dst, ' '), severityNames[e.sev]...)
	dst = append(append(dst, ' '), components[e.comp].short...)
	dst = append(append(append(dst, " ["...), e.ctx...), "] "...)
	dst = append(dst, e.msg...)
	if len(e.attr) > 0 {
		dst = append(append(dst, " {"...), e.attr[:len(e.attr)-1]...)
		dst = append(dst, '}')
	}
	return dst
}

func pad(dst []byte, n int) []byte {
	for range n {
		dst = append(dst, ' ')
	}
	return dst
}
