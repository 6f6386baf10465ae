package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/shoaldb/shoal/command"
)

// Exit codes of the real servers (manual: "Exit Codes and Statuses").
const (
	exitClean     = 0
	exitError     = 1
	exitBadOption = 2
	exitAbrupt    = 14
	exitNetError  = 48
	exitNewerData = 62
	exitUncaught  = 100
)

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr, start))
}

// start makes the roles that a configuration specifies.
func start(c *config, h *host) (*roles, error) {
	if c.Program == isStart {
		return startCluster(c, h)
	}
	return startServer(c, h)
}

// starter is start, or its replacement in tests.
type starter func(*config, *host) (*roles, error)

// run is main as a function: argv begins with the binary's name, the result is the exit code.
func run(argv []string, out, errOut io.Writer, start starter) int {
	if filepath.Base(argv[0]) == entrypoint {
		return runInContainer(argv[1:], out, errOut, start)
	}
	p, args, ok := chooseProgram(argv)
	if !ok {
		return usage(args, out, errOut)
	}
	c, err := parse(p, args)
	var bad *usageError
	switch {
	case errors.As(err, &bad):
		fmt.Fprintf(errOut, "%s\ntry '%s --help' for more information\n", bad.msg, p)
		return exitBadOption
	case err != nil:
		fmt.Fprintln(errOut, err)
		return exitBadOption
	case c.Help:
		fmt.Fprintf(out, "Usage: %s [options]\n\nOptions:\n%s", p, p.table().help())
		return exitClean
	case c.Version:
		fmt.Fprint(out, versionText(p))
		return exitClean
	case c.Shutdown:
		return stopRunning(c.DBPath, out, errOut)
	case c.Fork && !isForkedChild():
		return forkAndWait(argv, out, errOut)
	}
	return serve(c, out, errOut, start)
}

// chooseProgram determines the program by the name that the binary was called by, else by the first argument.
func chooseProgram(argv []string) (p program, args []string, ok bool) {
	if p, ok := programs[filepath.Base(argv[0])]; ok && p != isStart {
		return p, argv[1:], true
	}
	if len(argv) < 2 {
		return 0, nil, false
	}
	p, ok = programs[argv[1]]
	if !ok {
		return 0, argv[1:], false
	}
	return p, argv[2:], true
}

const usageText = `Usage:
  shoal start [options]    a whole cluster in one process
  shoal mongod [options]   one server that holds data, with mongod's options
  shoal mongos [options]   one router, with mongos's options
  shoal --version

Each has --help. The binary also answers to the names mongod and mongos.
`

func usage(args []string, out, errOut io.Writer) int {
	switch {
	case len(args) > 0 && (args[0] == "--version" || args[0] == "version"):
		fmt.Fprint(out, versionText(isStart))
		return exitClean
	case len(args) > 0 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help"):
		fmt.Fprint(out, usageText)
		return exitClean
	case len(args) > 0:
		fmt.Fprintf(errOut, "Error parsing command line: unrecognised program '%s'\n", args[0])
	}
	fmt.Fprint(errOut, usageText)
	return exitBadOption
}

// versionText begins with the line from which launchers read the version.
func versionText(p program) string {
	first := "db version v"
	switch p {
	case isMongos:
		first = "mongos version v"
	case isStart:
		first = "shoal, db version v"
	}
	var info bytes.Buffer
	_ = json.Indent(&info, command.ThisBuild().Info(), "", "    ")
	return first + command.Version + "\nBuild Info: " + info.String() + "\n"
}
