package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestTrialAndCache follows one shape: a first trial leaves an inactive entry, a second makes it active, later queries
// use the cached plan, and a query that it serves badly is replanned.
func TestTrialAndCache(t *testing.T) {
	n := newTestNode(t)
	var docs []string
	for i := range 2000 { // a is rare for 0, b is rare for 1: which index is good depends on the values
		a, b := 1, 0
		if i < 3 {
			a = 0
		} else if i > 1996 {
			b = 1
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "a": %d, "b": %d}`, i, a, b))
	}
	n.ok("d", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]}`)
	cache := func() string {
		c := n.srv.Node.Engine.Catalog().Lookup("d.c")
		var out []string
		for _, e := range n.srv.Node.planCache(c).Entries() {
			out = append(out, fmt.Sprintf("%s active=%v", e.Index, e.Active))
		}
		return strings.Join(out, "; ")
	}
	for i, s := range []struct {
		filter string
		want   int
		cache  string
	}{
		{`{"a": 0, "b": 0}`, 3, "a active=false"},
		{`{"a": 0, "b": 0}`, 3, "a active=true"},
		{`{"a": 0, "b": 0}`, 3, "a active=true"},
		{`{"a": 1, "b": 1}`, 3, "b active=true"}, // the cached plan reads 1997 keys: ten times its trial is far less
		{`{"a": 1, "b": 1}`, 3, "b active=true"},
	} {
		if got := n.first("d", fmt.Sprintf(`{"find": "c", "filter": %s}`, s.filter)); len(got) != s.want {
			t.Errorf("step %d: %d documents, want %d", i, len(got), s.want)
		}
		if got := cache(); got != s.cache {
			t.Errorf("step %d: cache holds %q, want %q", i, got, s.cache)
		}
	}
	n.ok("d", `{"explain": {"find": "c", "filter": {"a": 1, "b": {"$gt": 0}}}}`)
	if got := cache(); got != "b active=true" {
		t.Errorf("explain changed the cache: %q", got)
	}
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "z"}]}`)
	n.ok("d", `{"find": "c"}`)
	if got := cache(); got != "" {
		t.Errorf("the cache outlived the set of indexes: %q", got)
	}
}

// TestTrialAnswers compares the results of queries with several plans with those of a collection scan.
func TestTrialAnswers(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 3000, `{"a": 1}`, `{"b": 1}`, `{"s": 1, "a": -1}`)
	for _, q := range []string{
		`"filter": {"a": 1, "b": {"$gte": 2}}`,
		`"filter": {"a": {"$gt": 1}, "s": "x3"}, "sort": {"b": 1, "_id": 1}`,
		`"filter": {"a": {"$in": [1, 2]}, "b": 3}, "sort": {"_id": -1}, "limit": 40`,
		`"filter": {"$or": [{"a": 1}, {"b": 2}], "s": "x4"}, "sort": {"_id": 1}`,
		`"filter": {"s": {"$in": ["x1", "x2"]}, "b": {"$lt": 3}}, "sort": {"a": -1, "_id": 1}, "skip": 7, "limit": 90`,
	} {
		sorted := strings.Contains(q, `"sort"`)
		if !sorted {
			q += `, "sort": {"_id": 1}`
		}
		for range 3 { // trial, second trial, cache
			got := n.first("d", fmt.Sprintf(`{"find": "c", %s, "batchSize": 5000}`, q))
			want := n.first("d", fmt.Sprintf(`{"find": "c", %s, "batchSize": 5000, "hint": {"$natural": 1}}`, q))
			if strings.Join(got, "\n") != strings.Join(want, "\n") || len(got) == 0 {
				t.Errorf("%s: %d documents, a collection scan gives %d", q, len(got), len(want))
			}
		}
	}
}

// TestSortSpills sorts more than its memory with files and without.
func TestSortSpills(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"setParameter": 1, "internalQueryMaxBlockingSortMemoryUsageBytes": 1000000}`)
	n.srv.Node.TempDir = t.TempDir()
	pad := strings.Repeat("p", 20000)
	for i := range 15 {
		var docs []string
		for k := range 10 {
			docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d, "p": %q}`, i*10+k, (i*7919+k*31)%1000, pad))
		}
		n.ok("d", fmt.Sprintf(`{"insert": "big", "documents": [%s]}`, strings.Join(docs, ",")))
	}
	if got := n.code("d", `{"find": "big", "sort": {"k": 1}, "allowDiskUse": false}`); got != int32(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed) {
		t.Errorf("without disk: code %d, want 292", got)
	}
	if got := n.code("d", `{"find": "big", "sort": {"k": 1}, "allowDiskUse": false, "limit": 5}`); got != 0 {
		t.Errorf("a limit keeps it small: code %d", got)
	}
	got := n.first("d", `{"aggregate": "big", "pipeline": [{"$sort": {"k": 1, "_id": 1}}, {"$project": {"k": 1, "_id": 0}}], "cursor": {"batchSize": 1000}}`)
	if len(got) != 150 {
		t.Fatalf("%d documents", len(got))
	}
	for i := 1; i < len(got); i++ {
		var a, b int
		if _, err := fmt.Sscanf(strings.NewReplacer(`"`, "", "{", "", "}", "", " ", "").Replace(got[i-1]), "k:%d", &a); err != nil {
			t.Fatal(got[i-1], err)
		}
		_, _ = fmt.Sscanf(strings.NewReplacer(`"`, "", "{", "", "}", "", " ", "").Replace(got[i]), "k:%d", &b)
		if a > b {
			t.Fatalf("out of order at %d: %s, %s", i, got[i-1], got[i])
		}
	}
}
