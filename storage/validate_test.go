package storage

import (
	"context"
	"testing"
)

// An entry of the _id index with an _id of another type than the document's is found, and repaired. Reads that the index covers return it; validate used to
// compare keys alone, which are equal for 1 and 1.0.
func TestValidateComparesTypesOfIDs(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1), D("_id", 2.0), D("_id", D("a", 1, "b", 2.5)), D("_id", "x"))
	validate := func() *Validation {
		t.Helper()
		s := e.Snapshot()
		defer s.Release()
		v, err := s.Validate(context.Background(), s.Catalog().Lookup("db.c"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := validate(); !v.Valid() {
		t.Errorf("%+v", v)
	}
	s := e.Snapshot()
	cur := s.Scan(c, ScanOptions{})
	cur.Next()
	u := e.NewUnitOfWork(s)
	if err := u.Update(c, cur.RecordID().Clone(), D("_id", 1), D("_id", 1.0), NoInfo); err != nil { // which changes no key of _id
		t.Fatal(err)
	}
	cur.Close()
	s.Release()
	commit(t, e, u)
	v := validate()
	if x := v.Indexes[0]; v.Valid() || len(x.Missing) != 1 || len(x.Extra) != 1 {
		t.Errorf("%+v", v)
	}
	if changed, err := e.Repair(context.Background(), "db.c", v); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if v := validate(); !v.Valid() {
		t.Errorf("after the repair: %+v", v)
	}
}
