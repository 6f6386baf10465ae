package storetest

import (
	"errors"
	"io"
	"path"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// damages are the kinds of damage to a file while its store is closed. Each returns the remaining content, nil for none.
var damages = []struct {
	name string
	do   func([]byte) []byte
}{
	{"deleted", func([]byte) []byte { return nil }},
	{"emptied", func(b []byte) []byte { return b[:0] }},
	{"cut to half", func(b []byte) []byte { return b[:len(b)/2] }},
	{"cut by one byte", func(b []byte) []byte { return b[:max(0, len(b)-1)] }},
	{"a bit flipped in front", func(b []byte) []byte { return flipBit(b, 0) }},
	{"a bit flipped in the middle", func(b []byte) []byte { return flipBit(b, len(b)/2) }},
	{"a bit flipped at the end", func(b []byte) []byte { return flipBit(b, len(b)-1) }},
	{"a stretch of zeros in the middle", func(b []byte) []byte { clear(b[len(b)/2 : min(len(b), len(b)/2+64)]); return b }},
}

func flipBit(b []byte, at int) []byte {
	if at >= 0 && at < len(b) {
		b[at] ^= 1
	}
	return b
}

// EachDamage calls f with copies of a store, each with one file of dir damaged in one way, and returns the number of
// files.
func EachDamage(t testing.TB, store *vfs.MemFS, dir string, f func(what, file string, damaged *vfs.MemFS)) (files int) {
	t.Helper()
	names, err := store.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := store.Stat(path.Join(dir, name)); name == "LOCK" || err != nil || info.IsDir() {
			continue
		}
		files++
		raw := Read(t, store, path.Join(dir, name))
		for _, d := range damages {
			left := d.do(append([]byte{}, raw...))
			if left != nil && string(left) == string(raw) {
				continue
			}
			hurt := store.CrashClone(vfs.CrashCloneCfg{})
			rewrite(t, hurt, path.Join(dir, name), left)
			f(name+" "+d.name, name, hurt)
		}
	}
	return files
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
