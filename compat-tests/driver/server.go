package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// server is a fresh server in memory.
type server struct {
	cmd *exec.Cmd
	uri string
}

// start tries ports until as many in a row are free as routers or members need, and waits for the connection string.
func start(shoal, topology string) (*server, error) {
	var last string
	for range 20 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		replicas := "1"
		if topology == "replset" {
			replicas = "3" // tests step primaries down, and count members
		}
		cmd := exec.Command(shoal, "start", "--replicas", replicas, "--memory", "--topology", topology, "--routers", "2", "--listen", addr, "--quiet",
			"--set-parameter", "enableTestCommands=1")
		if topology == "secured" {
			cmd = exec.Command(os.Getenv("SECURED"), "-shoal", shoal)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		in := bufio.NewReader(out)
		for {
			line, err := in.ReadString('\n')
			if uri, ok := strings.CutPrefix(line, "Connection string: "); ok {
				go func() { _, _ = io.Copy(io.Discard, in) }()
				return &server{cmd: cmd, uri: strings.TrimSpace(uri)}, nil
			}
			if last += line; err != nil {
				break
			}
		}
		_ = cmd.Wait()
	}
	return nil, fmt.Errorf("the server does not start on %s: %s", topology, last[max(0, len(last)-500):])
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	t := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	t.Stop()
}
