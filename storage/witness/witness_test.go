package witness

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

const db = "db"

// disk is a directory on a file system that can crash, seen through a witness.
type disk struct {
	t   *testing.T
	mem *vfs.MemFS
	w   *FS
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t: t, mem: vfs.NewCrashableMem()}
	if err := d.mem.MkdirAll(db, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := d.mem.OpenDir("")
	if err == nil {
		err = root.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.open()
	return d
}

func (d *disk) open() {
	d.t.Helper()
	w, ignored, err := Open(d.mem, db, func(error) {})
	if err != nil || ignored != 0 {
		d.t.Fatalf("%v, %d records were ignored", err, ignored)
	}
	d.w = w
}

func (d *disk) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) create(name string) vfs.File {
	d.t.Helper()
	f, err := d.w.Create(d.w.path(name), "pebble-wal")
	d.must(err)
	return f
}

func (d *disk) write(f vfs.File, text string) {
	d.t.Helper()
	_, err := f.Write([]byte(text))
	d.must(err)
}

func (d *disk) syncDir() {
	d.t.Helper()
	dir, err := d.w.OpenDir(db)
	d.must(err)
	d.must(dir.Sync())
	d.must(dir.Close())
}

// replace gives a file other content behind the witness's back.
func (d *disk) replace(name, text string) {
	d.t.Helper()
	f, err := d.mem.Create(d.w.path(name), "pebble-wal")
	d.must(err)
	d.write(f, text)
	d.must(f.Close())
}

// A file that lost or changed what was synced is refused by name; what follows it may be torn.
func TestDamageOfWhatWasSynced(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(d *disk)
		want string
	}{
		{"nothing", func(*disk) {}, ""},
		{"the end was not synced", func(d *disk) { d.replace("1.log", "durable lo") }, ""},
		{"more was written", func(d *disk) { d.replace("1.log", "durable lost and more") }, ""},
		{"cut short", func(d *disk) { d.replace("1.log", "durabl") }, "1.log has 6 bytes left of at least 7"},
		{"emptied", func(d *disk) { d.replace("1.log", "") }, "1.log has 0 bytes left of at least 7"},
		{"changed", func(d *disk) { d.replace("1.log", "durabel") }, "1.log has other content"},
		{"removed", func(d *disk) { d.must(d.mem.Remove(d.w.path("1.log"))) }, "1.log is missing"},
		{"another file removed", func(d *disk) { d.must(d.mem.Remove(d.w.path("2.sst"))) }, ""},
		{"the witness is gone", func(d *disk) { d.must(d.mem.Remove(d.w.path(Name))); d.replace("1.log", "") }, ""},
	} {
		d := newDisk(t)
		log, table := d.create("1.log"), d.create("2.sst")
		d.write(log, "durable")
		d.write(table, "durable")
		d.must(log.Sync())
		d.must(table.Sync())
		d.syncDir()
		d.write(log, " lost")
		d.must(d.w.Close())
		c.do(d)
		_, _, err := Open(d.mem, db, func(error) {})
		var damage *Damage
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &damage) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

// A file that is renamed keeps its record under the new name; the record of the one that it replaced is gone.
func TestRecordsOfRenamedFiles(t *testing.T) {
	for _, from := range []string{"new.dbtmp", "MANIFEST-2", "plain"} {
		d := newDisk(t)
		for name, text := range map[string]string{"MANIFEST-1": "what was there before, and is longer", from: "what takes its place"} {
			f := d.create(name)
			d.write(f, text)
			d.must(f.Sync())
			d.must(f.Close())
		}
		d.syncDir()
		d.must(d.w.Rename(d.w.path(from), d.w.path("MANIFEST-1")))
		d.syncDir()
		d.must(d.w.Close())
		if _, _, err := Open(d.mem, db, func(error) {}); err != nil {
			t.Errorf("%s: %v", from, err)
		}
		d.replace("MANIFEST-1", "what takes its")
		_, _, err := Open(d.mem, db, func(error) {})
		if damaged := err != nil; damaged != (from != "plain") { // a file that was not followed has no record under another name either
			t.Errorf("%s, cut short: %v", from, err)
		}
	}
}

// Records that cannot be read are counted and passed over; the others protect their files.
func TestRecordsThatCannotBeRead(t *testing.T) {
	d := newDisk(t)
	for i := range 3 {
		f := d.create(fmt.Sprintf("%d.log", i))
		d.write(f, "durable")
		d.must(f.Sync())
		d.must(f.Close())
	}
	d.syncDir()
	d.must(d.w.Close())
	raw, err := d.w.read()
	if err != nil || len(raw) != 3*slotSize {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	raw[slotSize+20] ^= 1
	d.replace(Name, string(raw[:3*slotSize-1]))
	if _, ignored, err := Open(d.mem, db, func(error) {}); err != nil || ignored != 2 {
		t.Errorf("%d ignored, %v", ignored, err)
	}
	first, ok := parseSlot(raw[:slotSize])
	if !ok {
		t.Fatal("the first record cannot be read")
	}
	d.replace(first.name, "")
	if _, _, err := Open(d.mem, db, func(error) {}); err == nil {
		t.Errorf("%s is not protected", first.name)
	}
}

// Whatever is written, synced, renamed and removed, and however much of what was not synced a crash loses: a store that crashed is not damaged.
func TestCrashesDamageNothing(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		d := newDisk(t)
		open := map[string]vfs.File{}
		names := []string{"1.log", "2.log", "MANIFEST-1", "marker.a", "x.dbtmp", "3.sst"}
		for range 60 {
			name := names[rnd.IntN(len(names))]
			f := open[name]
			switch op := rnd.IntN(10); {
			case f == nil && op < 6:
				open[name] = d.create(name)
			case f == nil:
				d.syncDir()
			case op < 4:
				d.write(f, strings.Repeat(string(rune('a'+rnd.IntN(26))), 1+rnd.IntN(9000)))
			case op < 6:
				d.must(f.Sync())
			case op == 6:
				_, err := f.SyncTo(int64(rnd.IntN(5000)))
				d.must(err)
			case op == 7:
				d.must(f.Close())
				delete(open, name)
				d.must(d.w.Remove(d.w.path(name)))
			case op == 8:
				to := names[rnd.IntN(len(names))]
				if to == name {
					continue
				}
				if g := open[to]; g != nil {
					d.must(g.Close())
				}
				delete(open, name)
				d.must(d.w.Rename(d.w.path(name), d.w.path(to)))
				open[to] = f
			default:
				d.syncDir()
			}
			if rnd.IntN(8) > 0 {
				continue
			}
			after := d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
			if _, _, err := Open(after, db, func(error) {}); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// The record of a file is withdrawn durably before the file goes: after a crash following the removal there is no damage.
func TestRecordGoesBeforeTheFile(t *testing.T) {
	for what, do := range map[string]func(d *disk){
		"removed": func(d *disk) { d.must(d.w.Remove(d.w.path("1.log"))) },
		"renamed": func(d *disk) { d.must(d.w.Rename(d.w.path("1.log"), d.w.path("2.log"))) },
		"reused": func(d *disk) {
			_, err := d.w.ReuseForWrite(d.w.path("1.log"), d.w.path("2.log"), "pebble-wal")
			d.must(err)
		},
		"replaced": func(d *disk) { d.create("1.log") },
	} {
		d := newDisk(t)
		f := d.create("1.log")
		d.write(f, "durable")
		d.must(f.Sync())
		d.must(f.Close())
		d.syncDir()
		d.must(d.w.Close()) // the record is durable
		d.open()
		do(d)
		dir, err := d.mem.OpenDir(db) // the removal is, too, but what the witness wrote since only if it was synced
		d.must(err)
		d.must(dir.Sync())
		if _, _, err := Open(d.mem.CrashClone(vfs.CrashCloneCfg{}), db, func(error) {}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An error of a log is reported before the caller learns of it; one of another file is the caller's own.
func TestErrorsOfLogsAreReported(t *testing.T) {
	broken := errors.New("broken disk")
	for name, want := range map[string]int{"1.log": 2, "MANIFEST-1": 0, "3.sst": 0} {
		on := false
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync) {
				return broken
			}
			return nil
		}))
		if err := fs.MkdirAll(db, 0o700); err != nil {
			t.Fatal(err)
		}
		reported := 0
		w, _, err := Open(fs, db, func(err error) {
			if reported++; !errors.Is(err, broken) {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := w.Create(w.path(name), "pebble-wal")
		if err != nil {
			t.Fatal(err)
		}
		on = true
		if _, err := f.Write([]byte("x")); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		if err := f.Sync(); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		if reported != want {
			t.Errorf("%s: %d errors were reported, want %d", name, reported, want)
		}
		if _, err := io.WriteString(f, "y"); err == nil {
			t.Errorf("%s can be written again", name)
		}
	}
}
