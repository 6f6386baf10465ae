package storage

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Each claim of a transaction was in memory until its end: 52 bytes for an inserted document, 102 for a deleted one.

// heldClaims counts what the table of claims has, and what units hold.
func heldClaims(e *Engine) (n, peak int) {
	for i := range e.claims.shards {
		s := &e.claims.shards[i]
		s.Lock()
		for _, c := range s.m {
			if c.unit != nil {
				n++
			}
		}
		peak += s.peak
		s.Unlock()
	}
	return n, peak
}

// aheadOptions send a chunk for every few documents.
func aheadOptions() Options {
	return Options{stageBytes: 1 << 10, chunkBytes: 512, CollectInterval: time.Hour}
}

// openTransaction starts a unit with a view of its own.
func openTransaction(e *Engine) (u *UnitOfWork, own *Snapshot, end func()) {
	s := e.Snapshot()
	u = e.NewUnitOfWork(s)
	u.SetTransaction(D("id", 1), 1)
	return u, u.Snapshot(), func() { u.Rollback(); s.Release() }
}

// find looks a document up by its _id, and copies what it finds.
func find(t testing.TB, s *Snapshot, c *catalog.Collection, id any) (RecordID, []byte) {
	t.Helper()
	rid, doc, ok, err := s.FindByID(c, V(id))
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return nil, nil
	}
	return rid.Clone(), bytes.Clone(doc)
}

func TestClaimsOfATransactionAreBounded(t *testing.T) {
	e := openMem(t, Options{stageBytes: 32 << 10, chunkBytes: 16 << 10, CollectInterval: time.Hour})
	defer func() { _ = e.Close() }()
	c := create(t, e, "db.c", nil, spec("u_1", D("u", 1), "unique", true))
	const docs, bound = 10_000, 2_000
	run := func(what string, write func(u *UnitOfWork, own *Snapshot, i int) error, commits bool) {
		u, own, end := openTransaction(e)
		defer end()
		most := 0
		for i := range docs {
			if err := write(u, own, i); err != nil {
				t.Fatal(what, i, err)
			}
			if i%100 == 0 {
				n, _ := heldClaims(e)
				most = max(most, n, len(u.claims))
			}
		}
		if most > bound || cap(u.claims) > 4*bound {
			t.Errorf("%s: %d claims are held, with room for %d", what, most, cap(u.claims))
		}
		if commits {
			if _, err := e.Commit(context.Background(), u, false); err != nil {
				t.Fatal(err)
			}
		}
		u.Rollback()
		if n, _ := heldClaims(e); n != 0 || len(e.claims.undecided()) > 0 {
			t.Errorf("%s: %d claims are held after the end, %d units are undecided", what, n, len(e.claims.undecided()))
		}
	}
	from := 0
	add := func(u *UnitOfWork, _ *Snapshot, i int) error {
		_, err := u.Insert(c, D("_id", from+i, "u", from+i), NoInfo)
		return err
	}
	run("insert", add, true)
	run("update", func(u *UnitOfWork, own *Snapshot, i int) error {
		rid, old := find(t, own, c, i)
		return u.Update(c, rid, old, D("_id", i, "u", i+docs), NoInfo)
	}, true)
	run("delete", func(u *UnitOfWork, own *Snapshot, i int) error {
		rid, old := find(t, own, c, i)
		return u.Delete(c, rid, old, NoInfo)
	}, true)
	from = 10 * docs // lookups of keys that were deleted lately are slow
	run("insert and abort", add, false)
	verifyIndexes(t, e)
}

// The maps of claims kept the size of the largest transaction.
func TestTableOfClaimsShrinks(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour})
	defer func() { _ = e.Close() }()
	u := e.NewUnitOfWork(nil)
	defer u.Rollback()
	for i := range uint64(64 * claimShardLimit * 2) {
		e.claims.take(u, i*0x9E3779B97F4A7C15, 0, false)
	}
	if _, peak := heldClaims(e); peak < 64*claimShardLimit {
		t.Fatal(peak)
	}
	u.Rollback()
	if n, peak := heldClaims(e); n != 0 || peak > 64*claimShardLimit {
		t.Errorf("%d claims, and maps for %d", n, peak)
	}
}

// What a transaction has sent ahead cannot be written by another, whether that began before or after, by record, _id or unique
// key, until it ends: after a rollback everything is free, after a commit what began before it conflicts.
func TestWritesConflictWithWhatWasSentAhead(t *testing.T) {
	pad := bytes.Repeat([]byte("x"), 300)
	row := func(id, uq int) []byte { return D("_id", id, "u", uq, "pad", pad) }
	for _, clustered := range []bool{false, true} {
		for _, end := range []string{"open", "abort", "commit"} {
			for _, before := range []bool{false, true} {
				t.Run(fmt.Sprint(end, " before=", before, " clustered=", clustered), func(t *testing.T) {
					e := openMem(t, aheadOptions())
					defer func() { _ = e.Close() }()
					var options []byte
					if clustered {
						options = D("clusteredIndex", true)
					}
					c := create(t, e, "db.c", options, spec("u_1", D("u", 1), "unique", true))
					for id := range 10 {
						insert(t, e, c, row(id, id))
					}
					early := e.Snapshot()
					defer early.Release()
					u, own, over := openTransaction(e)
					defer over()
					must := func(err error) {
						t.Helper()
						if err != nil {
							t.Fatal(err)
						}
					}
					change := func(id int, next []byte) {
						t.Helper()
						rid, old := find(t, own, c, id)
						if next == nil {
							must(u.Delete(c, rid, old, NoInfo))
						} else {
							must(u.Update(c, rid, old, next, NoInfo))
						}
					}
					change(0, row(0, 100)) // u: 0 is free, 100 taken
					change(1, nil)
					_, err := u.Insert(c, row(50, 50), NoInfo)
					must(err)
					for i := range 20 { // makes it send the others ahead
						_, err := u.Insert(c, row(60+i, 60+i), NoInfo)
						must(err)
					}
					if n, _ := heldClaims(e); n > 20 || u.bulk == nil {
						t.Fatal("nothing was sent ahead, or claims are held:", n)
					}
					switch end {
					case "abort":
						u.Rollback()
					case "commit":
						_, err := e.Commit(context.Background(), u, false)
						must(err)
					}
					type try struct {
						name string
						do   func(w *UnitOfWork, s *Snapshot) error
						// the error code behind an abort and behind a commit, for a unit that began after it
						abort, commit mongoerr.Code
					}
					up := func(id int, next []byte) func(*UnitOfWork, *Snapshot) error {
						return func(w *UnitOfWork, s *Snapshot) error {
							rid, old := find(t, s, c, id)
							if rid == nil {
								return nil
							}
							return w.Update(c, rid, old, next, NoInfo)
						}
					}
					add := func(doc []byte) func(*UnitOfWork, *Snapshot) error {
						return func(w *UnitOfWork, _ *Snapshot) error { _, err := w.Insert(c, doc, NoInfo); return err }
					}
					for _, x := range []try{
						{"update of an updated document", up(0, row(0, 200)), 0, 0},
						{"update of a deleted document", up(1, row(1, 200)), 0, 0},
						{"delete of an updated document", func(w *UnitOfWork, s *Snapshot) error {
							rid, old := find(t, s, c, 0)
							return w.Delete(c, rid, old, NoInfo)
						}, 0, 0},
						{"insert of an _id", add(row(50, 200)), 0, mongoerr.DuplicateKey},
						{"insert of a deleted _id", add(row(1, 200)), mongoerr.DuplicateKey, 0},
						{"insert of a unique key", add(row(201, 50)), 0, mongoerr.DuplicateKey},
						{"insert of a unique key that an update takes", add(row(201, 100)), 0, mongoerr.DuplicateKey},
						{"insert of a unique key that an update gives up", add(row(201, 0)), mongoerr.DuplicateKey, 0},
						{"update to a unique key", up(2, row(2, 50)), 0, mongoerr.DuplicateKey},
						{"update to a deleted unique key", up(2, row(2, 1)), mongoerr.DuplicateKey, 0},
						{"update of another document", up(3, row(3, 203)), 0, 0},
						{"insert of another document", add(row(300, 300)), 0, 0},
					} {
						for _, plain := range []bool{false, true} {
							s := early
							if !before {
								s = e.Snapshot()
							}
							w := e.NewUnitOfWork(s)
							view := s
							if !plain {
								view = w.Snapshot()
							}
							err := x.do(w, view)
							got := mongoerr.Code(0)
							if err != nil {
								got = mongoerr.CodeOf(err)
							}
							others := x.name == "update of another document" || x.name == "insert of another document"
							want := mongoerr.WriteConflict
							switch {
							case others:
								want = 0
							case end == "abort":
								want = x.abort
							case end == "commit" && !before:
								want = x.commit
							case end == "commit" && x.commit == mongoerr.DuplicateKey && plain: // reads of index keys are current
								if want = mongoerr.DuplicateKey; clustered && x.name == "insert of an _id" {
									want = mongoerr.WriteConflict // the record is claimed as of the snapshot
								}
							case end == "commit" && x.abort == mongoerr.DuplicateKey:
								want = got // the deletion of a key is no conflict for its own sake
							}
							if got != want {
								t.Errorf("%s, plain %v: %v, want %d", x.name, plain, err, want)
							}
							w.Rollback()
							if !before {
								s.Release()
							}
						}
					}
					if end == "open" { // the losers hold nothing: the unit goes on
						change(0, row(0, 101))
						change(50, row(50, 51))
						_, err := u.Insert(c, row(1, 1), NoInfo)
						must(err)
						if _, err := u.Insert(c, row(400, 51), NoInfo); mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
							t.Error(err)
						}
						_, err = e.Commit(context.Background(), u, false)
						must(err)
					}
					verifyIndexes(t, e)
				})
			}
		}
	}
}

// A loser that still holds the claim does not make the unit itself conflict with what it has sent ahead.
func TestUnitKeepsWhatItSentAhead(t *testing.T) {
	e := openMem(t, aheadOptions())
	defer func() { _ = e.Close() }()
	c := create(t, e, "db.c", nil, spec("u_1", D("u", 1), "unique", true))
	insert(t, e, c, D("_id", 0, "u", 0))
	u, own, end := openTransaction(e)
	defer end()
	rid, old := find(t, own, c, 0)
	if err := u.Update(c, rid, old, D("_id", 0, "u", 1), NoInfo); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := u.Insert(c, D("_id", i+1, "u", i+100, "pad", "some bytes to be sent ahead"), NoInfo); err != nil {
			t.Fatal(err)
		}
	}
	other := e.NewUnitOfWork(nil)
	defer other.Rollback()
	if r := e.claims.take(other, e.claims.hash(c.Ident, rid), 0, true); r != claimUnsure {
		t.Fatal(r)
	}
	rid, old = find(t, own, c, 0)
	if err := u.Update(c, rid, old, D("_id", 0, "u", 2), NoInfo); err != nil {
		t.Errorf("a second update: %v", err)
	}
}

// A prepared transaction whose commit fails is repeated by another unit. Nobody writes its documents in between, not even
// those that it had sent ahead.
func TestRepeatedUnitKeepsWhatWasSentAhead(t *testing.T) {
	e := openMem(t, aheadOptions())
	defer func() { _ = e.Close() }()
	c := create(t, e, "db.c", nil)
	const docs = 60
	doc := func(id, n int) []byte { return D("_id", id, "n", n, "pad", "some bytes to be sent ahead") }
	for id := range docs {
		insert(t, e, c, doc(id, 0))
	}
	conflicts := func(when string) {
		t.Helper()
		for id := range docs {
			s := e.Snapshot()
			w := e.NewUnitOfWork(s)
			rid, old := find(t, s, c, id)
			if err := w.Update(c, rid, old, doc(id, 2), NoInfo); !ErrConflict(err) {
				t.Errorf("%s: document %d: %v", when, id, err)
			}
			w.Rollback()
			s.Release()
		}
	}
	write := func(u *UnitOfWork, own *Snapshot, ids int) {
		t.Helper()
		for id := range ids {
			rid, old := find(t, own, c, id)
			if err := u.Update(c, rid, old, doc(id, 1), NoInfo); err != nil {
				t.Fatal(id, err)
			}
		}
	}
	u, own, end := openTransaction(e)
	write(u, own, docs)
	if u.bulk == nil || !u.bulk.yielded {
		t.Fatal("no claims were given up")
	}
	u.KeepClaims()
	e.replica.mu.Lock()
	u.state = unitQueued
	u.undo() // as for a unit whose group fails
	e.replica.mu.Unlock()
	conflicts("after the commit has failed")
	for i, ids := range []int{docs / 2, docs} { // the first repetition fails in the middle
		base := e.Snapshot()
		next := e.NewUnitOfWork(base)
		next.SetTransaction(D("id", 1), 1)
		own := next.Snapshot()
		next.TakeOver(u)
		end()
		conflicts(fmt.Sprint("before repetition ", i))
		write(next, own, ids)
		conflicts(fmt.Sprint("behind repetition ", i))
		u, end = next, func() { next.Rollback(); base.Release() }
	}
	if _, err := e.Commit(context.Background(), u, false); err != nil {
		t.Fatal(err)
	}
	end()
	await.True(t, "what the others staged is gone", func() bool {
		return stagedKeys(t, e, stagedChunk, stagedPiece) <= stagedKeysOf(t, e, u)
	})
	s := e.Snapshot()
	defer s.Release()
	w := e.NewUnitOfWork(s)
	defer w.Rollback()
	for id := range docs {
		rid, old := find(t, s, c, id)
		if n := value.Lookup(old, "n").Int64(); n != 1 {
			t.Errorf("document %d: %d", id, n)
		}
		if err := w.Update(c, rid, old, doc(id, 3), NoInfo); err != nil {
			t.Errorf("after the commit: document %d: %v", id, err)
		}
	}
	if n := len(e.claims.undecided()); n > 0 {
		t.Errorf("%d units are undecided", n)
	}
	verifyIndexes(t, e)
}

// stagedKeysOf counts the chunks of a unit.
func stagedKeysOf(t *testing.T, e *Engine, u *UnitOfWork) int {
	t.Helper()
	return len(u.bulk.at)
}

// A prepared transaction that a member opens again after a restart holds its keys again.
func TestReopenedTransactionHoldsItsKeys(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := aheadOptions()
	o.FS = fs
	e := openMem(t, o)
	defer func() { _ = e.Close() }()
	create(t, e, "db.c", nil, spec("n_1", D("n", 1), "unique", true))
	u := largeUnit(t, e, "db.c", 50, 100, true)
	defer u.Rollback()
	prepare(t, e, u)
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})
	after := openMem(t, o)
	defer func() { _ = after.Close() }()
	again := reprepare(t, after)
	for name, e := range map[string]*Engine{"before": e, "after": after} {
		c := e.Catalog().Lookup("db.c")
		for id := range 50 {
			for _, doc := range [][]byte{D("_id", id, "n", -1), D("_id", 1000, "n", id)} {
				w := e.NewUnitOfWork(nil)
				if _, err := w.Insert(c, doc, NoInfo); !ErrConflict(err) {
					t.Errorf("%s the restart: %v", name, err)
				}
				w.Rollback()
			}
		}
	}
	again.LogCommit(TimestampOf(1, 7))
	commit(t, after, again)
	if n := len(idsAt(t, after, "db.c", after.Visible())); n != 50 {
		t.Errorf("%d documents", n)
	}
	verifyIndexes(t, after)
}

// A commit is in the list of late units a moment before readers see it. In that moment no other unit may take its keys: one that looked for
// a duplicate then would find none.
func TestKeysAreNotFreeBeforeTheirCommitIsSeen(t *testing.T) {
	e := openMem(t, aheadOptions())
	defer func() { _ = e.Close() }()
	c := create(t, e, "db.c", nil, spec("u_1", D("u", 1), "unique", true))
	u, _, end := openTransaction(e)
	defer end()
	for i := range 30 {
		if _, err := u.Insert(c, D("_id", i, "u", i, "pad", bytes.Repeat([]byte("x"), 300)), NoInfo); err != nil {
			t.Fatal(err)
		}
	}
	tried := 0
	e.OnNotice(func(_ Timestamp, notice []byte) {
		if notice == nil {
			return
		}
		for _, doc := range [][]byte{D("_id", 0, "u", 100), D("_id", 100, "u", 0)} {
			w := e.NewUnitOfWork(nil)
			if _, err := w.Insert(c, doc, NoInfo); !ErrConflict(err) {
				t.Errorf("%s: %v", value.ShowDoc(doc), err)
			}
			w.Rollback()
			tried++
		}
	})
	u.Notice([]byte("the commit is about to be seen"))
	if _, err := e.Commit(context.Background(), u, false); err != nil {
		t.Fatal(err)
	}
	if tried != 2 {
		t.Error(tried)
	}
}

// Transactions that send much and little ahead change documents at once. No update is lost: each adds 1 to the documents that it
// writes, and notes it where the commit is known.
func TestNoUpdateIsLostAmongLargeTransactions(t *testing.T) {
	e := openMem(t, Options{stageBytes: 600, chunkBytes: 300, CollectInterval: 20 * time.Millisecond, HistoryWindow: 50 * time.Millisecond})
	defer func() { _ = e.Close() }()
	c := create(t, e, "db.c", nil, spec("u_1", D("u", 1), "unique", true))
	const docs = 40
	var sums [docs]atomic.Int64
	for id := range docs {
		insert(t, e, c, D("_id", id, "n", 0, "u", id))
	}
	var wg sync.WaitGroup
	var commits, conflicts, large atomic.Int64
	until := time.Now().Add(2 * time.Second)
	for w := range 6 {
		wg.Go(func() {
			r := newRand(uint64(w))
			for time.Now().Before(until) {
				add, sent, err := randomTransaction(t, e, c, r, docs)
				switch {
				case err == nil:
					commits.Add(1)
					for id, n := range add {
						sums[id].Add(int64(n))
					}
					if sent {
						large.Add(1)
					}
				case ErrConflict(err) || mongoerr.CodeOf(err) == mongoerr.DuplicateKey:
					conflicts.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s := e.Snapshot()
	defer s.Release()
	for id := range docs {
		_, doc := find(t, s, c, id)
		if n := value.Lookup(doc, "n").Int64(); n != sums[id].Load() {
			t.Errorf("document %d: %d, want %d", id, n, sums[id].Load())
		}
	}
	seen := map[int64]bool{}
	rc := s.Scan(c, ScanOptions{})
	defer rc.Close()
	for rc.Next() {
		n := value.Lookup(rc.Doc(), "u").Int64()
		if seen[n] {
			t.Errorf("the unique key %d is there twice", n)
		}
		seen[n] = true
	}
	if n, _ := heldClaims(e); n > 0 || len(e.claims.undecided()) > 0 {
		t.Errorf("%d claims are left, %d units undecided", n, len(e.claims.undecided()))
	}
	if commits.Load() < 20 || large.Load() < 5 || conflicts.Load() < 5 {
		t.Errorf("%d commits, %d of them large, %d conflicts", commits.Load(), large.Load(), conflicts.Load())
	}
	verifyIndexes(t, e)
}

// randomTransaction adds 1 to random documents, some of them twice or deleted and inserted again, and gives some a random unique
// key. It returns what it has added, and whether it gave up claims.
func randomTransaction(t *testing.T, e *Engine, c *catalog.Collection, r *rand.Rand, docs int) (add map[int]int, sent bool, err error) {
	u, own, end := openTransaction(e)
	defer end()
	add = map[int]int{}
	for range 1 + r.IntN(10) {
		id := r.IntN(docs)
		rid, old, ok, err := own.FindByID(c, V(id))
		if err != nil || !ok {
			return nil, false, fmt.Errorf("document %d: %v %v", id, ok, err)
		}
		rid, old = rid.Clone(), bytes.Clone(old)
		uq := int(value.Lookup(old, "u").Int64())
		if r.IntN(8) == 0 {
			uq = docs + r.IntN(docs)
		}
		next := D("_id", id, "n", int(value.Lookup(old, "n").Int64())+1, "u", uq, "pad", bytes.Repeat([]byte("x"), 60))
		if r.IntN(4) == 0 {
			if err = u.Delete(c, rid, old, NoInfo); err == nil {
				_, err = u.Insert(c, next, NoInfo)
			}
		} else {
			err = u.Update(c, rid, old, next, NoInfo)
		}
		if err != nil {
			return nil, false, err
		}
		add[id]++
	}
	sent = u.bulk != nil && u.bulk.yielded
	if r.IntN(4) == 0 {
		return nil, false, nil
	}
	_, err = e.Commit(context.Background(), u, false)
	return add, sent, err
}

// A transaction that deletes documents and inserts others with their unique keys looked past all keys that it had deleted, in the
// store and in its batch, for each that it inserted: the costs grew with the square of their number.
func TestUniqueKeysWrittenAgainCostTheSame(t *testing.T) {
	took := func(docs int) time.Duration {
		e := openMem(t, Options{stageBytes: 256 << 10, chunkBytes: 128 << 10, CollectInterval: time.Hour})
		defer func() { _ = e.Close() }()
		c := create(t, e, "db.c", nil, spec("u_1", D("u", 1), "unique", true))
		u := e.NewUnitOfWork(nil)
		for i := range docs {
			if _, err := u.Insert(c, D("_id", i, "u", i), NoInfo); err != nil {
				t.Fatal(err)
			}
		}
		commit(t, e, u)
		began := time.Now()
		u, own, end := openTransaction(e)
		defer end()
		for i := range docs {
			rid, old := find(t, own, c, i)
			if err := u.Delete(c, rid, old, NoInfo); err != nil {
				t.Fatal(err)
			}
		}
		for i := range docs {
			if _, err := u.Insert(c, D("_id", docs+i, "u", i), NoInfo); err != nil {
				t.Fatal(i, err)
			}
		}
		d := time.Since(began)
		if _, err := u.Insert(c, D("_id", 3*docs, "u", docs/2), NoInfo); mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
			t.Errorf("a key that the transaction has written: %v", err)
		}
		commit(t, e, u)
		verifyIndexes(t, e)
		return d
	}
	const few, times = 1_500, 10
	ratio := 0.0
	for range 3 { // other programs use the processor, too
		if ratio = float64(took(times*few)) / float64(took(few)); ratio < 3*times {
			return
		}
	}
	t.Errorf("%d times as many documents take %.0f times as long", times, ratio)
}
