package viewquery

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stages is a pipeline under construction.
type stages []value.Value

func (s *stages) add(name string, v value.Value) {
	*s = append(*s, value.NewDocument(value.Doc(value.F(name, v))))
}

// addDoc adds a stage for a document argument; an empty one adds nothing.
func (s *stages) addDoc(name string, v value.Value) {
	if v.T == value.Document && value.Count(v.Doc()) > 0 {
		s.add(name, v)
	}
}

// addPositive adds a stage for a positive number; zero, null and a missing value add nothing.
func (s *stages) addPositive(name string, n int64) {
	if n > 0 {
		s.add(name, value.NewInt64(n))
	}
}

// notOnViews are the options of find that pipelines do not have.
var notOnViews = []string{"returnKey", "showRecordId", "tailable", "awaitData"}

// Find returns the stages of a find command's body; skip and limit are its arguments as numbers. A sort by
// $natural is the direction of the scan below the view, which an aggregate specifies as hint; hint is Missing
// without one.
func Find(body []byte, skip, limit int64) (pipeline []value.Value, hint value.Value, err error) {
	for _, name := range notOnViews {
		if value.Lookup(body, name).Truthy() {
			return nil, hint, notSupported(name)
		}
	}
	for _, name := range []string{"min", "max"} {
		if v := value.Lookup(body, name); v.T == value.Document && value.Count(v.Doc()) > 0 {
			return nil, hint, notSupported(name)
		}
	}
	hint = value.Lookup(body, "hint")
	var s stages
	s.addDoc("$match", value.Lookup(body, "filter"))
	sort := value.Lookup(body, "sort")
	if n := value.Lookup(sort.Doc(), "$natural"); n.IsMissing() {
		s.addDoc("$sort", sort)
	} else {
		if hint.T == value.String || value.Count(hint.Doc()) > 0 && value.Lookup(hint.Doc(), "$natural").IsMissing() {
			return nil, hint, mongoerr.New(mongoerr.InvalidPipelineOperator, "Option hint is not supported beside a sort by $natural in aggregation.")
		}
		hint = value.NewDocument(value.Doc(value.F("$natural", n)))
	}
	s.addPositive("$skip", skip)
	s.addPositive("$limit", limit)
	s.addDoc("$project", value.Lookup(body, "projection"))
	return s, hint, nil
}

func notSupported(option string) error {
	return mongoerr.Newf(mongoerr.InvalidPipelineOperator, "Option %s not supported in aggregation.", option)
}

// Count returns the stages of a count command's body: their one result, if any, has the field count. Of a
// negative limit the absolute value counts.
func Count(body []byte, skip, limit int64) []value.Value {
	var s stages
	s.addDoc("$match", value.Lookup(body, "query"))
	s.addPositive("$skip", skip)
	s.addPositive("$limit", max(limit, -limit))
	s.add("$count", value.NewString("count"))
	return s
}

// Distinct returns the stages of a distinct command's body: their one result, if any, has the array distinct, in
// no order.
func Distinct(body []byte) []value.Value {
	var s stages
	s.addDoc("$match", value.Lookup(body, "query"))
	s.add("$project", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(0)),
		value.F("value", operator("$_internalFindAllValuesAtPath", value.Lookup(body, "key"))))))
	s.add("$unwind", value.NewString("$value"))
	s.add("$group", value.NewDocument(value.Doc(value.F("_id", value.NewNull()),
		value.F("distinct", operator("$addToSet", value.NewString("$value"))))))
	return s
}

func operator(name string, arg value.Value) value.Value {
	return value.NewDocument(value.Doc(value.F(name, arg)))
}
