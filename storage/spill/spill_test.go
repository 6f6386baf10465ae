package spill

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A directory of temporary files is made with the first of them, for nobody else to read, and holds none once they are closed.
func TestFilesOfPipelines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "_tmp")
	p := Pipelines{Store: Dir(dir)}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("the directory is there before its first file: %v", err)
	}
	one, err := p.Create()
	if err != nil {
		t.Fatal(err)
	}
	two, err := p.Create()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	for range 2 {
		if _, err := io.WriteString(one, "one"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(two, "two"); err != nil {
		t.Fatal(err)
	}
	r, err := one.Reader()
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(r); err != nil || string(raw) != "oneone" {
		t.Errorf("%q, %v", raw, err)
	}
	if err := r.Close(); err != nil { // the file's owner removes it, not its reader
		t.Error(err)
	}
	for want := 2; want >= 0; want-- {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != want {
			t.Errorf("%d files are left, want %d (%v)", len(left), want, err)
		}
		switch want {
		case 2:
			err = one.Close()
		case 1:
			err = two.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// Where the directory cannot be made the error names it, and no file is put elsewhere.
func TestDirectoryThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := (Pipelines{Store: Dir(filepath.Join(file, "below"))}).Create(); err == nil || f != nil {
		t.Errorf("%v, %v", f, err)
	}
}

// The empty name is the system's directory of temporary files.
func TestSystemsDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	f, err := Pipelines{Store: Dir("")}.Create()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%d files, %v", len(left), err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
