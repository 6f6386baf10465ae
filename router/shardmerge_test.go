package router

import (
	"testing"

	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
)

// sharedEvents returns the events of one oplog entry, as two shards log it at one time.
func sharedEvents(t *testing.T, ts uint64) (doc []byte, token *changestream.Token) {
	t.Helper()
	e := changestream.ParseEntry(value.Doc(value.F("op", value.NewString("c")), value.F("ns", value.NewString("db.$cmd")),
		value.F("ui", value.NewBinary(4, make([]byte, 16))), value.F("o", value.NewDocument(value.Doc(value.F("collMod", value.NewString("s"))))),
		value.F("ts", value.NewTimestampU64(ts))))
	ev := e.Events()[0]
	return ev.Document(changestream.Form{Expanded: true}), ev.Token
}

// Three shards log an event at one time. Each merge gives the events of all shards but the first a token of their own, whatever the order in which
// the shards were listed; a token that a client sends back is found again, and orders as before.
func TestEventsOfOneTimeHaveTokensOfTheirOwn(t *testing.T) {
	doc, token := sharedEvents(t, 7<<32)
	_, later := sharedEvents(t, 8<<32)
	var first []string
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "a", "b"}, {"b", "c", "a"}} {
		w := &shardMerge{pos: changestream.MarkAt(1)}
		for _, shard := range order {
			w.remotes = append(w.remotes, &watchRemote{shard: shard, id: 1, mark: later, events: []shardEvent{{token, doc}}})
		}
		var got []string
		var last *changestream.Token
		for range order {
			ev, ok, err := w.next()
			if err != nil || !ok {
				t.Fatalf("the shards %v have no event: %v", order, err)
			}
			parsed, err := changestream.ParseToken(value.Lookup(ev.doc, "_id").Doc())
			if err != nil || parsed.Compare(ev.token) != 0 {
				t.Errorf("the token of the document is %v, %v, that of the event %s", parsed, err, ev.token.Data())
			}
			if fragment := ev.token.WithFragment(2); fragment.Before().Compare(ev.token) != 0 {
				t.Errorf("a fragment's event is %s, want %s", fragment.Before().Data(), ev.token.Data())
			}
			if last != nil && ev.token.Compare(last) <= 0 || ev.token.Compare(later) >= 0 || ev.token.Compare(ev.token.Invalidate()) >= 0 {
				t.Errorf("the token %s is out of order", ev.token.Data())
			}
			got, last = append(got, ev.token.Data()), ev.token
		}
		if got[0] != token.Data() {
			t.Errorf("the first event has the token %s, want that of the shard, %s", got[0], token.Data())
		}
		for i := range first {
			if got[i] != first[i] {
				t.Errorf("shards %v: token %d is %s, was %s", order, i, got[i], first[i])
			}
		}
		first = got
	}
}
