package command

import (
	"encoding/json"
	"runtime/debug"
	"sync"
)

// Set by the Makefile with -ldflags "-X github.com/shoaldb/shoal/command.release=…". Without it the commit is the
// one recorded by the Go toolchain, which records it only in a plain git checkout.
var (
	release = "0.1.0-dev"
	commit  string
	date    string
)

// Build describes what this binary was built from. Commit and Date are empty if it was built outside a git checkout.
type Build struct {
	Release string // Shoal's version, not that of the server line it is compatible with
	Commit  string // 40 hexadecimal digits, followed by "-dirty" if files had changed
	Date    string // of the commit, RFC 3339
	Go      string
}

// ThisBuild reads the information that the Go toolchain recorded in the binary.
var ThisBuild = sync.OnceValue(func() Build {
	b := Build{Release: release, Commit: commit, Date: date}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	if b.Commit != "" {
		return b
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && b.Commit != "" {
		b.Commit += "-dirty"
	}
	return b
})

// GitVersion returns the gitVersion of buildInfo: the commit's 40 digits, or zeros if it is unknown.
func (b Build) GitVersion() string {
	if len(b.Commit) < 40 {
		return "0000000000000000000000000000000000000000"
	}
	return b.Commit[:40]
}

// allocator is the allocator that buildInfo, --version and the log name.
const allocator = "go"

// Info returns the build as --version and the log show it: the real server's fields, and Shoal's own.
func (b Build) Info() []byte {
	type own struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Date    string `json:"date"`
		Go      string `json:"go"`
	}
	out, _ := json.Marshal(struct { // of strings, which have no errors
		Version     string            `json:"version"`
		GitVersion  string            `json:"gitVersion"`
		Modules     []string          `json:"modules"`
		Allocator   string            `json:"allocator"`
		Environment map[string]string `json:"environment"`
		Shoal       own               `json:"shoal"`
	}{Version, b.GitVersion(), []string{}, allocator, map[string]string{"distarch": arch(), "target_arch": arch()}, own{b.Release, b.Commit, b.Date, b.Go}})
	return out
}
