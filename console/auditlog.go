package console

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// AuditOptions configure the audit log (manual: auditLog Options).
type AuditOptions struct {
	Destination string // file, console or syslog; empty for no audit log
	Format      string // JSON or BSON, of a file
	Schema      string // mongo or OCSF; empty for mongo
	Path        string
	Filter      string // a query over events; empty for all
	Reopen      bool   // rotate by opening Path again
	Runtime     bool   // the filter comes from the cluster parameter auditConfig
}

// Check returns an error if options contradict each other or have invalid values.
func (o *AuditOptions) Check() error {
	switch {
	case o.Schema != "" && o.Schema != "mongo" && o.Schema != "OCSF":
		return fmt.Errorf("BadValue: invalid auditLog.schema: %s; expected one of mongo, OCSF", o.Schema)
	case o.Destination == "" && (o.Schema != "" || o.Format != "" || o.Path != "" || o.Filter != "" || o.Runtime):
		return errors.New("BadValue: auditLog.destination must be specified when auditLog.format, auditLog.schema, auditLog.path, auditLog.filter or auditLog.runtimeConfiguration is")
	case o.Runtime && o.Filter != "":
		return errors.New("BadValue: auditLog.filter cannot be specified with auditLog.runtimeConfiguration: it comes from the cluster parameter auditConfig")
	case o.Destination == "":
		return nil
	case o.Destination != "file" && o.Destination != "console" && o.Destination != "syslog":
		return fmt.Errorf("BadValue: invalid auditLog.destination: %s; expected one of console, file, syslog", o.Destination)
	case o.Destination != "file" && o.Path != "":
		return errors.New("BadValue: auditLog.path is allowed only when auditLog.destination is 'file'")
	case o.Destination == "file" && o.Path == "":
		return errors.New("BadValue: auditLog.path must be specified when auditLog.destination is to a file")
	case o.Destination == "file" && o.Format == "":
		return errors.New("BadValue: auditLog.format must be specified when auditLog.destination is to a file")
	case o.Format != "" && o.Format != "JSON" && o.Format != "BSON":
		return fmt.Errorf("BadValue: invalid auditLog.format: %s; expected JSON or BSON", o.Format)
	case o.Destination != "file" && o.Format == "BSON":
		return errors.New("BadValue: auditLog.format BSON is allowed only when auditLog.destination is 'file'")
	}
	_, err := compileAuditFilter(o.Filter)
	return err
}

// AuditLog writes audit events, each with one write call, which completes before Record returns.
type AuditLog struct {
	o  AuditOptions
	mu struct {
		sync.Mutex
		filter *match.Matcher // nil for all; it keeps state between events
		out    io.Writer
		file   *os.File // nil for the console and syslog
		buf    []byte
	}
}

// OpenAudit opens an audit log. It appends to an existing file.
func OpenAudit(o AuditOptions, stdout io.Writer) (*AuditLog, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	l := &AuditLog{o: o}
	l.mu.filter, _ = compileAuditFilter(o.Filter)
	switch o.Destination {
	case "console":
		l.mu.out = stdout
	case "syslog":
		w := newSyslogWriter()
		if err := w.open(); err != nil {
			Warning(Access, 24232, "-", "There is no syslog daemon: audit events are lost until there is one").Err(err).Write()
		}
		l.mu.out = w
	default:
		if err := l.open(); err != nil {
			return nil, fmt.Errorf("FileNotOpen: the audit log cannot be opened: %w", err)
		}
	}
	return l, nil
}

// open opens the file at the configured path; l.mu must be held, except during OpenAudit.
func (l *AuditLog) open() error {
	f, err := openInstead(l.mu.file, l.o.Path)
	if err == nil {
		l.mu.file, l.mu.out = f, f
	}
	return err
}

// SetFilter replaces the filter; an empty one matches every event.
func (l *AuditLog) SetFilter(filter []byte) error {
	m, err := compileAuditQuery(filter)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.filter = m
	return nil
}

// Record writes an event if it matches the filter, which applies to the fields of the log's own schema. Failed writes are reported in the server's log.
func (l *AuditLog) Record(event []byte) {
	ocsf := l.o.Schema == "OCSF"
	if ocsf {
		event = OCSFEvent(event)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.filter != nil {
		if ok, err := l.mu.filter.Match(event); err == nil && !ok { // an event that the filter fails on is not lost
			return
		}
	}
	line := event
	if l.o.Format != "BSON" {
		if ocsf {
			line = AppendValue(l.mu.buf[:0], value.NewDocument(event))
		} else {
			line = AppendAudit(l.mu.buf[:0], event)
		}
		line = append(line, '\n')
		if cap(line) <= 64<<10 {
			l.mu.buf = line
		}
	}
	if _, err := l.mu.out.Write(line); err != nil {
		Error(Access, 24230, "-", "Failed to write an event to the audit log").Err(err).Write()
	}
}

// Rotate starts a new file; it returns the new name of the previous one, which is empty if that was not renamed. Without a file it does
// nothing.
func (l *AuditLog) Rotate() (kept string, rotated bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.file == nil {
		return "", false, nil
	}
	if !l.o.Reopen {
		if kept, err = renameAway(l.o.Path); err != nil {
			return "", false, fmt.Errorf("rotate the audit log: %w", err)
		}
	}
	return kept, true, l.open()
}
