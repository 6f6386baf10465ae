package command

import (
	"bytes"
	"strings"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A command with rawData: true that names a time series collection reads or writes its buckets as they are stored. It becomes the same command on
// the collection of the buckets, which its cursor names too, as the 8.2 line shows it (SERVER-120476). On any other
// collection, or a view, the argument has no effect.

// rawDataCommands are the commands that support the argument (DRIVERS-3064), and explain, which passes it on to the command that it explains. It
// changes nothing in listCollections, which lists the buckets anyway.
var rawDataCommands = map[string]bool{
	"aggregate": true, "bulkWrite": true, "count": true, "createIndexes": true, "delete": true, "distinct": true, "dropIndexes": true, "explain": true,
	"find": true, "findAndModify": true, "insert": true, "listCollections": true, "listIndexes": true, "update": true,
}

// rawDataArg is a request's rawData. asked is the body that the client sent, if the namespaces that it names have been replaced; else nil.
type rawDataArg struct {
	sent  bool
	asked []byte
}

// asksRawData reports whether the request has rawData: true, itself or in the command that it explains.
func (r *Request) asksRawData() bool {
	return r.rawData.sent || r.Spec.Name == "explain" && r.Cmd.T == value.Document && hasRawData(r.Cmd.Doc())
}

func hasRawData(body []byte) bool {
	for it := value.Walk(body); ; {
		k, v, ok := it.Next()
		if !ok {
			return false
		}
		if string(k) == "rawData" && v.T == value.Boolean && v.Truthy() {
			return true
		}
	}
}

// onRawData makes a request with rawData: true one on the buckets of the time series collections that it names. The user has been found to be
// authorized for the request as it was sent, which is therefore kept for the checks of its cursor.
func (s *Service) onRawData(op *Op) error {
	req := &op.Req
	if !req.asksRawData() {
		return nil
	}
	if err := s.takesRawData(op); err != nil {
		return err
	}
	if s.Hooks.IsTimeSeries == nil || req.Spec.Name == "listCollections" {
		return nil
	}
	if req.Spec.Name == "bulkWrite" {
		return req.rawNamespaces(func(ns string) (bool, error) { return s.Hooks.IsTimeSeries(op, ns) })
	}
	body := req.Body
	if req.Spec.Name == "explain" {
		body = req.Cmd.Doc()
	}
	it := value.Walk(body)
	_, first, ok := it.Next()
	if !ok || first.T != value.String {
		return nil // of a database, or malformed
	}
	ns := req.NS(first.Str())
	series, err := s.Hooks.IsTimeSeries(op, ns)
	if err != nil || !series {
		return err
	}
	if opensWatch(body) {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "$changeStream with rawData may not be opened on the time series collection %s", ns)
	}
	req.rawData.asked = bytes.Clone(req.Body)
	body = onBucketsOf(body, value.NewString(timeseries.BucketsPrefix+first.Str()))
	if req.Spec.Name == "explain" {
		req.Cmd = value.NewDocument(body)
		body = onBucketsOf(req.Body, req.Cmd)
	} else {
		req.Cmd = value.NewString(timeseries.BucketsPrefix + first.Str())
	}
	req.setBody(body)
	return nil
}

// opensWatch reports whether a command is an aggregate that opens a change stream, which is not possible on buckets.
func opensWatch(body []byte) bool {
	it := value.Walk(value.Lookup(body, "pipeline").Doc())
	_, stage, ok := it.Next()
	return ok && stage.T == value.Document && !value.Lookup(stage.Doc(), "$changeStream").IsMissing()
}

// takesRawData refuses the argument on a command that does not support it. A getMore reads what its cursor does. Members relay what clients
// have sent with commands of their own.
func (s *Service) takesRawData(op *Op) error {
	req := &op.Req
	name := req.Spec.Name
	if name == "explain" && req.Cmd.T == value.Document {
		it := value.Walk(req.Cmd.Doc())
		key, _, _ := it.Next()
		if spec := s.Table.Lookup(string(key)); spec != nil {
			name = spec.Name
		}
	}
	if rawDataCommands[name] || name == "getMore" || op.Client.InProcess || op.Client.Internal {
		return nil
	}
	return mongoerr.Newf(mongoerr.InvalidOptions, "The command %s does not support rawData", name)
}

func (r *Request) setBody(body []byte) {
	msg := *r.Msg
	msg.Body = body
	r.Msg, r.Body = &msg, body
}

// onBucketsOf returns a command with another value and without rawData.
func onBucketsOf(body []byte, cmd value.Value) []byte {
	out, mark := value.Begin(make([]byte, 0, len(body)+32))
	first := true
	for it := value.Walk(body); ; first = false {
		raw, k, _, ok := it.NextRaw()
		switch {
		case !ok:
			return value.End(out, mark)
		case first:
			out = value.AppendKeyBytes(out, k, cmd)
		case string(k) != "rawData":
			out = append(out, raw...)
		}
	}
}

// rawNamespaces replaces the time series collections among the namespaces of a bulkWrite by their buckets.
func (r *Request) rawNamespaces(isSeries func(ns string) (bool, error)) error {
	changed := false
	replaced := func(doc []byte) ([]byte, error) {
		ns := value.Lookup(doc, "ns")
		if ns.T != value.String || !strings.Contains(ns.Str(), ".") {
			return doc, nil // the command refuses it
		}
		series, err := isSeries(ns.Str())
		if err != nil || !series {
			return doc, err
		}
		changed = true
		return replaceField(doc, "ns", value.NewString(timeseries.BucketsOf(ns.Str()))), nil
	}
	msg := *r.Msg
	msg.Seqs = append([]wire.Sequence(nil), msg.Seqs...)
	for i := range msg.Seqs {
		if msg.Seqs[i].ID != "nsInfo" {
			continue
		}
		var docs []byte
		err := Docs{raw: msg.Seqs[i].Docs}.Each("bulkWrite.nsInfo", func(_ int, doc []byte) error {
			doc, err := replaced(doc)
			docs = append(docs, doc...)
			return err
		})
		if err != nil {
			return err
		}
		msg.Seqs[i].Docs = docs
	}
	for i := range r.args {
		a := &r.args[i]
		if a.field.Name != "nsInfo" || a.v.T != value.Array {
			continue
		}
		list := value.Values(a.v.Doc())
		for j, v := range list {
			if v.T == value.Document {
				doc, err := replaced(v.Doc())
				if err != nil {
					return err
				}
				list[j] = value.NewDocument(doc)
			}
		}
		a.v = value.NewArray(value.ArrayOf(list...))
		msg.Body = replaceField(msg.Body, "nsInfo", a.v)
	}
	if changed {
		r.rawData.asked = bytes.Clone(r.Body)
		msg.Body = onBucketsOf(msg.Body, r.Cmd)
		r.Msg, r.Body = &msg, msg.Body
	}
	return nil
}
