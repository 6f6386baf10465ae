package namespace

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeEnv is the environment of an executor that knows the time and nothing else.
type fakeEnv struct{ exec.Env }

func (fakeEnv) Now() (int64, uint64) { return 0, 0 }

func open(t *testing.T) *storage.Engine {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return eng
}

// commit stages something in a unit of work and commits it.
func commit(t *testing.T, eng *storage.Engine, stage func(u *storage.UnitOfWork) error) {
	t.Helper()
	u := eng.NewUnitOfWork(nil)
	defer u.Rollback()
	if err := stage(u); err != nil {
		t.Fatal(err)
	}
	if _, err := eng.Commit(context.Background(), u, false); err != nil {
		t.Fatal(err)
	}
}

// define stores views.
func define(t *testing.T, eng *storage.Engine, views ...*View) {
	t.Helper()
	commit(t, eng, func(u *storage.UnitOfWork) error {
		c, err := u.CreateCollection(storage.CollectionSpec{NS: "d.system.views"})
		for _, v := range views {
			if err == nil {
				_, err = u.Insert(c, v.MakeDoc(), storage.NoInfo)
			}
		}
		return err
	})
}

func stage(name string) value.Value {
	return value.NewDocument(value.Doc(value.F(name, value.NewDocument(value.Doc()))))
}

func TestViewsResolveToTheCollectionBelow(t *testing.T) {
	eng := open(t)
	commit(t, eng, func(u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c"})
		return err
	})
	define(t, eng,
		&View{NS: "d.low", On: "c", Pipeline: value.NewArray(value.ArrayOf(stage("$one")))},
		&View{NS: "d.high", On: "low", Pipeline: value.NewArray(value.ArrayOf(stage("$two")))},
		&View{NS: "d.a", On: "b", Pipeline: value.NewArray(value.ArrayOf())},
		&View{NS: "d.b", On: "a", Pipeline: value.NewArray(value.ArrayOf())})
	s := eng.Snapshot()
	defer s.Release()
	r, err := Resolve(s, "d.high")
	if err != nil || r == nil || r.NS != "d.c" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := value.Show(value.NewArray(value.ArrayOf(r.Pipeline...))); got != "[ { $one: {} }, { $two: {} } ]" {
		t.Errorf("the pipeline is %s", got)
	}
	if r, err := Resolve(s, "d.c"); r != nil || err != nil {
		t.Errorf("a collection resolves to %+v, %v", r, err)
	}
	if _, err := Resolve(s, "d.a"); mongoerr.CodeOf(err) != mongoerr.ViewDepthLimitExceeded {
		t.Errorf("a cycle of views: %v", err)
	}
	if _, _, err := FindCollection(s, "d.low"); mongoerr.CodeOf(err) != mongoerr.CommandNotSupportedOnView {
		t.Errorf("a view taken for a collection: %v", err)
	}
}

func TestSeriesStandOnTheirBuckets(t *testing.T) {
	eng := open(t)
	opts := &SeriesOptions{TimeField: "t", MetaField: "m", Granularity: "seconds", Span: 3600}
	commit(t, eng, func(u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: timeseries.BucketsOf("d.ts"), Options: opts.StoredOptions(Options{})})
		return err
	})
	define(t, eng, &View{NS: "d.ts", On: "system.buckets.ts", Pipeline: value.NewArray(opts.UnpackStage())})
	s := eng.Snapshot()
	defer s.Release()
	series := SeriesOf(s.Catalog(), "d.ts")
	if series == nil || series.Buckets.NS != "d.system.buckets.ts" || *series.Options != *opts {
		t.Fatalf("%+v", series)
	}
	c, found, err := FindCollection(s, "d.ts")
	if err != nil || c != series.Buckets || *found != *opts {
		t.Errorf("%v, %+v, %v", c, found, err)
	}
	if SeriesOf(s.Catalog(), "d.system.buckets.ts") != nil {
		t.Error("the buckets themselves are taken for a series")
	}
	user := value.Doc(value.F("key", value.NewDocument(value.Doc(value.F("m.a", value.NewInt32(1))))), value.F("name", value.NewString("m.a_1")))
	kept := BucketIndexSpec(opts, user)
	if got := value.Show(value.Lookup(kept, "key")); got != "{ meta.a: 1 }" {
		t.Errorf("the buckets' index is on %s", got)
	}
	if back := UserIndexSpec(opts, kept); string(back) != string(user) {
		t.Errorf("%s is shown as %s", value.ShowDoc(user), value.ShowDoc(back))
	}
}

func TestCompiledBelongsToOneVersionOfACollection(t *testing.T) {
	eng := open(t)
	var reported []string
	cache := NewCache(exec.New(fakeEnv{}), func(ns string, _, _ []byte) { reported = append(reported, ns) })
	validator := value.NewDocument(value.Doc(value.F("a", value.NewDocument(value.Doc(value.F("$gt", value.NewInt32(0)))))))
	commit(t, eng, func(u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", Options: value.Doc(value.F("validator", validator))})
		return err
	})
	c := eng.Catalog().Lookup("d.c")
	m := cache.Of(c)
	if cache.Of(c) != m {
		t.Error("one version was compiled twice")
	}
	bad := value.Doc(value.F("_id", value.NewInt32(1)), value.F("a", value.NewInt32(0)))
	if err := m.Check(c, bad, nil); mongoerr.CodeOf(err) != mongoerr.DocumentValidationFailure {
		t.Errorf("%v", err)
	}
	commit(t, eng, func(u *storage.UnitOfWork) error {
		_, err := u.SetCollectionOptions(c, value.Doc(value.F("validator", validator), value.F("validationAction", value.NewString("warn"))), nil, nil)
		return err
	})
	c = eng.Catalog().Lookup("d.c")
	if cache.Of(c) == m {
		t.Fatal("a changed collection is used as it was compiled before")
	}
	if err := cache.Of(c).Check(c, bad, nil); err != nil || len(reported) != 1 {
		t.Errorf("%v, reported %v", err, reported)
	}
	m = cache.Of(c)
	cache.Forget(c.UUID)
	if cache.Of(c) == m {
		t.Error("what was forgotten is still there")
	}
}

func TestNamesThatMayBeMade(t *testing.T) {
	for ns, ok := range map[string]bool{
		"d.c": true, "d.system.js": true, "config.system.anything": true, "d.system.anything": false, "d.a$b": false, "d..a": false, "a b.c": false,
	} {
		if err := CheckCreate(ns); (err == nil) != ok {
			t.Errorf("%s: %v", ns, err)
		}
	}
}
