package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/chaos"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/wire"
)

// chaosOptions are those of `shoal start --chaos`.
type chaosOptions struct {
	Profile string
	Seed    int64 // -1 where none is given
	Replay  string
	Log     string
}

// asked reports whether chaos is requested. A log alone records the steps that shoalChaos will make.
func (c *chaosOptions) asked() bool { return c.Profile != "" || c.Replay != "" || c.Log != "" }

// check refuses options that do not go together.
func (c *chaosOptions) check(topology string, test bool) error {
	switch {
	case c.Profile == "" && c.Replay == "" && c.Seed >= 0:
		return fmt.Errorf("--chaos-seed belongs to --chaos")
	case !c.asked():
		return nil
	case c.Profile != "" && c.Replay != "":
		return fmt.Errorf("--chaos generates steps and --chaos-replay repeats those of a log: give one of them")
	case c.Replay != "" && c.Seed >= 0:
		return fmt.Errorf("--chaos-replay generates nothing: it takes no --chaos-seed")
	case topology != "sharded":
		return fmt.Errorf("--chaos needs a sharded cluster, not --topology %s", topology)
	case !test:
		return fmt.Errorf("--chaos needs --set-parameter enableTestCommands=1: it is for tests, and loses connections on purpose")
	}
	if _, ok := chaos.FindProfile(c.Profile); !ok && c.Profile != "" {
		return fmt.Errorf("--chaos takes %s, not %q", chaos.ProfileNames(), c.Profile)
	}
	return nil
}

// chaosHost has the chaos engine of a process, which its routers share.
type chaosHost struct {
	engine  *chaos.Engine
	disturb *chaos.Disturber
	log     *chaosLog
}

// chaosEngine makes the engine for the first router that needs it. It acts through a router of its own.
func (a *assembly) chaosEngine(config cluster.Peer, d *directory, clock *cluster.VectorClock) (*chaos.Engine, error) {
	if a.chaos != nil {
		return a.chaos.engine, nil
	}
	log, err := openChaosLog(a.c, a.h.log)
	if err != nil {
		return nil, err
	}
	r, _ := a.newRouter(config, d, clock)
	client := command.OwnClient()
	peer := cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		return r.Service.Run(ctx, client, m, dst), nil
	})
	u := &chaosHost{disturb: &chaos.Disturber{}, log: log}
	u.engine = chaos.NewEngine(peer, r.Registry, u.disturb, log.write)
	a.chaos = u
	a.background(r.Run)
	a.onStop(func(context.Context) error {
		u.engine.Stop()
		return log.close()
	})
	return u.engine, nil
}

// beginChaos starts the chaos that the command line requests.
func (a *assembly) beginChaos() error {
	c := &a.c.Chaos
	switch {
	case c.Replay != "":
		steps, err := readChaosLog(c.Replay)
		if err != nil {
			return fmt.Errorf("--chaos-replay: %w", err)
		}
		a.h.log.Warning(console.Control, 9990002, "-", "Chaos: the steps of a log are repeated").Str("file", c.Replay).Int("steps", int64(len(steps))).Write()
		return a.chaos.engine.Replay(steps)
	case c.Profile != "":
		p, _ := chaos.FindProfile(c.Profile)
		seed := uint64(c.Seed)
		if c.Seed < 0 {
			seed = chaos.RandomSeed()
		}
		a.h.log.Warning(console.Control, 9990001, "-", "Chaos has begun").Str("profile", p.Name).Int("seed", int64(seed)).Write()
		return a.chaos.engine.Start(chaos.NewPlan(p, seed, 0))
	}
	return nil
}

// chaosLog writes the steps as lines of Extended JSON, which --chaos-replay reads. The default file is created with the first step.
type chaosLog struct {
	path string // "" for none
	log  *console.Log

	mu   sync.Mutex
	file *os.File
	err  error // the first failure, which ends the log and is reported once
}

// openChaosLog determines the file of the log, the given one or chaos.log beside the data, and opens a given one.
func openChaosLog(c *config, log *console.Log) (*chaosLog, error) {
	l := &chaosLog{path: c.Chaos.Log, log: log}
	if l.path == "" && !c.Memory && c.Program == isStart {
		l.path = filepath.Join(c.DBPath, "chaos.log")
	}
	if c.Chaos.Log == "" {
		return l, nil
	}
	return l, l.open()
}

func (l *chaosLog) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	return err
}

func (l *chaosLog) write(s *chaos.Step) {
	line, err := bson.MarshalExtJSON(bson.Raw(s.Doc()), true, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.path == "" {
		return
	}
	if l.file == nil && err == nil {
		err = l.open()
	}
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if l.err = err; err != nil {
		l.log.Warning(console.Control, 9990003, "-", "Chaos: the log of the steps ends here").Str("file", l.path).Str("error", err.Error()).Write()
	}
}

func (l *chaosLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// readChaosLog reads the steps of a log. A torn last line, of a process that was killed, is ignored.
func readChaosLog(path string) (steps []*chaos.Step, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var doc bson.Raw
		if err := bson.UnmarshalExtJSON(line, true, &doc); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		s, err := chaos.ParseStep(doc)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		if k := len(steps); k > 0 && s.At < steps[k-1].At {
			return nil, fmt.Errorf("%s, line %d: the steps are not in the order of their times", path, n)
		}
		steps = append(steps, s)
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("%s has no steps", path)
	}
	return steps, nil
}
