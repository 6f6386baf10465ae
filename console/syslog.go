package console

import (
	"errors"
	"log/syslog"
	"time"
)

// syslogRetry is the time that a syslogWriter waits before it looks for the daemon again.
const syslogRetry = time.Second

var errNoDaemon = errors.New("there is no syslog daemon")

// syslogWriter writes to the system's log like syslog(3): messages are lost while there is no daemon. The first loss is reported by an error of
// Write, and the number of lost messages in the server's log once a daemon is back.
type syslogWriter struct {
	dial  func() (*syslog.Writer, error)
	w     *syslog.Writer // nil: no daemon was there
	tried time.Time
	lost  int
}

func newSyslogWriter() *syslogWriter {
	return &syslogWriter{dial: func() (*syslog.Writer, error) { return syslog.New(syslog.LOG_USER|syslog.LOG_INFO, "mongod") }}
}

// Write is called by one goroutine at a time.
func (s *syslogWriter) Write(line []byte) (int, error) {
	err := s.open()
	if err == nil {
		if _, err = s.w.Write(line); err != nil {
			_ = s.w.Close()
			s.w, s.tried = nil, time.Now()
		}
	}
	if err == nil {
		if s.lost > 0 {
			Warning(Access, 24231, "-", "The syslog daemon is back; audit events were lost").Int("lost", int64(s.lost)).Write()
			s.lost = 0
		}
		return len(line), nil
	}
	if s.lost++; s.lost > 1 {
		return len(line), nil // reported already
	}
	return 0, err
}

func (s *syslogWriter) open() (err error) {
	if s.w != nil {
		return nil
	}
	if time.Since(s.tried) < syslogRetry {
		return errNoDaemon
	}
	s.tried = time.Now()
	s.w, err = s.dial()
	return err
}
