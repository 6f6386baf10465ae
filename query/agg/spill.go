package agg

import (
	"bufio"
	"io"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Stages that hold documents have a memory limit. What exceeds it goes to files of the host, if the operation may use
// them; if not, the stage fails with QueryExceededMemoryLimitNoDiskUseAllowed.

// SpillStats has the figures about a stage's memory for explain.
type SpillStats struct {
	Memory  int64 // the maximum held at a time
	Data    int64 // the total that passed through
	Spills  int64
	Records int64    // spilled
	Bytes   int64    // spilled
	Fields  []string // for a $group: its accumulators
}

// SpillReporter is a Source that may spill.
type SpillReporter interface{ SpillStats() SpillStats }

func (s *SpillStats) hold(held, more int64) {
	s.Memory = max(s.Memory, held)
	s.Data += more
}

func (s *SpillStats) spilled(records, bytes int64) {
	s.Spills++
	s.Records += records
	s.Bytes += bytes
}

// limitOf returns how many bytes a stage may hold.
func (o *Options) limitOf(stage string) int64 {
	switch {
	case o.MemoryLimit > 0:
		return o.MemoryLimit
	case o.StageMemory != nil:
		return o.StageMemory(stage)
	}
	return defaultLimit
}

// spiller returns the files that a stage may spill to, or the error if it may not.
func (x *exec) spiller(stage string, limit int64) (Spiller, error) {
	if x.opts.AllowDiskUse && x.host != nil {
		if sp := x.host.Spill(); sp != nil {
			return sp, nil
		}
	}
	const optIn = " Aborting operation. Pass allowDiskUse:true to opt in."
	switch stage {
	case "$sort":
		return nil, mongoerr.Newf(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed,
			"Sort exceeded memory limit of %d bytes, but did not opt in to external sorting."+optIn, limit)
	case "$group":
		return nil, mongoerr.New(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed, "Exceeded memory limit for $group, but didn't allow external sort."+
			" Pass allowDiskUse:true to opt in.")
	}
	return nil, mongoerr.Newf(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed,
		"Exceeded memory limit of %d bytes for %s, but did not allow disk use."+optIn, limit, stage)
}

// docList holds documents in the order in which they are added; those that exceed its memory are in a file. It is read
// by position, efficiently only in ascending order.
type docList struct {
	x     *exec
	stage string
	limit int64
	stats *SpillStats

	mem  []Doc
	held int64
	file SpillFile
	w    *bufio.Writer
	n    int // documents in the file

	r     *bufio.Reader // over the file
	rc    io.ReadCloser
	at    int // the next document of r
	last  Doc // the document that r returned last
	ended bool
}

func newDocList(x *exec, stage string, stats *SpillStats) *docList {
	return &docList{x: x, stage: stage, limit: x.opts.limitOf(stage), stats: stats}
}

func (l *docList) len() int { return l.n + len(l.mem) }

// add adds a document, which must not be modified afterwards.
func (l *docList) add(d Doc) error {
	l.mem = append(l.mem, d)
	l.held += int64(len(d.Raw)) + 96
	if l.stats.hold(l.held, int64(len(d.Raw))); l.held <= l.limit {
		return nil
	}
	return l.spill()
}

func (l *docList) spill() error {
	if l.file == nil {
		sp, err := l.x.spiller(l.stage, l.limit)
		if err != nil {
			return err
		}
		if l.file, err = sp.Create(); err != nil {
			return err
		}
		l.w = bufio.NewWriterSize(l.file, 64<<10)
	}
	for i := range l.mem {
		if _, err := l.w.Write(l.mem[i].Raw); err != nil {
			return err
		}
		if _, err := l.w.Write(l.mem[i].Meta.encode()); err != nil {
			return err
		}
	}
	l.stats.spilled(int64(len(l.mem)), l.held)
	l.n += len(l.mem)
	clear(l.mem)
	l.mem, l.held = l.mem[:0], 0
	return nil
}

// get returns the i-th document, valid until the next call. After the first get nothing may be added.
func (l *docList) get(i int) (Doc, error) {
	if i >= l.n {
		return l.mem[i-l.n], nil
	}
	if l.r != nil && i == l.at-1 {
		return l.last, nil
	}
	if l.r == nil || i < l.at {
		if err := l.rewind(); err != nil {
			return Doc{}, err
		}
	}
	for l.at <= i {
		raw, ok, err := readDocument(l.r)
		if err != nil || !ok {
			return Doc{}, spillBroken(err)
		}
		meta, ok, err := readDocument(l.r)
		if err != nil || !ok {
			return Doc{}, spillBroken(err)
		}
		l.last = Doc{Raw: raw, Meta: decodeMeta(meta)}
		l.at++
	}
	return l.last, nil
}

func spillBroken(err error) error {
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (l *docList) rewind() error {
	if !l.ended {
		if err := l.w.Flush(); err != nil {
			return err
		}
		l.ended = true
	}
	if l.rc != nil {
		_ = l.rc.Close()
	}
	var err error
	if l.rc, err = l.file.Reader(); err != nil {
		return err
	}
	l.r, l.at = bufio.NewReaderSize(l.rc, 64<<10), 0
	return nil
}

func (l *docList) close() {
	if l.rc != nil {
		_ = l.rc.Close()
	}
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
	l.mem = nil
}
