package streams

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// script is a feed with streams, on an engine whose oplog the script writes.
type script struct {
	engine  *storage.Engine
	feed    *Feed
	streams map[string]*Stream
	last    map[string]*changestream.Token // of a stream's last event
	marks   map[string]storage.Timestamp
}

// TestScripts runs testdata.
//
//	write        entries of the oplog, one per line: {op, ns, o, o2, ui}; with unit they are written together. mark= names the time after them
//	open NAME    a stream: db=, coll=, expanded; at= a mark; resume= or startafter= the last event of another stream
//	next NAME    everything that the stream has now, up to count=
//	close NAME
//	replaced     a snapshot replaces the data
//	decoded      how many entries the feed has decoded for all streams
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		engine, err := storage.Open(storage.Options{Memory: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		s := &script{engine: engine, feed: NewFeed(engine, nil), streams: map[string]*Stream{}, last: map[string]*changestream.Token{}, marks: map[string]storage.Timestamp{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
		for _, x := range s.streams {
			x.Close()
		}
		s.feed.Close()
	})
}

func (s *script) do(t *testing.T, d *datadriven.TestData) string {
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "write":
		s.write(t, d)
	case "open":
		return s.open(d, name)
	case "next":
		return s.next(t, d, name)
	case "close":
		s.streams[name].Close()
		if delete(s.streams, name); len(s.streams) == 0 {
			s.feed.Close() // the reader may be at work on what is written next
		}
	case "replaced":
		s.feed.Replaced()
	case "decoded":
		return fmt.Sprintf("%d entries, %d streams\n", s.feed.Decoded(), s.feed.Open())
	default:
		t.Fatalf("%s: there is no %s", d.Pos, d.Cmd)
	}
	return ""
}

func (s *script) write(t *testing.T, d *datadriven.TestData) {
	var u *storage.UnitOfWork
	commit := func() {
		if u == nil {
			return
		}
		if _, err := s.engine.Commit(t.Context(), u, true); err != nil {
			t.Fatal(err)
		}
		u.Rollback()
		u = nil
	}
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		if u == nil {
			u = s.engine.NewUnitOfWork(nil)
		}
		doc := valuetest.Doc(t, line)
		u.Oplog(storage.OplogEntry{Op: value.Lookup(doc, "op").Str()[0], NS: value.Lookup(doc, "ns").Str(), O: value.LookupDoc(doc, "o"), O2: value.LookupDoc(doc, "o2"), StmtID: -1})
		if !d.HasArg("unit") {
			commit()
		}
	}
	commit()
	var mark string
	if d.MaybeScanArgs(t, "mark", &mark); mark != "" {
		s.marks[mark] = s.engine.Visible()
	}
}

func (s *script) open(d *datadriven.TestData, name string) string {
	var filter changestream.Filter
	start := Start{At: s.engine.Visible()}
	for _, a := range d.CmdArgs[1:] {
		v := strings.Join(a.Vals, "")
		switch a.Key {
		case "db":
			filter.DB = v
		case "coll":
			filter.Coll = v
		case "expanded":
			filter.Expanded = true
		case "at":
			start.At = s.marks[v]
		case "resume":
			start.Token = s.last[v]
		case "startafter":
			start.Token, start.After = s.last[v], true
		}
	}
	x, err := s.feed.NewStream(filter, start)
	if err != nil {
		return mongoerr.CodeOf(err).Name() + "\n"
	}
	s.streams[name] = x
	return ""
}

func (s *script) next(t *testing.T, d *datadriven.TestData, name string) string {
	count := 1 << 30
	d.MaybeScanArgs(t, "count", &count)
	x, ctx := s.streams[name], context.Background()
	if x == nil {
		return "there is no such stream\n"
	}
	if err := x.CatchUp(ctx); err != nil {
		return mongoerr.CodeOf(err).Name() + "\n"
	}
	var out strings.Builder
	for ; count > 0; count-- {
		e, ok, err := x.Next(ctx)
		if err != nil {
			fmt.Fprintln(&out, mongoerr.CodeOf(err).Name())
			break
		}
		if !ok {
			break
		}
		s.last[name] = e.Token
		if e.Invalidate != nil {
			fmt.Fprintln(&out, "invalidate")
			continue
		}
		fmt.Fprintf(&out, "%s %s.%s", e.Type, e.DB, e.Coll)
		if e.ToColl != "" {
			fmt.Fprintf(&out, " to %s.%s", e.ToDB, e.ToColl)
		}
		if e.Key != nil {
			fmt.Fprintf(&out, " %s", value.ShowDoc(e.Key))
		}
		fmt.Fprintln(&out)
	}
	if x.Ended() {
		fmt.Fprintln(&out, "(ended)")
	}
	return out.String()
}
