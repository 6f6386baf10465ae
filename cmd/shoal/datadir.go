package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
)

const (
	lockName   = "mongod.lock"
	engineMark = "storage.bson"
)

// dataLock is the exclusive lock on a data directory; nil holds nothing.
type dataLock struct{ f *os.File }

// lockData locks the data directory for this process and writes the files that tools look for: mongod.lock with the
// process id, storage.bson.
func lockData(c *config) (*dataLock, error) {
	if c.Memory || c.Program == isMongos {
		return nil, nil
	}
	if c.Program == isStart {
		if err := os.MkdirAll(c.DBPath, 0o777); err != nil {
			return nil, err
		}
	}
	if st, err := os.Stat(c.DBPath); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("NonExistentPath: Data directory %s not found. Create the missing directory or specify another "+
			"directory using (1) the --dbpath command line option, or (2) by adding the 'storage.dbPath' option in the "+
			"configuration file.", c.DBPath)
	}
	if err := checkLayout(c); err != nil {
		return nil, err
	}
	path := filepath.Join(c.DBPath, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("IllegalOperation: Attempted to create a lock file on a read-only directory: %s: %w", c.DBPath, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("DBPathInUse: Unable to lock the lock file: %s (%v). Another mongod instance is already running "+
			"on the %s directory", path, err, c.DBPath)
	}
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		console.Warning(console.Storage, 22271, "initandlisten", "Detected unclean shutdown - Lock file is not empty").
			Str("lockFile", path).Write()
	}
	if err := rewrite(f, strconv.Itoa(os.Getpid())+"\n"); err != nil {
		_ = f.Close()
		return nil, err
	}
	if err := markEngine(c.DBPath); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &dataLock{f}, nil
}

// checkLayout refuses a directory that was made by another kind of start: otherwise a new, empty store would be created
// beside the existing one.
func checkLayout(c *config) error {
	holds := func(store string) bool {
		found, _ := filepath.Glob(filepath.Join(c.DBPath, store, "MANIFEST-*"))
		return len(found) > 0
	}
	if _, err := os.Stat(filepath.Join(c.DBPath, "WiredTiger")); err == nil {
		return fmt.Errorf("InvalidOptions: the directory %s holds files of the storage engine WiredTiger, which shoal does not read: use "+
			"another directory, and bring the data over with mongodump and mongorestore", c.DBPath)
	}
	was := ""
	switch _, err := os.Stat(filepath.Join(c.DBPath, engineMark)); {
	case err != nil: // not in use yet
	case holds(""):
		was = "shoal mongod"
	case holds("config") || holds(shardName(0)):
		was = "shoal start --topology sharded"
	case holds("node"):
		was = "shoal start --topology replset (or standalone)"
	}
	is := "shoal mongod"
	switch {
	case c.Program == isStart && c.Topology == "sharded":
		is = "shoal start --topology sharded"
	case c.Program == isStart:
		is = "shoal start --topology replset (or standalone)"
	}
	if was == "" || was == is {
		return nil
	}
	return fmt.Errorf("InvalidOptions: the directory %s holds the data of `%s`, which `%s` would not find: use the former, or "+
		"another directory", c.DBPath, was, is)
}

func rewrite(f *os.File, text string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// markEngine writes storage.bson, by which a container's entry point recognises an initialised directory.
func markEngine(dir string) error {
	path := filepath.Join(dir, engineMark)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	options := value.Doc(value.F("directoryPerDB", value.NewBool(false)), value.F("directoryForIndexes", value.NewBool(false)),
		value.F("groupCollections", value.NewBool(false)))
	doc := value.Doc(value.F("storage", value.NewDocument(value.Doc(value.F("engine", value.NewString("pebble")),
		value.F("options", value.NewDocument(options))))))
	return os.WriteFile(path, doc, 0o666)
}

// release empties the lock file, which marks a clean shutdown, and unlocks it.
func (l *dataLock) release() {
	if l == nil {
		return
	}
	_ = l.f.Truncate(0) // if it fails, the next start warns of an unclean shutdown; nothing depends on it
	_ = l.f.Close()
}

func writePID(path string) error {
	if path == "" {
		return nil
	}
	err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644)
	if err == nil {
		err = os.Chmod(path, 0o644) // whatever the umask: other users read it
	}
	if err != nil {
		return fmt.Errorf("FileStreamFailed: Failed to write pid file to %s: %w", path, err)
	}
	return nil
}

func removePID(path string) {
	if path != "" {
		_ = os.Remove(path) // someone may have removed it already
	}
}

// stopRunning ends the server of a data directory and waits for its end: --shutdown.
func stopRunning(dir string, out, errOut io.Writer) int {
	path := filepath.Join(dir, lockName)
	raw, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintf(errOut, "Failed to open lock file %s: %v\n", path, unwrapPath(err))
		return exitError
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 0 || syscall.Kill(pid, 0) != nil {
		fmt.Fprintf(errOut, "There doesn't seem to be a server running with dbpath: %s\n", dir)
		return exitError
	}
	fmt.Fprintf(out, "killing process with pid: %d\n", pid)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		fmt.Fprintf(errOut, "failed to kill process: %v\n", err)
		return exitError
	}
	for !lockIsFree(path) {
		time.Sleep(20 * time.Millisecond) // the other process gives no other signal
	}
	return exitClean
}

// lockIsFree reports whether the lock file is not locked.
func lockIsFree(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
