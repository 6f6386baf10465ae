package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// readyEnv is the environment variable with the descriptor on which a forked child reports to its parent that it is listening.
const readyEnv = "SHOAL_READY_FD"

func isForkedChild() bool { return os.Getenv(readyEnv) != "" }

// forkAndWait starts this command line again in a new session and returns when the child is listening or has failed.
func forkAndWait(argv []string, out, errOut io.Writer) int {
	exe, err := calledAs(argv[0])
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitError
	}
	r, w, err := os.Pipe()
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitError
	}
	fmt.Fprintln(out, "about to fork child process, waiting until server is ready for connections.")
	cmd := exec.Command(exe, argv[1:]...)
	cmd.Args[0] = argv[0] // mongod and mongos are chosen by it
	cmd.Env = append(os.Environ(), readyEnv+"=3")
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(errOut, err)
		return exitError
	}
	_ = w.Close()
	fmt.Fprintf(out, "forked process: %d\n", cmd.Process.Pid)
	if n, _ := r.Read(make([]byte, 1)); n == 1 {
		fmt.Fprintln(out, "child process started successfully, parent exiting")
		return exitClean
	}
	code := exitError
	var exit *exec.ExitError
	if errors.As(cmd.Wait(), &exit) {
		code = exit.ExitCode()
	}
	fmt.Fprintf(errOut, "ERROR: child process failed, exited with %d\nTo see additional information in this output, start "+
		"without the \"--fork\" option.\n", code)
	return code
}

// calledAs returns the path of this binary under the name that it was called by: the system names the process
// after it, and launchers identify their processes by the names mongod and mongos.
func calledAs(name string) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return exe, nil
	}
	if path, err = filepath.Abs(path); err != nil {
		return exe, nil
	}
	a, errA := os.Stat(path)
	b, errB := os.Stat(exe)
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		return exe, nil
	}
	return path, nil
}

// stderrToLog redirects standard error to the log file, so that what the runtime writes when a process dies is not lost.
func stderrToLog(path string) {
	if !isForkedChild() || path == "" {
		return
	}
	if f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_ = unix.Dup2(int(f.Fd()), 2)
		_ = f.Close()
	}
}

// notifyParent lets the forking parent exit.
func notifyParent() {
	fd, err := strconv.Atoi(os.Getenv(readyEnv))
	if err != nil {
		return
	}
	_ = os.Unsetenv(readyEnv)
	f := os.NewFile(uintptr(fd), "ready")
	_, _ = f.Write([]byte{1}) // an error means that the parent is gone
	_ = f.Close()
}
