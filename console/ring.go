package console

import (
	"strings"
	"sync"
	"unicode/utf8"
)

// ringLines is the maximum number of lines of a ring, and lineBytes the maximum length of each (manual: getLog).
const (
	ringLines = 1024
	lineBytes = 1024
)

// ring keeps the latest lines and counts all lines.
type ring struct {
	mu    sync.Mutex
	lines []string
	total int
}

func (r *ring) add(line string) {
	if len(line) > lineBytes {
		end := lineBytes
		for end > 0 && !utf8.RuneStart(line[end]) {
			end--
		}
		line = strings.Clone(line[:end]) // so that the rest can be freed
	}
	r.mu.Lock()
	if len(r.lines) < ringLines {
		r.lines = append(r.lines, line)
	} else {
		r.lines[r.total%ringLines] = line
	}
	r.total++
	r.mu.Unlock()
}

// all returns the total number of lines and the kept ones, oldest first.
func (r *ring) all() (total int, lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, 0, len(r.lines))
	if len(r.lines) == ringLines {
		at := r.total % ringLines
		return r.total, append(append(out, r.lines[at:]...), r.lines[:at]...)
	}
	return r.total, append(out, r.lines...)
}

// Rings are the names that getLog: "*" lists.
var Rings = []string{"global", "startupWarnings"}

// Ring reads a ring buffer for getLog; ok is false if there is none with that name.
func (l *Log) Ring(name string) (total int, lines []string, ok bool) {
	switch name {
	case "global":
		total, lines = l.global.all()
	case "startupWarnings":
		total, lines = l.startup.all()
	default:
		return 0, nil, false
	}
	return total, lines, true
}
