package agg

import (
	"bufio"
	"container/heap"
	"context"
	"encoding/binary"
	"io"
	"slices"

	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$sort", rules{traits: language | Selects}, one(parseSort))
}

// sortStage is $sort; limit is not 0 if a $limit was merged into it.
type sortStage struct {
	pattern *sortkey.Pattern
	limit   int64
}

func parseSort(o *Options, v value.Value) (*sortStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.New(15973, "the $sort key specification must be an object")
	}
	p, err := sortkey.Parse(v.Doc(), o.collator())
	return &sortStage{pattern: p}, err
}

// halves has the shards sort, and their streams merged by the pattern. What sorts by metadata is sorted by the merger.
func (s *sortStage) halves() (h halves) {
	switch {
	case sortsByMeta(s):
		if s.limit > 0 {
			h.shard = []Stage{s}
		}
		h.merge = []Stage{s}
		return h
	case s.limit > 0:
		h.merge = []Stage{&limitStage{s.limit}}
	}
	h.shard, h.sort = []Stage{s}, s.pattern.Spec()
	return h
}

func (s *sortStage) Name() string      { return "$sort" }
func (s *sortStage) Spec() value.Value { return value.NewDocument(s.pattern.Spec()) }

func (s *sortStage) explain() value.Value {
	fs := []value.Field{f("sortKey", value.NewDocument(s.pattern.Spec()))}
	if s.limit > 0 {
		fs = append(fs, f("limit", value.NewInt64(s.limit)))
	}
	return doc(f("$sort", doc(fs...)))
}

func (s *sortStage) open(x *exec, src Source) (Source, error) {
	return newSorter(x, src, s.pattern, len(s.pattern.Parts), s.limit, "$sort"), nil
}

// ordering makes keys of documents and compares them. sortkey.Pattern implements it.
type ordering interface {
	Key(dst []value.Value, doc []byte, meta func(kind string) value.Value) ([]value.Value, error)
	Compare(a, b []value.Value) int
}

// newSorter sorts the documents of src for a stage; limit 0 means all. width is the number of values in a key.
func newSorter(x *exec, src Source, by ordering, width int, limit int64, stage string) *sortSource {
	return &sortSource{x: x, src: src, p: by, width: width, limit: limit, stage: stage, memory: x.opts.limitOf(stage)}
}

// sortItem is a document and its key, which borrows from it.
type sortItem struct {
	doc Doc
	key []value.Value
	seq int64
}

type sortSource struct {
	x      *exec
	src    Source
	p      ordering
	width  int
	limit  int64
	stage  string
	memory int64 // the maximum number of bytes that it may hold
	stats  SpillStats

	items  []sortItem
	arena  []byte
	keys   []value.Value
	bytes  int64
	seq    int64
	ready  bool
	at     int
	runs   []SpillFile
	merged *runMerger
}

func (s *sortSource) Close() {
	s.src.Close()
	if s.merged != nil {
		s.merged.close()
	}
	for _, r := range s.runs {
		_ = r.Close()
	}
}

func (s *sortSource) compare(a, b *sortItem) int {
	if c := s.p.Compare(a.key, b.key); c != 0 {
		return c
	}
	if a.seq < b.seq {
		return -1
	}
	return 1
}

// SpillStats implements SpillReporter.
func (s *sortSource) SpillStats() SpillStats { return s.stats }

func (s *sortSource) Next(ctx context.Context) (Doc, bool, error) {
	it, ok, err := s.nextItem(ctx)
	if err != nil || !ok {
		return Doc{}, false, err
	}
	if s.x.sortKeys {
		it.doc.Meta = it.doc.Meta.withSortKey(it.key)
	}
	return it.doc, true, nil
}

// prepare reads the input to its end.
func (s *sortSource) prepare(ctx context.Context) error {
	if s.ready {
		return nil
	}
	s.ready = true
	return s.fill(ctx)
}

// nextItem is Next with the key.
func (s *sortSource) nextItem(ctx context.Context) (sortItem, bool, error) {
	if err := s.prepare(ctx); err != nil {
		return sortItem{}, false, err
	}
	if s.merged != nil {
		return s.merged.next()
	}
	if s.at == len(s.items) {
		return sortItem{}, false, nil
	}
	it := s.items[s.at]
	s.at++
	return it, true, nil
}

func (s *sortSource) fill(ctx context.Context) error {
	if s.limit > 0 && s.limit <= 1<<16 {
		return s.fillTop(ctx)
	}
	for {
		d, ok, err := s.src.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := s.add(d); err != nil {
			return err
		}
	}
	s.sortItems()
	if len(s.runs) == 0 {
		if s.limit > 0 && int64(len(s.items)) > s.limit {
			s.items = s.items[:s.limit]
		}
		return nil
	}
	if err := s.spill(); err != nil {
		return err
	}
	var err error
	s.merged, err = newRunMerger(s)
	return err
}

// add copies a document into the arena and extracts its key there.
func (s *sortSource) add(d Doc) error {
	if cap(s.arena)-len(s.arena) < len(d.Raw) {
		s.arena = make([]byte, 0, max(len(d.Raw), min(1<<20, 64<<10+2*cap(s.arena))))
	}
	start := len(s.arena)
	s.arena = append(s.arena, d.Raw...)
	raw := s.arena[start:len(s.arena):len(s.arena)]
	key, err := s.key(raw, d.Meta)
	if err != nil {
		return err
	}
	s.seq++
	s.items = append(s.items, sortItem{Doc{Raw: raw, Meta: d.Meta}, key, s.seq})
	s.bytes += int64(len(raw)) + 64 + int64(32*len(key))
	s.stats.hold(s.bytes, int64(len(raw)))
	if s.bytes > s.memory {
		s.sortItems()
		return s.spill()
	}
	return nil
}

func (s *sortSource) key(raw []byte, m *Meta) ([]value.Value, error) {
	n := s.width
	if cap(s.keys)-len(s.keys) < n {
		s.keys = make([]value.Value, 0, 1024*n)
	}
	start := len(s.keys)
	keys, err := s.p.Key(s.keys, raw, m.Meta)
	s.keys = keys
	return keys[start:len(keys):len(keys)], err
}

func (s *sortSource) sortItems() {
	slices.SortFunc(s.items, func(a, b sortItem) int { return s.compare(&a, &b) })
}

// fillTop keeps the first limit documents in a heap with the last of them on top.
func (s *sortSource) fillTop(ctx context.Context) error {
	h := &itemHeap{s: s}
	var probe sortItem
	for {
		d, ok, err := s.src.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		s.seq++
		if probe.key, err = s.p.Key(probe.key[:0], d.Raw, d.Meta.Meta); err != nil {
			return err
		}
		probe.seq = s.seq
		if int64(len(h.items)) == s.limit {
			worst := &h.items[0]
			if s.compare(&probe, worst) > 0 {
				continue
			}
			s.bytes += int64(len(d.Raw) - len(worst.doc.Raw))
			if err := s.replace(worst, d); err != nil {
				return err
			}
			heap.Fix(h, 0)
			continue
		}
		var it sortItem
		if err := s.replace(&it, d); err != nil {
			return err
		}
		heap.Push(h, it)
		s.bytes += int64(len(d.Raw)) + 64
		if s.stats.hold(s.bytes, int64(len(d.Raw))); s.bytes > s.memory {
			return s.overflow(ctx, h)
		}
	}
	s.items = h.items
	s.sortItems()
	return nil
}

// replace replaces the item by a copy of d, reusing its memory.
func (s *sortSource) replace(it *sortItem, d Doc) (err error) {
	it.doc = Doc{Raw: append(it.doc.Raw[:0], d.Raw...), Meta: d.Meta}
	it.key, err = s.p.Key(it.key[:0], it.doc.Raw, d.Meta.Meta)
	it.seq = s.seq
	return err
}

// overflow continues as a full sort if the documents to keep exceed the memory.
func (s *sortSource) overflow(ctx context.Context, h *itemHeap) error {
	limit := s.limit
	s.items = h.items
	s.sortItems()
	if err := s.spill(); err != nil {
		return err
	}
	s.limit = 1<<16 + limit
	err := s.fill(ctx)
	if s.merged != nil {
		s.merged.left = limit
	}
	return err
}

type itemHeap struct {
	s     *sortSource
	items []sortItem
}

func (h *itemHeap) Len() int           { return len(h.items) }
func (h *itemHeap) Less(i, j int) bool { return h.s.compare(&h.items[i], &h.items[j]) > 0 }
func (h *itemHeap) Swap(i, j int)      { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *itemHeap) Push(x any)         { h.items = append(h.items, x.(sortItem)) }
func (h *itemHeap) Pop() any {
	x := h.items[len(h.items)-1]
	h.items = h.items[:len(h.items)-1]
	return x
}

// spill writes the sorted items as one run: for each its document, then its metadata.
func (s *sortSource) spill() error {
	if len(s.items) == 0 {
		return nil
	}
	sp, err := s.x.spiller(s.stage, s.memory)
	if err != nil {
		return err
	}
	run, err := sp.Create()
	if err != nil {
		return err
	}
	s.runs = append(s.runs, run)
	s.stats.spilled(int64(len(s.items)), s.bytes)
	w := bufio.NewWriterSize(run, 64<<10)
	for i := range s.items {
		it := &s.items[i]
		if _, err := w.Write(it.doc.Raw); err != nil {
			return err
		}
		if _, err := w.Write(it.doc.Meta.encode()); err != nil {
			return err
		}
	}
	s.items, s.arena, s.keys, s.bytes = s.items[:0], nil, nil, 0
	return w.Flush()
}

// encode returns the metadata as a document, for files; nil becomes an empty one.
func (m *Meta) encode() []byte {
	if m == nil {
		return value.Doc()
	}
	return value.Doc(f("textScore", m.TextScore), f("sortKey", m.SortKey), f("recordId", m.RecordID), f("geoNearDistance", m.GeoDistance),
		f("geoNearPoint", m.GeoPoint), f("randVal", m.RandVal), f("indexKey", m.IndexKey), f("searchScore", m.SearchScore),
		f("score", m.Score), f("scoreDetails", m.ScoreDetails))
}

func decodeMeta(d []byte) *Meta {
	if len(d) <= 5 {
		return nil
	}
	g := func(k string) value.Value { return value.Lookup(d, k) }
	return &Meta{TextScore: g("textScore"), SortKey: g("sortKey"), RecordID: g("recordId"), GeoDistance: g("geoNearDistance"),
		GeoPoint: g("geoNearPoint"), RandVal: g("randVal"), IndexKey: g("indexKey"), SearchScore: g("searchScore"),
		Score: g("score"), ScoreDetails: g("scoreDetails")}
}

// readDocument reads one document from a file; ok is false at its end.
func readDocument(r *bufio.Reader) (d []byte, ok bool, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err == io.EOF {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 5 || n > 1<<30 {
		return nil, false, io.ErrUnexpectedEOF
	}
	d = make([]byte, n)
	copy(d, head[:])
	_, err = io.ReadFull(r, d[4:])
	return d, err == nil, err
}

// runMerger merges sorted runs.
type runMerger struct {
	s     *sortSource
	runs  []*sortRun
	files []io.ReadCloser
	left  int64 // documents still to be returned, -1 for all
}

type sortRun struct {
	r    *bufio.Reader
	head sortItem
	no   int64
}

func newRunMerger(s *sortSource) (*runMerger, error) {
	m := &runMerger{s: s, left: -1}
	if s.limit > 0 {
		m.left = s.limit
	}
	for i, file := range s.runs {
		rc, err := file.Reader()
		if err != nil {
			return m, err
		}
		m.files = append(m.files, rc)
		run := &sortRun{r: bufio.NewReaderSize(rc, 64<<10), no: int64(i)}
		ok, err := m.advance(run)
		if err != nil {
			return m, err
		}
		if ok {
			m.runs = append(m.runs, run)
		}
	}
	heap.Init(m)
	return m, nil
}

func (m *runMerger) advance(run *sortRun) (bool, error) {
	raw, ok, err := readDocument(run.r)
	if err != nil || !ok {
		return false, err
	}
	meta, _, err := readDocument(run.r)
	if err != nil {
		return false, err
	}
	d := Doc{Raw: raw, Meta: decodeMeta(meta)}
	key, err := m.s.p.Key(nil, raw, d.Meta.Meta)
	run.head = sortItem{d, key, run.no}
	return true, err
}

func (m *runMerger) next() (sortItem, bool, error) {
	if len(m.runs) == 0 || m.left == 0 {
		return sortItem{}, false, nil
	}
	m.left--
	run := m.runs[0]
	it := run.head
	ok, err := m.advance(run)
	switch {
	case err != nil:
		return it, false, err
	case ok:
		heap.Fix(m, 0)
	default:
		heap.Pop(m)
	}
	return it, true, nil
}

func (m *runMerger) close() {
	for _, c := range m.files {
		_ = c.Close()
	}
}

func (m *runMerger) Len() int           { return len(m.runs) }
func (m *runMerger) Less(i, j int) bool { return m.s.compare(&m.runs[i].head, &m.runs[j].head) < 0 }
func (m *runMerger) Swap(i, j int)      { m.runs[i], m.runs[j] = m.runs[j], m.runs[i] }
func (m *runMerger) Push(x any)         { m.runs = append(m.runs, x.(*sortRun)) }
func (m *runMerger) Pop() any {
	x := m.runs[len(m.runs)-1]
	m.runs = m.runs[:len(m.runs)-1]
	return x
}
