package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxDensified limits the number of documents that one $densify may generate.
const maxDensified = 500_000

// open builds the iterators of a $densify, which hold one document at a time and, for each partition, the value that is
// due next:
//
//	input ──sorter──► densifier ──► output                  one partition, or each with bounds of its own
//	input ──sorter──► densifier ──sorter──► output          several partitions with common bounds
//
// Both sorters spill. The densifier reads documents by ascending value and generates what is missing in front of each in its partition; at the end
// it completes each partition up to the upper bound. With common bounds the output of the partitions interleaves, and the second sorter orders it.
// Rejected: generating for all partitions in step, in order of value. A partition that is first met late would have to be generated from the lower
// bound, which the output has already passed.
func (s *densifyStage) open(x *exec, src Source) (Source, error) {
	by := &densifyOrder{s: s, coll: x.opts.collator(), within: s.bounds == "partition"}
	in := newSorter(x, src, by, by.width(), 0, "$densify")
	d := &densifier{s: s, x: x, in: in, frame: x.frame(), limit: x.opts.limitOf("$densify"), parts: map[string]*densePart{}}
	if s.partitions == nil || by.within {
		return d, nil
	}
	after := &densifyOrder{s: s, coll: by.coll, parts: d.parts}
	return &densifySorted{newSorter(x, d, after, after.width(), 0, "$densify"), d}, nil
}

// densifyOrder sorts documents for a $densify: first those without a value, then by value; within partitions, or with the partitions
// in the order in which they were met.
type densifyOrder struct {
	s      *densifyStage
	coll   value.Collator
	within bool
	parts  map[string]*densePart // of the second sorter
	buf    []byte
}

func (o *densifyOrder) width() int {
	if o.within {
		return 2 + len(o.s.partitions)
	}
	return 3
}

// Key implements ordering.
func (o *densifyOrder) Key(dst []value.Value, doc []byte, _ func(kind string) value.Value) ([]value.Value, error) {
	v, err := o.s.valueOf(doc)
	if err != nil {
		return dst, err
	}
	dst = append(dst, value.NewBool(!v.IsNullish()))
	if o.within {
		for _, p := range o.s.partitions {
			dst = append(dst, lookupPath(doc, p))
		}
	}
	dst = append(dst, v)
	if o.parts != nil {
		o.buf = o.s.partitionOf(o.buf[:0], doc, o.coll)
		if p := o.parts[string(o.buf)]; p != nil {
			return append(dst, value.NewInt64(p.number)), nil
		}
	}
	if !o.within {
		dst = append(dst, value.NewNull())
	}
	return dst, nil
}

// Compare implements ordering.
func (o *densifyOrder) Compare(a, b []value.Value) int {
	for i := range a {
		if c := value.CompareCollated(a[i], b[i], o.coll); c != 0 {
			return c
		}
	}
	return 0
}

// valueOf returns a document's value, and an error if it cannot be densified.
func (s *densifyStage) valueOf(doc []byte) (value.Value, error) {
	v := lookupPath(doc, s.field)
	switch {
	case v.IsNullish():
	case s.unit != "" && v.T != value.DateTime:
		return v, mongoerr.New(6053600, "Encountered non-date value in collection when step has a date unit.")
	case s.unit == "" && v.T == value.DateTime:
		return v, mongoerr.New(6586401, "Encountered date value in collection when step does not have a date unit.")
	case s.unit == "" && !v.T.Numeric():
		return v, mongoerr.New(5733201, "Densify field type must be numeric or a date")
	}
	return v, nil
}

// partitionOf appends the key of a document's partition.
func (s *densifyStage) partitionOf(dst, doc []byte, coll value.Collator) []byte {
	for _, p := range s.partitions {
		dst = value.AppendGroupKey(dst, lookupPath(doc, p), coll)
	}
	return dst
}

// densePart is the state of a partition that documents are generated for.
type densePart struct {
	number int64
	fields []byte             // a document of the partition's fields
	at     value.Value        // the next value due
	step   func() value.Value // the one after it
}

// densifier generates documents between those of its sorted input.
type densifier struct {
	s     *densifyStage
	x     *exec
	in    *sortSource
	frame *expr.Frame
	limit int64

	parts map[string]*densePart
	order []*densePart
	key   []byte // of the current document's partition
	held  int64  // by parts
	made  int    // documents generated

	now    *densePart  // the partition that documents are generated for
	fields []byte      // its fields as doc has them
	until  value.Value // the document's value, or the upper bound
	doc    *Doc        // returned after the documents that precede it
	least  value.Value // the least value of the input
	most   value.Value
	ended  bool // the input is; order has the partitions that remain to be completed
}

// Close implements Source.
func (d *densifier) Close() { d.in.Close() }

// SpillStats implements SpillReporter.
func (d *densifier) SpillStats() SpillStats {
	all := d.in.stats
	all.Memory = max(all.Memory, d.held)
	return all
}

// Next implements Source.
func (d *densifier) Next(ctx context.Context) (Doc, bool, error) {
	for {
		if p := d.now; p != nil {
			out, ok, err := d.generate(p)
			if err != nil || ok {
				return out, ok, err
			}
			d.now = nil
		}
		if out := d.doc; out != nil {
			d.doc = nil
			return *out, true, nil
		}
		if d.ended {
			if !d.complete() {
				return Doc{}, false, nil
			}
			continue
		}
		it, ok, err := d.in.nextItem(ctx)
		if err != nil {
			return Doc{}, false, err
		}
		if !ok {
			d.end()
			continue
		}
		if err := d.enter(&it.doc); err != nil {
			return Doc{}, false, err
		}
	}
}

// enter starts generating the documents that precede doc in its partition.
func (d *densifier) enter(doc *Doc) error {
	d.doc = doc
	v := lookupPath(doc.Raw, d.s.field)
	if v.IsNullish() {
		return nil
	}
	if d.least.T == value.Missing {
		d.least = v.Clone()
	}
	d.most = v
	d.key = d.s.partitionOf(d.key[:0], doc.Raw, d.x.opts.collator())
	p := d.parts[string(d.key)]
	if p == nil {
		if d.s.bounds == "partition" { // those before are complete
			clear(d.parts)
			d.order, d.held = nil, 0
		}
		lo := d.s.lo
		switch d.s.bounds {
		case "partition":
			lo = v.Clone()
		case "full":
			lo = d.least
		}
		var err error
		if p, err = d.begin(lo, doc.Raw); err != nil {
			return err
		}
	}
	d.now, d.until, d.fields = p, v, p.fields
	if d.x.opts.collator() != nil { // the partition's values may be written differently in the document that follows
		d.fields = d.s.partitionFields(doc.Raw)
	}
	return nil
}

// partitionFields returns a document of the partition's fields of a document.
func (s *densifyStage) partitionFields(doc []byte) []byte {
	fields := value.Doc()
	for _, path := range s.partitions {
		fields = setPath(nil, fields, path, lookupPath(doc, path))
	}
	return fields
}

// begin adds the current document's partition, whose documents start at lo.
func (d *densifier) begin(lo value.Value, doc []byte) (*densePart, error) {
	p := &densePart{number: int64(len(d.order)), fields: d.s.partitionFields(doc), at: lo, step: d.s.steps(lo)}
	d.parts[string(d.key)] = p
	d.order = append(d.order, p)
	if d.held += int64(len(d.key)+len(p.fields)) + 256; d.held > d.limit {
		return nil, mongoerr.Newf(mongoerr.ExceededMemoryLimit, "$densify exceeded its memory limit of %d bytes: there are more than %d partitions", d.limit, len(d.order)-1)
	}
	return p, nil
}

// generate returns the document that is due in a partition; false if none is due before d.doc or, at the end, up to the upper bound. Values that the input
// has are skipped.
func (d *densifier) generate(p *densePart) (Doc, bool, error) {
	if err := d.frame.Check(); err != nil {
		return Doc{}, false, err
	}
	switch c := value.Compare(p.at, d.until); {
	case c > 0, d.s.bounds == "" && value.Compare(p.at, d.s.hi) >= 0:
		return Doc{}, false, nil
	case c == 0 && d.doc != nil:
		p.at = p.step()
		return Doc{}, false, nil
	}
	if d.made == maxDensified {
		return Doc{}, false, mongoerr.Newf(5897900, "Generated %d documents in $densify, which is over the limit of %d", d.made+1, maxDensified)
	}
	d.made++
	fields := p.fields
	if d.doc != nil {
		fields = d.fields
	}
	out := Doc{Raw: setPath(nil, fields, d.s.field, p.at)}
	p.at = p.step()
	return out, true, nil
}

// end determines which partitions remain to be completed, and up to which value.
func (d *densifier) end() {
	d.ended = true
	switch {
	case d.s.bounds == "partition":
		d.order = nil // each ends with its last document
	case d.s.bounds == "" && d.s.partitions == nil && len(d.order) == 0: // bounds alone generate, too
		d.order = []*densePart{{fields: value.Doc(), at: d.s.lo, step: d.s.steps(d.s.lo)}}
	}
	d.until = d.most.Clone()
	if d.s.bounds == "" {
		d.until = d.s.hi
	}
}

// complete starts completing the next partition; false if none remains.
func (d *densifier) complete() bool {
	if len(d.order) == 0 {
		return false
	}
	d.now, d.order = d.order[0], d.order[1:]
	return true
}

// densifySorted is the output of a densifier, sorted.
type densifySorted struct {
	*sortSource
	d *densifier
}

// SpillStats implements SpillReporter.
func (s *densifySorted) SpillStats() SpillStats {
	first, all := s.d.SpillStats(), s.stats
	all.Memory = max(all.Memory, first.Memory)
	all.Spills, all.Records, all.Bytes = all.Spills+first.Spills, all.Records+first.Records, all.Bytes+first.Bytes
	return all
}

// Next implements Source. The keys are not those of a $sort.
func (s *densifySorted) Next(ctx context.Context) (Doc, bool, error) {
	it, ok, err := s.nextItem(ctx)
	return it.doc, ok, err
}
