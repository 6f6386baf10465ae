package main

import "golang.org/x/sys/unix"

// awaitStopped returns when all threads of a child process have stopped, or it has ended.
func awaitStopped(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
