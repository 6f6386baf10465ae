package console

import (
	"bytes"
	"encoding/json"

	"github.com/rs/zerolog"
)

// Zero returns a logger for packages that log with zerolog: its lines become lines of this log, with one component and
// one id. Debug lines are written from the component's verbosity 1 on.
func (l *Log) Zero(c Component, id int32, ctx string) zerolog.Logger {
	return zerolog.New(zeroSink{l, c, id, ctx}).Level(zerolog.DebugLevel)
}

type zeroSink struct {
	log *Log
	c   Component
	id  int32
	ctx string
}

// Write implements io.Writer, for lines without a level.
func (s zeroSink) Write(line []byte) (int, error) { return s.WriteLevel(zerolog.InfoLevel, line) }

// WriteLevel implements zerolog.LevelWriter.
func (s zeroSink) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	if level <= zerolog.DebugLevel && !s.log.On(s.c, 1) {
		return len(line), nil
	}
	e := s.log.entry(severityOf(level), s.c, s.id, s.ctx, "")
	members := json.NewDecoder(bytes.NewReader(line))
	_, _ = members.Token() // the brace
	for members.More() {
		key, _ := members.Token()
		var v json.RawMessage
		if members.Decode(&v) != nil {
			break
		}
		switch key {
		case zerolog.LevelFieldName:
		case zerolog.MessageFieldName:
			_ = json.Unmarshal(v, &e.msg)
		case zerolog.ErrorFieldName:
			if s.log.Redacts() {
				v = json.RawMessage(`"` + redacted + `"`)
			}
			e.JSON(zerolog.ErrorFieldName, string(v))
		default:
			name, _ := key.(string)
			e.JSON(name, string(v))
		}
	}
	e.Write()
	return len(line), nil
}

func severityOf(level zerolog.Level) Severity {
	switch {
	case level <= zerolog.DebugLevel:
		return SevDebug1
	case level == zerolog.WarnLevel:
		return SevWarning
	case level == zerolog.ErrorLevel:
		return SevError
	case level == zerolog.FatalLevel, level == zerolog.PanicLevel:
		return SevFatal
	}
	return SevInfo
}
