package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/shoaldb/shoal/internal/await"
)

// asReaper makes the test binary kill the processes of tests that it is told of, once its standard input ends: tests that are killed, or run into go test's
// time limit, clean nothing up, and servers that they leave, frozen ones among them, would keep ports, memory and time from whatever runs next.
const asReaper = "reaper"

// reap reads a process a line, with a minus when it has ended.
func reap(from io.Reader) {
	live := map[int]bool{}
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 {
			live[pid] = true
		} else {
			delete(live, -pid)
		}
	}
	for pid := range live {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// reaper is told of processes. It has a process group of its own, as the group of tests may be killed.
var reaper struct {
	sync.Mutex
	to io.Writer
}

// reaps begins a process that ends with the tests at the latest, and returns what is to be called at its end.
func reaps(cmd *exec.Cmd) (ended func(), err error) {
	reaper.Lock()
	defer reaper.Unlock()
	if reaper.to == nil {
		r := exec.Command(os.Args[0])
		r.Env = append(os.Environ(), asShoal+"="+asReaper)
		r.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		to, err := r.StdinPipe()
		if err != nil {
			return nil, err
		}
		if err := r.Start(); err != nil {
			return nil, err
		}
		reaper.to = to
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	tell := func(pid int) error {
		_, err := fmt.Fprintln(reaper.to, pid)
		return err
	}
	return func() {
		reaper.Lock()
		defer reaper.Unlock()
		_ = tell(-pid)
	}, tell(pid)
}

// A process of tests that is killed leaves no servers, whether they run or are frozen.
func TestKilledTestsLeaveNoServers(t *testing.T) {
	if dir := os.Getenv(victimOfReaper); dir != "" {
		s := loneServer(t, "mongod", "--dbpath", dir)
		s.start()
		s.pause()
		fmt.Println("pid", s.cmd.Process.Pid)
		<-context.Background().Done()
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledTestsLeaveNoServers$")
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), victimOfReaper+"="+dir, "TMPDIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "pid "); ok {
			pid, _ = strconv.Atoi(text)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if pid == 0 {
		t.Fatal("no server was started")
	}
	await.True(t, "the server is gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

const victimOfReaper = "SHOAL_TEST_VICTIM_OF_REAPER"
