package console

import (
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure where the log goes and its format.
type Options struct {
	Path   string // a file; empty for stdout
	Append bool   // append to an existing file instead of renaming it
	Reopen bool   // rotate by opening Path again, for an outside program that renames it
	Text   bool   // human-readable text instead of JSON
	Brief  bool   // for a terminal: only warnings and errors, as text; getLog has the rest
	Syslog bool

	Verbosity int    // of the root component, 0 to 5
	Quiet     bool   // no lines about opened and closed connections
	Service   string // field svc: S of a shard, R of a router, "-" otherwise
}

// Log writes entries. Its methods may be called from any goroutine.
type Log struct {
	levels  levels
	quiet   atomic.Bool
	redact  atomic.Bool // see SetRedaction
	service atomic.Pointer[string]
	text    atomic.Bool
	brief   atomic.Bool
	maxAttr atomic.Int64 // the maximum size of a document in one attribute; 0 for no limit
	global  ring
	startup ring

	mu struct {
		sync.Mutex
		out    io.Writer
		file   *os.File // out, if it is a file that the log opened
		path   string
		reopen bool
		buf    []byte
	}
}

// Std is the log of the process, which all nodes in the process share.
var Std = New(os.Stdout)

// New makes a log that writes to w.
func New(w io.Writer) *Log {
	l := &Log{}
	l.levels.init()
	l.mu.out = w
	none := "-"
	l.service.Store(&none)
	l.maxAttr.Store(defaultMaxAttr)
	return l
}

// Configure applies the options of the command line.
func (l *Log) Configure(o Options) error {
	l.levels.set[Default].Store(int32(min(max(o.Verbosity, 0), 5)))
	l.levels.settle()
	l.quiet.Store(o.Quiet)
	l.text.Store(o.Text || o.Brief && o.Path == "" && !o.Syslog)
	l.brief.Store(o.Brief && o.Path == "" && !o.Syslog)
	if o.Service != "" {
		l.service.Store(&o.Service)
	}
	if o.Syslog {
		w, err := syslog.New(syslog.LOG_USER|syslog.LOG_INFO, "mongod")
		if err != nil {
			// A container has no daemon. The log stays where it was, and a line says why.
			l.Warning(Control, 20697, "-", "There is no syslog daemon; the log goes to the standard output").Err(err).Write()
			return nil
		}
		l.mu.Lock()
		l.mu.out = w
		l.mu.Unlock()
		return nil
	}
	if o.Path == "" {
		return nil
	}
	if !o.Append {
		if _, err := renameAway(o.Path); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.path, l.mu.reopen = o.Path, o.Reopen
	return l.open()
}

// open opens the file at path; l.mu must be held.
func (l *Log) open() error {
	f, err := openInstead(l.mu.file, l.mu.path)
	if err == nil {
		l.mu.file, l.mu.out = f, f
	}
	return err
}

// openInstead opens a log file for appending, and closes the one that it replaces; nil for none.
func openInstead(old *os.File, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666) // the process's mask decides
	if err == nil && old != nil {
		_ = old.Close()
	}
	return f, err
}

// renameAway moves a file out of the way, to its name and the time (manual: "Rotate Log Files"), which it returns.
func renameAway(path string) (kept string, err error) {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !st.Mode().IsRegular() {
		return "", nil // nothing there, or a device such as /proc/1/fd/1
	}
	if err != nil {
		return "", err
	}
	name := path + "." + time.Now().UTC().Format("2006-01-02T15-04-05")
	kept = name
	for n := 2; ; n++ { // two rotations within a second get different names
		if _, err := os.Lstat(kept); err != nil {
			return kept, os.Rename(path, kept)
		}
		kept = fmt.Sprintf("%s.%d", name, n)
	}
}

// Rotate starts a new file: command logRotate and signal SIGUSR1. Without a file it does nothing.
func (l *Log) Rotate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.file == nil {
		return nil
	}
	if !l.mu.reopen {
		if _, err := renameAway(l.mu.path); err != nil {
			return fmt.Errorf("rotate the log: %w", err)
		}
	}
	return l.open()
}

// SetMaxAttr limits the size of documents in attributes, in KB: the parameter maxLogSizeKB.
func (l *Log) SetMaxAttr(kb int64) { l.maxAttr.Store(kb << 10) }

// SetQuiet turns lines about connections off and on: the parameter quiet.
func (l *Log) SetQuiet(q bool) { l.quiet.Store(q) }

// Quiet returns the parameter quiet.
func (l *Log) Quiet() bool { return l.quiet.Load() }

// emit renders and writes an entry.
func (l *Log) emit(e *Entry) {
	l.mu.Lock()
	var line []byte
	if l.text.Load() {
		line = e.appendText(l.mu.buf[:0])
	} else {
		line = e.appendJSON(l.mu.buf[:0], *l.service.Load())
	}
	text := string(line)
	line = append(line, '\n')
	if !l.brief.Load() || e.sev <= SevWarning && !e.startup {
		_, _ = l.mu.out.Write(line) // there is nowhere to report that the log cannot be written
	}
	if cap(line) <= 64<<10 {
		l.mu.buf = line
	}
	l.global.add(text)
	if e.startup {
		l.startup.add(text)
	}
	l.mu.Unlock()
}

// The functions below write to Std.

// Info starts a line that is always written.
func Info(c Component, id int32, ctx, msg string) *Entry { return Std.Info(c, id, ctx, msg) }

// Warning starts a line about something that an operator should check.
func Warning(c Component, id int32, ctx, msg string) *Entry { return Std.Warning(c, id, ctx, msg) }

// Error starts a line about something that went wrong.
func Error(c Component, id int32, ctx, msg string) *Entry { return Std.Error(c, id, ctx, msg) }

// Fatal starts the last line before the process ends; it does not end it.
func Fatal(c Component, id int32, ctx, msg string) *Entry { return Std.Fatal(c, id, ctx, msg) }

// Debug starts a line of level 1 to 5; nil if the component's verbosity is lower.
func Debug(level int, c Component, id int32, ctx, msg string) *Entry {
	return Std.Debug(level, c, id, ctx, msg)
}

// On reports whether debug lines of a level of c are written.
func On(c Component, level int) bool { return Std.On(c, level) }
