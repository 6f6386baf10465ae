package storetest

import (
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A damage is a kind of damage to a file while its store is closed.
type damage struct {
	name      string
	do        func([]byte) []byte // returns the remaining content, nil for none
	tolerated []string            // the kinds of files that are needed, and may have it
}

var deleted = damage{name: "deleted", do: func([]byte) []byte { return nil }}

var damages = []damage{
	{name: "emptied", do: func(b []byte) []byte { return b[:0] }},
	{"cut to half", func(b []byte) []byte { return b[:len(b)/2] }, []string{".log"}},
	{"cut by one byte", func(b []byte) []byte { return b[:max(0, len(b)-1)] }, []string{".log"}},
	{name: "a bit flipped in front", do: func(b []byte) []byte { return flipBit(b, 0) }},
	{"a bit flipped in the middle", func(b []byte) []byte { return flipBit(b, len(b)/2) }, []string{".log", ".sst"}},
	{"a bit flipped at the end", func(b []byte) []byte { return flipBit(b, len(b)-1) }, []string{".log"}},
	{"a stretch of zeros in the middle", func(b []byte) []byte { clear(b[len(b)/2 : min(len(b), len(b)/2+64)]); return b }, []string{".log"}},
}

func flipBit(b []byte, at int) []byte {
	if at >= 0 && at < len(b) {
		b[at] ^= 1
	}
	return b
}

// EachDamage calls f with copies of a store, each with one file of dir damaged in one way; f reports whether the store was refused.
//
// A file is needed if the store is refused without it: how many tables are not any more depends on the compactions until the store was
// copied. Of a needed file every damage has to be refused, but for the end of a log, which a crash may leave in any state, and a bit in
// the middle of a table, which may be of a part that is not read. Of each kind of file at least one has to be needed.
func EachDamage(t testing.TB, store *vfs.MemFS, dir string, f func(what, file string, damaged *vfs.MemFS) (refused bool)) {
	t.Helper()
	names, err := store.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string]int{}
	for _, name := range names {
		if info, err := store.Stat(path.Join(dir, name)); name == "LOCK" || err != nil || info.IsDir() {
			continue
		}
		kind := path.Ext(name)
		if strings.HasPrefix(name, "MANIFEST") || strings.HasPrefix(name, "OPTIONS") {
			kind, _, _ = strings.Cut(name, "-")
		}
		raw := Read(t, store, path.Join(dir, name))
		hurt := func(d damage) (refused, done bool) {
			left := d.do(append([]byte{}, raw...))
			if left != nil && string(left) == string(raw) {
				return false, false
			}
			damaged := store.CrashClone(vfs.CrashCloneCfg{})
			rewrite(t, damaged, path.Join(dir, name), left)
			return f(name+" "+d.name, name, damaged), true
		}
		isNeeded, _ := hurt(deleted)
		if isNeeded {
			needed[kind]++
		}
		for _, d := range damages {
			if refused, done := hurt(d); done && isNeeded && !refused && !slices.Contains(d.tolerated, kind) {
				t.Errorf("%s %s: the store opens, which it does not without the file", name, d.name)
			}
		}
	}
	for _, kind := range []string{"MANIFEST", "OPTIONS", ".sst", ".log"} {
		if needed[kind] == 0 {
			t.Errorf("no file of the kind %s is needed: %v", kind, needed)
		}
	}
}

// Read returns a file's content.
func Read(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return raw
}

// rewrite replaces a file; nil removes it.
func rewrite(t testing.TB, fs vfs.FS, name string, content []byte) {
	t.Helper()
	if err := fs.Remove(name); err != nil {
		t.Fatal(err)
	}
	if content == nil {
		return
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(content)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
