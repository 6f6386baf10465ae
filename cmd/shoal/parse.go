package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// programs maps the first argument, or the binary's own name, to a program.
var programs = map[string]program{"start": isStart, "mongod": isMongod, "mongos": isMongos}

func (p program) String() string {
	switch p {
	case isMongod:
		return "mongod"
	case isMongos:
		return "mongos"
	}
	return "shoal start"
}

func (p program) table() *table {
	switch p {
	case isMongod:
		return mongodTable
	case isMongos:
		return mongosTable
	}
	return startTable
}

// parse reads a program's command line and the configuration file that it names; the command line takes precedence.
func parse(p program, args []string) (*config, error) {
	c := newConfig(p)
	if p == isStart {
		c.DBPath = "data"
	}
	t := p.table()
	line, err := t.parseArgs(args)
	if err != nil {
		return nil, err
	}
	c.Argv = append([]string{strings.TrimPrefix(p.String(), "shoal ")}, shownArgs(args, line)...)
	if err := apply(c, line); err != nil {
		return nil, err
	}
	if c.Help || c.Version {
		return c, nil
	}
	all := line
	if c.File != "" {
		file, err := t.readFile(c.File)
		if err != nil {
			return nil, err
		}
		all = append(withoutGiven(file, line), line...)
		c = &config{}
		*c = *newConfig(p)
		c.Argv = append([]string{p.String()}, shownArgs(args, line)...)
		if err := apply(c, all); err != nil {
			return nil, err
		}
	}
	c.Parsed = parsedOptions(all)
	if err := c.finish(); err != nil {
		var u *usageError
		if !errors.As(err, &u) {
			err = &usageError{err.Error()}
		}
		return nil, err
	}
	return c, nil
}

// hiddenValue takes the place of a password where options are shown.
const hiddenValue = "<password>"

// shownArgs returns a command line as getCmdLineOpts shows it: without the passwords among its settings.
func shownArgs(args []string, line []setting) []string {
	out := slices.Clone(args)
	for _, s := range line {
		if !s.opt.secret || s.value == "" {
			continue
		}
		for i, a := range out {
			if before, is := strings.CutSuffix(a, s.value); is && (before == "" || strings.HasSuffix(before, "=")) {
				out[i] = before + hiddenValue
			}
		}
	}
	return out
}

// withoutGiven drops the settings of a file that the command line also has, except for lists, which are concatenated.
func withoutGiven(file, line []setting) []setting {
	given := map[string]bool{}
	for _, s := range line {
		if s.opt.kind != listKind {
			given[s.opt.path] = true
		}
	}
	var out []setting
	for _, s := range file {
		if s.opt.path == "" || !given[s.opt.path] {
			out = append(out, s)
		}
	}
	return out
}

// has reports whether a path was given.
func (c *config) has(path string) bool {
	doc := c.Parsed
	keys := strings.Split(path, ".")
	for i, k := range keys {
		v := value.Lookup(doc, k)
		if v.IsMissing() {
			return false
		}
		if i < len(keys)-1 {
			doc = v.Doc()
		}
	}
	return true
}
