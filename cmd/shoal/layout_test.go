package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoaldb/shoal/internal/await"
)

// `shoal start` on the directory of a `shoal mongod`, or the reverse, or another topology, created a second, empty store
// besides the first: now it is refused with the name of the right command, which finds its data.
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
		o := loneServer(t)
		o.args = append(append([]string(nil), ways[way]...), dir)
		o.launch()
		await.True(t, way, func() bool { return o.logHas(`"id":23016`, 1) })
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

// The directory of a real mongod looked empty: a new store was created among its files, without a warning that the data was not read.
func TestDirectoryOfAnotherEngineIsRefused(t *testing.T) {
	for _, args := range [][]string{{"mongod", "--port", "0", "--dbpath"}, {"start", "--listen", "127.0.0.1:0", "--data-dir"}} {
		dir := t.TempDir()
		for _, name := range []string{"WiredTiger", "WiredTiger.wt", "storage.bson"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(os.Args[0], append(args, dir)...)
		cmd.Env = append(os.Environ(), asShoal+"="+asWhole)
		out, err := cmd.CombinedOutput()
		if exitCode(err) != exitUncaught || !strings.Contains(string(out), "holds files of the storage engine WiredTiger") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 3 {
			t.Errorf("%v left %v", args, files)
		}
	}
}
