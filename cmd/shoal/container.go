package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The entry point of the container image, which has no shell. It does what the official image documents: options alone are mongod's; mongod
// listens on all interfaces unless told otherwise; with a root user's name and password in the environment it runs with access control, and a
// new data directory begins with that user.

// entrypoint is the name by which the binary is called as the entry point of a container.
const entrypoint = "entrypoint"

// initScripts is the directory with the scripts that the official image runs on a new data directory.
var initScripts = "/docker-entrypoint-initdb.d"

// rootUser is the user that a new data directory begins with.
type rootUser struct{ name, password string }

// runInContainer runs a container's command.
func runInContainer(args []string, out, errOut io.Writer, start starter) int {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		args = append([]string{"mongod"}, args...)
	}
	var err error
	switch args[0] {
	case "mongod":
		args, err = prepareMongod(args)
	case "shoal":
		args, err = prepareShoal(args)
	case "mongos":
	default:
		return execute(args, errOut)
	}
	if err != nil {
		fmt.Fprintln(errOut, "error:", err)
		return exitError
	}
	return run(args, out, errOut, start)
}

// execute replaces this process by another program, which an image built on this one may have.
func execute(args []string, errOut io.Writer) int {
	path, err := exec.LookPath(args[0])
	if err == nil {
		err = syscall.Exec(path, args, os.Environ())
	}
	fmt.Fprintln(errOut, "error:", err)
	return exitError
}

// prepareMongod returns mongod's command line with the options that a container adds, and prepares a new data directory.
func prepareMongod(args []string) ([]string, error) {
	c, err := parse(isMongod, args[1:])
	if err != nil || c.Help || c.Version || c.Shutdown {
		return args, nil // run reports the error
	}
	root, err := rootFromEnv()
	if err != nil {
		return nil, err
	}
	if !c.has("net.bindIp") && !c.has("net.bindIpAll") {
		args = append(args, "--bind_ip_all")
	}
	if root != nil && !c.has("security.authorization") {
		args = append(args, "--auth")
	}
	if c, err = parse(isMongod, args[1:]); err != nil || c.Memory || !isNew(c.DBPath) {
		return args, nil
	}
	if err := refuseScripts(); err != nil {
		return nil, err
	}
	if root != nil {
		if err := createRoot(c, root); err != nil {
			return nil, fmt.Errorf("the root user cannot be created: %w", err)
		}
	}
	return args, nil
}

// prepareShoal returns the command line of `shoal start` with the option that makes it reachable from outside the container. The root user is refused:
// who sets one relies on authentication.
func prepareShoal(args []string) ([]string, error) {
	if len(args) < 2 || args[1] != "start" {
		return args, nil
	}
	c, err := parse(isStart, args[2:])
	if err != nil || c.Help || c.Version {
		return args, nil // run reports the error
	}
	if root, err := rootFromEnv(); root != nil || err != nil {
		return nil, errors.Join(err, errors.New("MONGO_INITDB_ROOT_USERNAME is for mongod: with shoal start --auth create the first user through the localhost exception"))
	}
	host, _, _ := net.SplitHostPort(c.Listen[0]) // which the listener checks
	everywhere := isWildcard(host)
	if !c.has("net.listen") && !c.has("net.bindIp") && !c.has("net.bindIpAll") {
		args = append(args, "--bind_ip_all")
		everywhere = true
	}
	if everywhere && !c.has("cluster.host") {
		// The container's own host name is unknown outside of it. The loopback address leads here through a published port.
		args = append(args, "--host", "127.0.0.1")
	}
	return args, nil
}

// isNew reports whether no server has used a data directory so far. One that createRoot has used is still new.
func isNew(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, engineMark))
	return errors.Is(err, os.ErrNotExist)
}

// rootFromEnv returns the root user that the environment names, nil for none. As in the official image, name and password may also be in files,
// whose names end with _FILE.
func rootFromEnv() (*rootUser, error) {
	name, err := fromEnv("MONGO_INITDB_ROOT_USERNAME")
	if err != nil {
		return nil, err
	}
	password, err := fromEnv("MONGO_INITDB_ROOT_PASSWORD")
	switch {
	case err != nil:
		return nil, err
	case name == "" && password == "":
		return nil, nil
	case name == "" || password == "":
		return nil, errors.New("a root user needs both MONGO_INITDB_ROOT_USERNAME and MONGO_INITDB_ROOT_PASSWORD")
	}
	return &rootUser{name, password}, nil
}

func fromEnv(name string) (string, error) {
	val, file := os.Getenv(name), os.Getenv(name+"_FILE")
	if file == "" {
		return val, nil
	}
	if val != "" {
		return "", fmt.Errorf("%s and %s_FILE exclude each other", name, name)
	}
	text, err := os.ReadFile(file)
	return strings.TrimRight(string(text), "\n"), err
}

// refuseScripts returns an error if there are scripts that the official image would run: nothing here can run them, and a server must not start without
// what they set up, such as users.
func refuseScripts() error {
	for _, pattern := range []string{"*.sh", "*.js"} {
		if found, _ := filepath.Glob(filepath.Join(initScripts, pattern)); len(found) > 0 {
			return fmt.Errorf("%s cannot be run: the image has neither a shell nor mongosh. Start without it, and run it from outside", found[0])
		}
	}
	return nil
}

// createRoot creates the root user in a new data directory, before anything listens. If the process ends in between, the next start repeats it.
func createRoot(c *config, root *rootUser) (err error) {
	first := *c
	first.Security, first.TLS, first.Parameters, first.ReplSet, first.ShardSvr, first.ConfigSvr = security{}, tlsOptions{}, nil, "", false, false
	first.Audit.Destination = ""
	a, err := newAssembly(&first, newHost(isMongod))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop(context.Background())) }()
	s, err := a.openData(shardnode.Config{Dir: c.DBPath, Host: advertised(a.info.Host, 0)})
	if err != nil {
		return err
	}
	create := msg.Doc(&msg.CreateUser{DB: "admin", Name: root.name, Password: root.password, Roles: []string{"root"}})
	reply, err := s.OwnPeer().Call(context.Background(), &wire.Message{OpCode: wire.OpMsg, Body: create}, nil)
	if err == nil {
		err = cluster.ReplyError(reply)
	}
	if mongoerr.CodeOf(err) == userExists {
		return nil // by an attempt that was interrupted
	}
	return err
}

// userExists is the code of createUser's error if there is such a user.
const userExists = 51003
