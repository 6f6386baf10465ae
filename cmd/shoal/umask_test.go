package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Only the server's own user may read its files, whatever umask it was started with, unless processUmask allows more. The pid file is for all.
func TestFilesAreTheServersOwn(t *testing.T) {
	t.Parallel()
	for params, others := range map[string]fs.FileMode{"": 0, "processUmask=027": 0o040} {
		s := loneServer(t, "mongod", "--auditDestination", "file", "--auditFormat", "JSON")
		pid := filepath.Join(s.dir, "pid")
		s.args = append(s.args, "--dbpath", s.dbpath(), "--logpath", s.logFile()+".own", "--auditPath", filepath.Join(s.dir, "audit"), "--pidfilepath", pid)
		if params != "" {
			s.args = append(s.args, "--setParameter", params)
		}
		if err := os.Mkdir(s.dbpath(), 0o755); err != nil {
			t.Fatal(err)
		}
		s.start()
		if _, err := s.direct.Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		s.stop()
		files := 0
		err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path == s.logFile() { // the last is the test's
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			want := others
			if path == pid {
				want = 0o044
			}
			if mode := info.Mode().Perm(); mode&0o077 != want || mode&0o600 != 0o600 {
				t.Errorf("%q: %s has the permissions %o", params, strings.TrimPrefix(path, s.dir), mode)
			}
			files++
			return nil
		})
		if err != nil || files < 8 {
			t.Errorf("%q: %d files, %v", params, files, err)
		}
	}
}

// honorSystemUmask leaves the mask as it is; an invalid mask is refused.
func TestFileMask(t *testing.T) {
	for _, tc := range []struct {
		params string
		mask   int
		own    bool
		bad    bool
	}{
		{params: "", mask: 0o077, own: true}, {params: "processUmask=022", mask: 0o022, own: true}, {params: "honorSystemUmask=true", mask: 0o077},
		{params: "honorSystemUmask=false processUmask=7", mask: 0o007, own: true}, {params: "processUmask=1000", bad: true}, {params: "processUmask=u=rw", bad: true},
	} {
		args := []string{"--dbpath", "d"}
		for _, p := range strings.Fields(tc.params) {
			args = append(args, "--setParameter", p)
		}
		c, err := parse(isMongod, args)
		if tc.bad {
			if err == nil || !strings.Contains(err.Error(), "processUmask") {
				t.Errorf("%s: %v", tc.params, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if mask, own, err := c.fileMask(); mask != tc.mask || own != tc.own || err != nil {
			t.Errorf("%s: %o, %v, %v", tc.params, mask, own, err)
		}
	}
}
