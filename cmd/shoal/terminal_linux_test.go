package main

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a new terminal.
func openTerminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("this machine has no terminals: ", err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	return ours, theirs
}

// On a terminal, `shoal start` hid its startup message among a hundred lines of JSON.
func TestStartOnATerminalSpeaksPlainly(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := openTerminal(t)
	cmd := exec.Command(os.Args[0], "start", "--listen", "127.0.0.1:0", "--data-dir", dir)
	cmd.Env = append(os.Environ(), asShoal+"="+asWhole)
	cmd.Stdout, cmd.Stderr = theirs, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_ = theirs.Close()
	var lines []string
	in := bufio.NewScanner(ours)
	for in.Scan() {
		lines = append(lines, strings.TrimRight(in.Text(), "\r"))
		if strings.HasPrefix(in.Text(), "Ctrl-C") {
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	want := []string{
		`^Sharded cluster: 1 router\(s\), 1 config server, 2 shard\(s\)$`, `^Data: ` + regexp.QuoteMeta(dir) + `$`,
		`^Connect with: mongosh mongodb://127\.0\.0\.1:[1-9]\d*/$`, `^Ctrl-C stops it\.$`,
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	for i, w := range want {
		if !regexp.MustCompile(w).MatchString(lines[i]) {
			t.Errorf("%q is not %s", lines[i], w)
		}
	}
}
