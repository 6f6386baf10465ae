package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A container's command is one of the programs with its options, or mongod's options alone; mongod listens on all interfaces unless it is told where.
func TestCommandsOfAContainer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		command []string
		out     string
	}{
		{[]string{"--version"}, "db version v"},
		{[]string{"mongod", "--version"}, "db version v"},
		{[]string{"mongos", "--version"}, "mongos version v"},
		{[]string{"shoal", "--version"}, "shoal, db version v"},
		{[]string{"no-such-program"}, "error: exec: \"no-such-program\""},
	} {
		if out, _ := shoal(t, entrypoint, tc.command...).CombinedOutput(); !bytes.HasPrefix(out, []byte(tc.out)) {
			t.Errorf("%v: %s", tc.command, out)
		}
	}
	file := filepath.Join(t.TempDir(), "mongod.conf")
	if err := os.WriteFile(file, []byte("net:\n  bindIp: localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ command, want string }{
		{"mongod --replSet rs0", "mongod --replSet rs0 --bind_ip_all"},
		{"mongod --bind_ip 10.0.0.1", "mongod --bind_ip 10.0.0.1"},
		{"mongod --bind_ip_all", "mongod --bind_ip_all"},
		{"mongod --config " + file, "mongod --config " + file},
		{"mongod --nonsense", "mongod --nonsense"},
		{"shoal start --shards 3", "shoal start --shards 3 --bind_ip_all --host 127.0.0.1"},
		{"shoal start --host db", "shoal start --host db --bind_ip_all"},
		{"shoal start --listen 0.0.0.0:5", "shoal start --listen 0.0.0.0:5 --host 127.0.0.1"},
		{"shoal start --listen 127.0.0.1:5", "shoal start --listen 127.0.0.1:5"},
		{"shoal start --bind_ip 10.0.0.1", "shoal start --bind_ip 10.0.0.1"},
		{"shoal mongos --nonsense", "shoal mongos --nonsense"},
	} {
		prepare := prepareMongod
		if strings.HasPrefix(tc.command, "shoal") {
			prepare = prepareShoal
		}
		args, err := prepare(strings.Fields(tc.command))
		if got := strings.Join(args, " "); err != nil || got != tc.want {
			t.Errorf("%s: %s (%v), want %s", tc.command, got, err, tc.want)
		}
	}
}

// A whole cluster in a container does not create the root user of its environment, and says so in place of running without access control.
func TestClustersInContainersRefuseARootUser(t *testing.T) {
	t.Setenv("MONGO_INITDB_ROOT_USERNAME", "admin")
	t.Setenv("MONGO_INITDB_ROOT_PASSWORD", "secret")
	if args, err := prepareShoal([]string{"shoal", "start"}); err == nil || !strings.Contains(err.Error(), "MONGO_INITDB_ROOT_USERNAME") {
		t.Errorf("it starts as %v (%v)", args, err)
	}
}

// With a root user in its environment a container runs with access control, and a new data directory begins with that user: once, whatever the
// environment has later.
func TestRootUserOfAContainer(t *testing.T) {
	t.Parallel()
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("a secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	named := []string{asShoal + "=" + asWhole, "MONGO_INITDB_ROOT_USERNAME=admin", "MONGO_INITDB_ROOT_PASSWORD_FILE=" + secret}
	count := func(port int, user *options.Credential) error {
		o := options.Client().ApplyURI(fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port))
		if user != nil {
			o.SetAuth(*user)
		}
		c, err := mongo.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Disconnect(context.Background())
		return c.Database("db").RunCommand(t.Context(), bson.D{{Key: "count", Value: "c"}}).Err()
	}
	for _, password := range []string{"a secret", "another"} {
		cmd, port := startedWith(t, named, entrypoint, "--port", "0", "--bind_ip", "127.0.0.1", "--dbpath", dir)
		if err := count(port, nil); err == nil {
			t.Error("a client without a user is let in")
		}
		if err := count(port, &options.Credential{Username: "admin", Password: "a secret"}); err != nil {
			t.Errorf("the root user is not: %v", err)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		named = []string{asShoal + "=" + asWhole, "MONGO_INITDB_ROOT_USERNAME=admin", "MONGO_INITDB_ROOT_PASSWORD=" + password}
	}
}

// What a container cannot do is refused: a server without the users that were meant to be there would be open.
func TestRefusedContainers(t *testing.T) {
	scripts := t.TempDir()
	if err := os.WriteFile(filepath.Join(scripts, "users.js"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		env     map[string]string
		scripts string
		text    string
	}{
		{"a name alone", map[string]string{"MONGO_INITDB_ROOT_USERNAME": "admin"}, "", "needs both"},
		{"a password alone", map[string]string{"MONGO_INITDB_ROOT_PASSWORD": "x"}, "", "needs both"},
		{"twice", map[string]string{"MONGO_INITDB_ROOT_PASSWORD": "x", "MONGO_INITDB_ROOT_PASSWORD_FILE": "/x"}, "", "exclude each other"},
		{"no file", map[string]string{"MONGO_INITDB_ROOT_PASSWORD_FILE": "/nowhere/x"}, "", "no such file"},
		{"a script", nil, scripts, "users.js cannot be run"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			if tc.scripts != "" {
				was := initScripts
				initScripts = tc.scripts
				defer func() { initScripts = was }()
			}
			_, err := prepareMongod([]string{"mongod", "--dbpath", t.TempDir()})
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%v, want %s", err, tc.text)
			}
		})
	}
}
