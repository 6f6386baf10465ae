package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// floorBytes is how much each round of BenchmarkCloneFloor moves.
const floorBytes = 64 << 20

// floorBatch is the size of the documents of a batch: that of a migration's units of work.
const floorBatch = 704 << 10

// BenchmarkCloneFloor measures the least that the clone of a migration costs with pebble and nothing else. The donor's records are read in their order; the recipient gets of each
// document a record and an entry of the _id index, with two indexes one of the shard key's, too, all in ascending order, and per batch an oplog entry of a few bytes a document. By
// "batches" they go through journal, memtable and flush, and the compactions that these cause meanwhile; by "tables" they are written as sorted tables, synced and ingested. No BSON is read, no key generated, nothing claimed, looked up
// or checked, nothing is sent anywhere; documents do not compress.
//
// cpu-ms/MB is the processor time of the process. budget-ms/MB is what all processors have for a megabyte at half of the rate at which the disk takes a file that
// is written and synced: a migration cannot run at that rate where the first is larger. "batches" also writes each byte twice.
func BenchmarkCloneFloor(b *testing.B) {
	for _, size := range []int{200, 1024, 4096, 64 << 10} {
		donor := openDisk(b)
		fillFloor(b, donor, size)
		for _, x := range []struct {
			way   string
			index int
		}{{"read", 0}, {"batches", 1}, {"batches", 2}, {"tables", 1}, {"tables", 2}} {
			b.Run(fmt.Sprintf("%d bytes/%s/indexes=%d", size, x.way, x.index), func(b *testing.B) {
				disk := floorDisk(b)
				to := openDisk(b)
				b.Cleanup(func() { closeQuietly(to) })
				b.SetBytes(floorBytes)
				b.ResetTimer()
				before := processTime()
				for round := range b.N {
					recipient := newFloorRecipient(b, to, x.way, floorRecords+catalog.Ident(x.index))
					recipient.n = uint64(round) << 32 // ranges beside each other, as those of a collection are
					readFloor(b, donor, recipient.add)
					recipient.finish()
				}
				flushFloor(b, to)
				perMB := float64(b.N) * floorBytes / (1 << 20)
				b.ReportMetric((processTime()-before).Seconds()*1000/perMB, "cpu-ms/MB")
				b.ReportMetric(1000*float64(runtime.NumCPU())/(disk/2), "budget-ms/MB")
				b.ReportMetric(disk, "disk-MB/s")
			})
		}
		closeQuietly(donor)
	}
}

func processTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// floorDisk writes and syncs a file, and returns megabytes a second.
func floorDisk(b *testing.B) float64 {
	f, err := os.Create(b.TempDir() + "/disk")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer func() { _ = f.Close() }()
	noise := rand.NewChaCha8([32]byte{1})
	block := make([]byte, 1<<20)
	_, _ = noise.Read(block)
	began := time.Now()
	for range floorBytes >> 20 {
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return floorBytes / (1 << 20) / time.Since(began).Seconds()
}

const (
	floorRecords = identFirst + iota
	floorIDs
	floorShardKeys
)

// floorKey returns the key of the n-th entry of a table; those of the shard key's index end with a RecordId.
func floorKey(dst []byte, table catalog.Ident, n uint64) []byte {
	dst = binary.BigEndian.AppendUint64(appendIdent(dst[:0], table), n)
	if table == floorShardKeys {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return appendVersion(dst, 1)
}

// fillFloor fills the donor's table of records.
func fillFloor(b *testing.B, e *Engine, size int) {
	noise := rand.NewChaCha8([32]byte{})
	doc, key := make([]byte, size), []byte(nil)
	for n := range floorBytes / size {
		_, _ = noise.Read(doc)
		key = floorKey(key, floorRecords, uint64(n))
		if err := e.db.Set(key, doc, pebble.NoSync); err != nil {
			b.Fatal(err)
		}
	}
	flushFloor(b, e)
	await.True(b, "the donor is merged", func() bool { return e.db.Metrics().Compact.NumInProgress == 0 })
}

// flushFloor flushes what is in the memtable: the last part would have no share in the flushes otherwise.
func flushFloor(b *testing.B, e *Engine) {
	if err := e.db.Flush(); err != nil {
		b.Fatal(err)
	}
}

// readFloor reads the donor's records and hands them over in batches, which another goroutine stores.
func readFloor(b *testing.B, e *Engine, store func(docs [][]byte)) {
	lower, upper := identRange(floorRecords)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		b.Fatal(err)
	}
	defer closeQuietly(it)
	batches, stored := make(chan [][]byte, 4), make(chan struct{})
	go func() {
		defer close(stored)
		for docs := range batches {
			store(docs)
		}
	}()
	var docs [][]byte
	memory := make([]byte, 0, floorBatch)
	for ok := it.First(); ok; ok = it.Next() {
		doc, err := it.ValueAndErr()
		if err != nil {
			b.Error(err)
			break
		}
		if len(memory)+len(doc) > cap(memory) {
			batches <- docs
			docs, memory = nil, make([]byte, 0, floorBatch)
		}
		at := len(memory)
		memory = append(memory, doc...)
		docs = append(docs, memory[at:])
	}
	batches <- docs
	close(batches)
	<-stored
}

// floorRecipient stores documents in one of the ways of BenchmarkCloneFloor.
type floorRecipient struct {
	b    *testing.B
	e    *Engine
	way  string
	last catalog.Ident // of the tables
	n    uint64
	key  []byte
	sink map[catalog.Ident]*fileSink
}

func newFloorRecipient(b *testing.B, e *Engine, way string, last catalog.Ident) *floorRecipient {
	r := &floorRecipient{b: b, e: e, way: way, last: last}
	if way == "tables" {
		r.sink = map[catalog.Ident]*fileSink{}
		for id := floorRecords; id <= last; id++ {
			r.sink[id] = &fileSink{tableFiles{e: e, name: fmt.Sprintf("%s%d", buildFilePrefix, id)}}
		}
	}
	return r
}

func (r *floorRecipient) check(err error) {
	if err != nil {
		r.b.Error(err)
	}
}

func (r *floorRecipient) add(docs [][]byte) {
	if r.way == "read" {
		return
	}
	set := func(table catalog.Ident, val []byte) error { return r.sink[table].add(r.key, val) }
	if r.way == "batches" {
		batch := r.e.db.NewBatchWithSize(floorBatch + (64+40*int(r.last-floorRecords))*len(docs))
		defer closeQuietly(batch)
		set = func(_ catalog.Ident, val []byte) error { return batch.Set(r.key, val, nil) }
		defer func() {
			r.key = timeKey(r.key, identOplog, Timestamp(r.n))
			r.check(batch.Set(r.key, make([]byte, 4*len(docs)), nil))
			r.check(r.e.db.Apply(batch, pebble.NoSync))
		}()
	}
	var rid [8]byte
	for table := floorRecords; table <= r.last; table++ {
		for i, doc := range docs {
			n := r.n + uint64(i)
			r.key = floorKey(r.key, table, n)
			switch table {
			case floorIDs:
				binary.BigEndian.PutUint64(rid[:], n)
				doc = rid[:]
			case floorShardKeys:
				doc = entryLive
			}
			r.check(set(table, doc))
		}
	}
	r.n += uint64(len(docs))
}

// finish makes everything durable.
func (r *floorRecipient) finish() {
	switch r.way {
	case "batches":
		r.check(r.e.db.LogData(nil, pebble.Sync))
	case "tables":
		for _, s := range r.sink {
			r.check(s.finish(context.Background()))
		}
	}
}

// BenchmarkCopy measures what the storage engine's part of a clone costs, through the journal as units of work of the size that a migration has, and as tables: keys, claims, checks, oplog
// and all, with the flush at the end and the compactions that it causes. _ids ascend, or are scattered over the range as a hashed shard key has them.
func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{200, 1024, 4096, 64 << 10} {
		for _, order := range []string{"ascending", "scattered"} {
			for _, way := range []string{"units", "tables"} {
				b.Run(fmt.Sprintf("%d bytes/%s/%s", size, order, way), func(b *testing.B) {
					e := openDisk(b)
					b.Cleanup(func() { closeQuietly(e) })
					c := create(b, e, "db.c", nil)
					noise, n, cpu := rand.NewChaCha8([32]byte{}), 0, time.Duration(0)
					b.SetBytes(floorBytes)
					b.ResetTimer()
					for range b.N {
						for range floorBytes / copyBenchBytes {
							docs := copyBenchDocs(noise, size, &n, order == "scattered")
							before := processTime()
							storeBench(b, e, c, docs, way)
							cpu += processTime() - before
						}
					}
					before := processTime()
					flushFloor(b, e)
					await.True(b, "the store is merged", func() bool { return e.db.Metrics().Compact.NumInProgress == 0 })
					cpu += processTime() - before
					m := e.db.Metrics()
					written := m.WAL.BytesWritten
					for _, l := range m.Levels {
						written += l.TableBytesFlushed + l.TableBytesCompacted + l.TableBytesIngested
					}
					perMB := float64(b.N) * floorBytes / (1 << 20)
					b.ReportMetric(cpu.Seconds()*1000/perMB, "cpu-ms/MB")
					b.ReportMetric(float64(written)/(1<<20)/perMB, "written-MB/MB")
				})
			}
		}
	}
}

const copyBenchBytes = 16 << 20

func copyBenchDocs(noise *rand.ChaCha8, size int, n *int, scattered bool) (docs [][]byte) {
	for range copyBenchBytes / size {
		pad := make([]byte, size-44)
		_, _ = noise.Read(pad)
		id := int64(*n)
		if scattered {
			id = int64(uint64(id) * 0x9E3779B97F4A7C15 >> 1)
		}
		docs = append(docs, value.Doc(value.F("_id", value.NewInt64(id)), value.F("pad", value.NewBinary(0, pad))))
		*n++
	}
	return docs
}

func storeBench(b *testing.B, e *Engine, c *catalog.Collection, docs [][]byte, way string) {
	if way == "tables" {
		if err := byTables(e, c, docs); err != nil {
			b.Fatal(err)
		}
		return
	}
	for len(docs) > 0 {
		part := docs[:min(len(docs), max(1, floorBatch/len(docs[0])))]
		copyIn(b, e, c, true, part)
		docs = docs[len(part):]
	}
}
