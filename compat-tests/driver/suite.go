package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// unit is one package of the driver's tests, compiled.
type unit struct {
	name, dir, binary string
}

// build compiles the driver's tests, once for each version of the driver.
func build() ([]unit, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	work := filepath.Join(cache, "shoal-driver-suite-"+version)
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	goCmd := func(args ...string) (string, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = work, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("go %v: %w\n%s", args, err, stderr.String())
		}
		return strings.TrimSpace(string(out)), err
	}
	pkgs := map[string]string{"integration": driver + "/mongo/integration", "unified": driver + "/mongo/integration/unified"}
	mod := filepath.Join(work, "go.mod")
	if _, err := os.Stat(mod); err != nil {
		if err := os.WriteFile(mod, fmt.Appendf(nil, "module driversuite\n\ngo 1.22\n\nrequire %s %s\n", driver, version), 0o644); err != nil {
			return nil, err
		}
		if _, err := goCmd("get", "-t", pkgs["integration"]+"@"+version, pkgs["unified"]+"@"+version); err != nil {
			_ = os.Remove(mod)
			return nil, err
		}
	}
	root, err := goCmd("list", "-m", "-f", "{{.Dir}}", driver)
	if err != nil {
		return nil, err
	}
	var out []unit
	for _, name := range []string{"integration", "unified"} {
		u := unit{name: name, binary: filepath.Join(work, name+".test"), dir: filepath.Join(root, strings.TrimPrefix(pkgs[name], driver))}
		if _, err := os.Stat(u.binary); err != nil {
			if _, err := goCmd("test", "-c", "-o", u.binary, pkgs[name]); err != nil {
				return nil, err
			}
		}
		out = append(out, u)
	}
	return out, nil
}

// results maps a test without subtests to its verdict: PASS, FAIL or SKIP.
type results map[string]string

func (r results) named(verdict string) []string {
	var out []string
	for name, v := range r {
		if v == verdict {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// without lists the names that did not pass.
func (r results) without(list []string) []string {
	var out []string
	for _, name := range list {
		if r[name] != "PASS" {
			out = append(out, name)
		}
	}
	return out
}

// bench runs tests against fresh servers.
type bench struct {
	shoal   string
	leftOut []string
}

// whole runs a unit. A test that panics ends the process: the run continues after it.
func (b *bench) whole(u unit, topology string) results {
	all := results{}
	skip := slices.Clone(b.leftOut)
	for try := 0; try < 12; try++ {
		o := b.once(u, topology, "-test.skip="+strings.Join(skip, "|"))
		for name, v := range o.verdicts {
			if name != o.died {
				all[name] = v
			}
		}
		if !o.crashed {
			break
		}
		if o.died == "" {
			continue // it ended before the first test: the suite's own race in detecting the kind of server
		}
		all[o.died] = "FAIL"
		skip = append(skip, exact(o.died))
		skip = append(skip, o.finished()...)
	}
	return all.leaves()
}

// some runs the named tests of a unit, in small groups.
func (b *bench) some(u unit, topology string, names []string) results {
	var patterns []string
	for _, name := range names {
		if test, ok := strings.CutPrefix(name, u.name+" "); ok {
			patterns = append(patterns, exact(test))
		}
	}
	all := results{}
	for part := range slices.Chunk(patterns, 100) {
		o := b.once(u, topology, "-test.run="+strings.Join(part, "|"))
		for name, v := range o.verdicts {
			all[name] = v
		}
	}
	return all.leaves()
}

// leaves drops the tests that only contain others.
func (r results) leaves() results {
	parents := map[string]bool{}
	for name := range r {
		for i := range name {
			if name[i] == '/' {
				parents[name[:i]] = true
			}
		}
	}
	out := results{}
	for name, v := range r {
		if !parents[name] {
			out[name] = v
		}
	}
	return out
}

// exact returns the pattern of one test.
func exact(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// outcome is one run of a test binary.
type outcome struct {
	verdicts results
	order    []string
	crashed  bool
	died     string // the test that ended the process
}

// finished returns patterns of the finished tests, as few as possible.
func (o *outcome) finished() []string {
	done := map[string]bool{}
	for name := range o.verdicts {
		if name != o.died && !strings.HasPrefix(o.died, name+"/") {
			done[name] = true
		}
	}
	var out []string
next:
	for name := range done {
		for i := range name {
			if name[i] == '/' && done[name[:i]] {
				continue next
			}
		}
		out = append(out, exact(name))
	}
	return out
}

var verdictLine = regexp.MustCompile(`^\s*(?:=== RUN   (\S+)|--- (PASS|FAIL|SKIP): (\S+) )`)

func (b *bench) once(u unit, topology string, filter string) *outcome {
	o := &outcome{verdicts: results{}}
	s, err := start(b.shoal, topology)
	if err != nil {
		fmt.Println(err)
		return o
	}
	defer s.stop()
	cmd := exec.Command(u.binary, "-test.v", "-test.timeout=10m", filter)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "MONGODB_URI="+s.uri, "TOPOLOGY="+kinds[topology], "DOCKER_RUNNING=true")
	if u, err := url.Parse(s.uri); err == nil && u.User != nil {
		ca := u.Query().Get("tlsCAFile")
		beside := func(name string) string { return filepath.Join(filepath.Dir(ca), name) }
		cmd.Env = append(cmd.Env, "AUTH=auth", "SSL=ssl", "MONGO_GO_DRIVER_CA_FILE="+ca, "MONGO_GO_DRIVER_KEY_FILE="+beside("client.pem"),
			"MONGO_GO_DRIVER_PKCS8_UNENCRYPTED_KEY_FILE="+beside("client-pkcs8.pem"), "MONGO_GO_DRIVER_PKCS8_ENCRYPTED_KEY_FILE="+beside("client-pkcs8-encrypted.pem"))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	for l := range bytes.Lines(out.Bytes()) {
		m := verdictLine.FindSubmatch(l)
		switch {
		case m != nil && len(m[1]) > 0:
			o.order = append(o.order, string(m[1]))
		case m != nil:
			o.verdicts[string(m[3])] = string(m[2])
		}
	}
	var exit *exec.ExitError
	o.crashed = errors.As(err, &exit) && exit.ExitCode() != 1 || err != nil && len(o.verdicts) == 0
	if o.crashed {
		for _, name := range slices.Backward(o.order) {
			if v := o.verdicts[name]; v != "PASS" && v != "SKIP" {
				o.died = name
				break
			}
		}
	}
	if dir := os.Getenv("DRIVER_LOGS"); dir != "" {
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.log", u.name, topology, time.Now().Unix())), out.Bytes(), 0o644)
	}
	return o
}
