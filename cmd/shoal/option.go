package main

import (
	"fmt"
	"strings"
)

// kind is the kind of an option's argument.
type kind uint8

const (
	flagKind   kind = iota // none on the command line; true or false in a file
	textKind               // a string
	numberKind             // an integer
	listKind               // a string, may be given several times
	countKind              // none, may be repeated: -vvv
)

// program is the program that an option belongs to.
type program uint8

const (
	isMongod program = 1 << iota
	isMongos
	isStart
	isBoth = isMongod | isMongos
)

// option is one row of an option table.
type option struct {
	name  string // the long name, without dashes; empty for an option that exists only in files
	short string
	path  string // in the configuration file and in getCmdLineOpts.parsed
	yes   string // the value at path if the flag is given on the command line; empty means "true"
	kind  kind
	on    program
	arg   string // placeholder in --help
	// secret means that the value is a password: diagnostics show hiddenValue instead.
	secret bool
	help   string
	set    func(c *config, v string) error // nil for an option that is accepted without effect
}

// setting is an option with its value, from the command line or a file.
type setting struct {
	opt   *option
	value string
}

// usageError is a mistake in the command line: reported in one line, exit code 2.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

// refusal is a known option whose effect this server does not have: reported in one line, exit code 2.
type refusal struct{ msg string }

func (e *refusal) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// table finds the options of one program.
type table struct {
	rows   []option
	byName map[string]*option
	byPath map[string]*option
}

func newTable(rows []option, on program) *table {
	t := &table{byName: map[string]*option{}, byPath: map[string]*option{}}
	for _, o := range rows {
		if o.on&on != 0 {
			t.rows = append(t.rows, o)
		}
	}
	for i := range t.rows {
		o := &t.rows[i]
		if o.name != "" {
			t.byName["--"+o.name] = o
		}
		if o.short != "" {
			t.byName["-"+o.short] = o
		}
		// The row without a name defines its path in files; otherwise the first row does.
		if was := t.byPath[o.path]; o.path != "" && (was == nil || o.name == "") {
			t.byPath[o.path] = o
		}
	}
	return t
}

// parseArgs reads a command line.
func (t *table) parseArgs(args []string) ([]setting, error) {
	var out []setting
	seen := map[*option]bool{}
	for len(args) > 0 {
		s, rest, err := t.parseOne(args)
		if err != nil {
			return nil, err
		}
		args = rest
		if s.opt.kind != listKind && s.opt.kind != countKind && seen[s.opt] {
			return nil, usagef("Error parsing command line: Multiple occurrences of option \"--%s\"", s.opt.name)
		}
		seen[s.opt] = true
		out = append(out, s)
	}
	return out, nil
}

func (t *table) parseOne(args []string) (setting, []string, error) {
	word := args[0]
	if len(word) < 2 || word[0] != '-' {
		return setting{}, nil, usagef("Error parsing command line: too many positional options have been specified on the command line")
	}
	name, val, given := strings.Cut(word, "=")
	if !strings.HasPrefix(word, "--") {
		if v := strings.Trim(word[1:], "v"); v == "" {
			name, val, given = "-v", word[1:], true // -vvv
		} else if len(word) > 2 {
			name, val, given = word[:2], word[2:], true // -fFILE
		}
	}
	o := t.byName[name]
	if o == nil {
		return setting{}, nil, usagef("Error parsing command line: unrecognised option '%s'", name)
	}
	args = args[1:]
	switch o.kind {
	case flagKind:
		if given {
			return setting{}, nil, usagef("Error parsing command line: option '--%s' does not take any arguments", o.name)
		}
		val = o.yes
		if val == "" {
			val = "true"
		}
	case countKind:
		if !given && len(args) > 0 && args[0] != "" && strings.Trim(args[0], "v") == "" {
			val, args = args[0], args[1:]
		}
		if val == "" {
			val = "v"
		}
	default:
		if !given {
			if len(args) == 0 || strings.HasPrefix(args[0], "--") {
				return setting{}, nil, usagef("Error parsing command line: the required argument for option '--%s' is missing", o.name)
			}
			val, args = args[0], args[1:]
		}
	}
	return setting{o, val}, args, nil
}

// apply applies settings to a configuration, in order.
func apply(c *config, settings []setting) error {
	for _, s := range settings {
		if s.opt.set == nil {
			continue
		}
		if err := s.opt.set(c, s.value); err != nil {
			return err
		}
	}
	return nil
}

// help lists the options, each on a line of its own: launchers read from it which options a server supports.
func (t *table) help() string {
	var b strings.Builder
	for i := range t.rows {
		o := &t.rows[i]
		if o.name == "" {
			continue
		}
		left := "  --" + o.name
		if o.short != "" {
			left = "  -" + o.short + " [ --" + o.name + " ]"
		}
		switch {
		case o.kind == countKind:
			left += " [=arg(=v)]"
		case o.kind != flagKind && o.arg != "":
			left += " " + o.arg
		case o.kind != flagKind:
			left += " arg"
		}
		fmt.Fprintf(&b, "%-42s %s\n", left, o.help)
	}
	return b.String()
}
