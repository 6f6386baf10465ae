package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// `shoal start` on the directory of a `shoal mongod`, or the reverse, or another topology made a second, empty store beside
// the first: it is refused by name, and the same way of starting finds its data.
func TestOneDirectoryOneWayOfStarting(t *testing.T) {
	ways := map[string][]string{
		"shoal mongod":                                   {"mongod", "--port", "0", "--dbpath"},
		"shoal start --topology sharded":                 {"start", "--listen", "127.0.0.1:0", "--data-dir"},
		"shoal start --topology replset (or standalone)": {"start", "--listen", "127.0.0.1:0", "--topology", "standalone", "--data-dir"},
	}
	whole := func(args []string, dir string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], append(append([]string(nil), args...), dir)...)
		cmd.Env = append(os.Environ(), asShoal+"="+asWhole)
		return cmd
	}
	begin := func(way, dir string) {
		t.Helper()
		o := newOutsider(t)
		o.args = append(append([]string(nil), ways[way]...), dir)
		o.start()
		eventually(t, way, func() bool { return o.logHas(`"id":23016`, 1) })
		o.signal(syscall.SIGTERM)
		if code := o.endedWith(t); code != exitClean {
			t.Errorf("%s ended with %d", way, code)
		}
	}
	for way := range ways {
		dir := t.TempDir()
		begin(way, dir)
		before, _ := filepath.Glob(filepath.Join(dir, "*"))
		for other, args := range ways {
			if other == way {
				continue
			}
			out, err := whole(args, dir).CombinedOutput()
			if exitCode(err) != exitUncaught || !strings.Contains(string(out), "holds the data of `"+way+"`, which `"+other+"` would not find") {
				t.Errorf("%s on the directory of %s: %v, %s", other, way, err, out)
			}
		}
		if after, _ := filepath.Glob(filepath.Join(dir, "*")); len(after) != len(before) {
			t.Errorf("%s: %v became %v", way, before, after)
		}
		begin(way, dir)
	}
}
