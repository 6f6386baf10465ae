package storage

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/cockroachkvs"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func (e *Engine) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		FS:                          e.files,
		DisableWAL:                  e.opts.Memory,
		CacheSize:                   e.opts.CacheSize,
		Comparer:                    &cockroachkvs.Comparer,
		KeySchema:                   cockroachkvs.KeySchema.Name,
		KeySchemas:                  sstable.MakeKeySchemas(&cockroachkvs.KeySchema),
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                uint64(e.opts.memTable),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       6, // that is three flushes on top of each other
		L0CompactionFileThreshold:   500,
		L0StopWritesThreshold:       1000,
		LBaseMaxBytes:               256 << 20,
		MaxOpenFiles:                4096,
		WALBytesPerSync:             1 << 20,
		BytesPerSync:                1 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, max(1, min(3, runtime.NumCPU()/2)) },
		Logger:                      pebbleLogger{e},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { e.log.Error().Err(err).Msg("store: background work failed") },
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				e.fail(damaged(fmt.Sprintf("file %s: %v", i.Path, i.Details)))
			},
			FlushEnd: e.replica.staging.pace.flushEnd,
			WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
				e.log.Warn().Str("reason", i.Reason).Msg("store: writes are stalled")
			},
		},
	}
	if j := e.space.journals; j != nil {
		o.EventListener.WALCreated = j.created
	}
	o.Experimental.SpanPolicyFunc = e.spans.policy
	for i := range o.Levels {
		o.Levels[i].BlockSize = 16 << 10
		o.Levels[i].IndexBlockSize = 64 << 10
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].FilterType = pebble.TableFilter
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
	}
	// Bulk loads leave files in L0 that overlap only at their ends; they may stay there, or be moved down
	// unchanged. When small tables need compaction, pebble takes as much of L0 along as 25 files of the next level
	// would hold: small files there keep that compaction from rewriting what was loaded, which had cost a third of
	// the CPU time of a bulk load.
	o.TargetFileSizes[0] = 16 << 20
	o.TargetFileSizes[1] = 4 << 20
	return o
}

// pebbleLogger forwards pebble's messages to the server's log, and keeps its fatal errors from ending the process.
type pebbleLogger struct{ e *Engine }

func (l pebbleLogger) Infof(format string, args ...interface{}) {
	if l.e.log.GetLevel() <= zerolog.TraceLevel {
		l.e.log.Trace().Msg("store: " + fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...interface{}) {
	l.e.log.Error().Msg("store: " + fmt.Sprintf(format, args...))
}

// storeFailed is the panic value of Fatalf; guard recovers from it.
type storeFailed struct{ err error }

// Fatalf marks the store as failed: nothing more is written, reads continue. Pebble expects Fatalf not to return. On
// a goroutine of ours the panic is caught by guard; one of pebble's own is terminated by Goexit with its work
// undone.
func (l pebbleLogger) Fatalf(format string, args ...interface{}) {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if inner, ok := a.(error); ok {
			err = inner
		}
	}
	l.e.fail(err)
	if guarded() {
		panic(storeFailed{err})
	}
	runtime.Goexit()
}

// guarded reports whether guard is among the callers.
func guarded() bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "(*Engine).guard") {
			return true
		}
		if !more {
			return false
		}
	}
}

// fail makes the engine read-only permanently.
func (e *Engine) fail(err error) {
	if err == nil {
		return
	}
	err = mapDiskError(err)
	if e.failed.CompareAndSwap(nil, &err) {
		e.log.Error().Err(err).Msg("store: failed; it accepts no more writes")
		if f := e.opts.OnFailure; f != nil {
			f(err)
		}
	}
}

// failure returns why the engine accepts no writes, nil while it does.
func (e *Engine) failure() error {
	if p := e.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// guard runs a function that writes to pebble and turns pebble's fatal errors into errors. After one nothing is written: a fatal error amid an ingestion leaves
// pebble's queue of commits waiting for ever.
func (e *Engine) guard(f func() error) (err error) {
	if err := e.failure(); err != nil {
		return err
	}
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		switch x := r.(type) {
		case storeFailed:
			err = mapDiskError(x.err)
		case error:
			// The write-ahead log reports a failed disk by panicking with the error.
			if _, bug := x.(runtime.Error); bug {
				panic(r)
			}
			e.fail(x)
			err = mapDiskError(x)
		default:
			panic(r)
		}
	}()
	return f()
}

// mapDiskError gives disk errors the codes that clients know.
func mapDiskError(err error) error {
	var known *mongoerr.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC):
		return mongoerr.New(mongoerr.OutOfDiskSpace, "available disk space is exhausted: "+err.Error())
	case errors.Is(err, syscall.EIO):
		return mongoerr.New(mongoerr.InternalError, "the disk reported an error: "+err.Error())
	}
	return mongoerr.New(mongoerr.InternalError, "storage: "+err.Error())
}

func errorsJoin(a, b error) error {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	return errors.Join(a, b)
}

// errorsOr returns err, or other if err is nil.
func errorsOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func closeQuietly(c io.Closer) { _ = c.Close() }
