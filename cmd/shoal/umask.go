package main

import (
	"fmt"
	"strconv"
	"syscall"
)

// ownFiles is the mask that leaves new files to the server's own user.
const ownFiles = 0o077

// fileMask returns the mask with which the process creates files, by the parameters processUmask and honorSystemUmask; own is false if it is the
// system's.
func (c *config) fileMask() (mask int, own bool, err error) {
	mask, own = ownFiles, true
	for _, p := range c.Parameters {
		switch p.Name {
		case "honorSystemUmask":
			own = p.Value != "true" && p.Value != "1"
		case "processUmask":
			n, err := strconv.ParseUint(p.Value, 8, 32)
			if err != nil || n > 0o777 {
				return 0, false, fmt.Errorf("BadValue: processUmask: expected an octal number, such as 077, found %q", p.Value)
			}
			mask = int(n)
		}
	}
	return mask, own, nil
}

// maskFiles sets the process's mask before it creates its first file. Credentials, keys and everyone's documents are in the files of the data directory:
// by default other users of the machine may read none of them, whatever mask the server was started with.
func (c *config) maskFiles() {
	if mask, own, err := c.fileMask(); err == nil && own { // it was checked when the options were read
		syscall.Umask(mask)
	}
}
