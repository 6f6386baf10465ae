package main

import (
	"errors"
	"strings"
	"testing"
)

// FuzzConfigFile: any content of a configuration file is accepted or refused with a message.
func FuzzConfigFile(f *testing.F) {
	for _, s := range []string{
		"net:\n  port: 27017\n  bindIp: 127.0.0.1,::1\nstorage:\n  dbPath: /tmp/x\nreplication:\n  replSetName: rs0\n",
		"sharding:\n  clusterRole: shardsvr\n  configDB: cfg/a:1,b:2\nsetParameter:\n  enableTestCommands: 1\nsystemLog:\n  destination: file\n  path: /tmp/l\n  verbosity: 2\n",
		"port=27017\nfork=true\nlogpath=/tmp/l # a comment\nsetParameter=a=1\n", "", "a: [1, 2", "net: {port: [1, 2]}", "net: &a\n  port: *a\n", "\xff\xfe", "processManagement:\n  fork: true\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, p := range []program{isMongod, isMongos} {
			settings, err := p.table().readConfig(raw)
			if err == nil {
				c := newConfig(p)
				if err = apply(c, settings); err == nil {
					_ = parsedOptions(settings)
					c.Addrs()
				}
			}
			checkUsage(t, string(raw), err)
		}
	})
}

// FuzzCommandLine: any arguments are accepted or refused with a message.
func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{
		"--port 27017 --dbpath /tmp/x", "-vvv --replSet rs0", "--configdb cfg/a:1,b:2 --bind_ip=::1", "--setParameter a=1 --setParameter b", "-f", "--fork=1", "--port 99999999999999999999",
		"--bind_ip_all --ipv6 --quiet --help", "--configdb /,,, --port -1", "--listen a:b:c --topology none", "--shards 0 --replicas 99", "-p=1 -vx",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		for _, a := range args {
			if strings.HasPrefix(a, "-f") || strings.HasPrefix(a, "--config") && !strings.HasPrefix(a, "--configdb") && !strings.HasPrefix(a, "--configsvr") {
				return // it would read a file
			}
		}
		for _, p := range []program{isStart, isMongod, isMongos} {
			c, err := parse(p, args)
			if err == nil {
				c.Addrs()
			}
			checkUsage(t, line, err)
		}
	})
}

// checkUsage checks that an error has a useful message.
func checkUsage(t *testing.T, input string, err error) {
	t.Helper()
	var u *usageError
	if err != nil && (errors.As(err, &u) && u.msg == "" || err.Error() == "") {
		t.Fatalf("%q is refused without a message", input)
	}
}
