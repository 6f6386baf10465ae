package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
)

// asSlow as the value of asShoal runs roles that only listen, and end when there is a file called end.
const asSlow = "slow"

func endSlowly(c *config, h *host) (*roles, error) {
	r, err := listenOnly(c, h)
	if err != nil {
		return nil, err
	}
	stop := r.Stop
	r.Stop = func(ctx context.Context) error {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(c.DBPath, "end")); err == nil {
				break
			}
			time.Sleep(time.Millisecond) // this is the server's process, the test is another
		}
		return stop(ctx)
	}
	return r, nil
}

// endedWith returns the exit code of a server that has ended by itself.
func (s *server) endedWith(t *testing.T) int {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the server has not ended")
	}
	code := s.cmd.ProcessState.ExitCode()
	s.cmd = nil
	return code
}

// A second signal during the shutdown made a server exit with 1, and leave its lock file and socket.
func TestSecondSignalDuringShutdown(t *testing.T) {
	dir := t.TempDir()
	o := loneServer(t, "mongod", "--dbpath", dir, "--unixSocketPrefix", dir)
	o.as = asSlow
	o.start()
	socket := filepath.Join(dir, fmt.Sprintf("mongodb-%d.sock", o.port))
	await.True(t, "the socket is there", func() bool { // it may be bound after the port
		_, err := os.Stat(socket)
		return err == nil
	})
	for i, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM} {
		o.signal(s)
		await.True(t, "the log names the signal", func() bool { return o.logHas(`"id":23377`, i+1) })
	}
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := o.endedWith(t); code != exitClean {
		t.Errorf("exit code %d", code)
	}
	if st, err := os.Stat(filepath.Join(dir, lockName)); err != nil || st.Size() != 0 {
		t.Errorf("the lock file: %v, %v", st, err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there")
	}
}

// A router that waited for its config server ignored SIGTERM.
func TestWaitingRouterObeysSIGTERM(t *testing.T) {
	o := loneServer(t, "mongos", "--configdb", "cfg/127.0.0.1:1")
	o.launch()
	await.True(t, "the router has begun", func() bool { return o.logHas(`"id":21951`, 1) })
	began := time.Now()
	o.signal(syscall.SIGTERM)
	if code := o.endedWith(t); code != exitClean || time.Since(began) > stopTimeout/2 {
		t.Errorf("exit code %d after %v", code, time.Since(began))
	}
}

// The child process of --fork was called shoal, whatever its parent was called: launchers look for mongod and mongos.
func TestForkedChildBearsTheNameItWasCalledBy(t *testing.T) {
	for _, name := range []string{"mongod", "mongos"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.Symlink(os.Args[0], path); err != nil {
			t.Fatal(err)
		}
		pidFile := filepath.Join(dir, "pid")
		args := []string{"--fork", "--port", "0", "--logpath", filepath.Join(dir, "log"), "--pidfilepath", pidFile}
		if name == "mongod" {
			args = append(args, "--dbpath", dir)
		} else {
			args = append(args, "--configdb", "c/127.0.0.1:1")
		}
		for _, called := range []string{path, name} { // by its path, and found in PATH
			cmd := exec.Command(path, args...)
			cmd.Args[0] = called
			cmd.Env = append(os.Environ(), asShoal+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			raw, err := os.ReadFile(pidFile)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
			if err != nil {
				t.Fatal(err)
			}
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			_ = syscall.Kill(pid, syscall.SIGTERM)
			if got := strings.TrimSpace(string(comm)); got != name || !strings.HasPrefix(string(cmdline), called+"\x00") {
				t.Errorf("called %s, the child is %q, %q", called, got, cmdline)
			}
			await.True(t, "the child ends", func() bool { _, err := os.Stat(pidFile); return os.IsNotExist(err) })
		}
	}
}

// --syslog on a machine without a daemon prevented servers from starting.
func TestSyslogWithoutADaemon(t *testing.T) {
	if _, err := os.Stat("/dev/log"); err == nil {
		t.Skip("this machine has a daemon")
	}
	cmd, _ := started(t, "mongod", "--syslog", "--port", "0", "--dbpath", t.TempDir())
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
