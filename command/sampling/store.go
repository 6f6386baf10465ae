package sampling

import (
	"context"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func cutDot(s string) (head, rest string) {
	head, rest, _ = strings.Cut(s, ".")
	return head, rest
}

func split(ns string) (db, coll string) { return cutDot(ns) }

// Backend connects a sampler to the servers that it depends on.
type Backend interface {
	// Refresh returns the sampler's share of the configurations; nil if this process does not sample.
	Refresh(ctx context.Context) ([]Configuration, error)
	// Keeper returns the server that stores the samples of a collection.
	Keeper(ctx context.Context, ns string) (cluster.Peer, error)
	// Warn logs an error that is not returned to any client.
	Warn(msg string, err error)
}

// tick is the maximum delay until a changed interval takes effect.
const tick = 250 * time.Millisecond

// Run refreshes the configurations and stores samples at the intervals of the parameters, until ctx ends.
func (s *Sampler) Run(ctx context.Context, b Backend) {
	t := time.NewTicker(tick)
	defer t.Stop()
	var refreshed time.Time
	flushed := time.Now()
	due := func(since time.Time, param string) bool {
		return time.Since(since) >= time.Duration(s.params.Int(param))*time.Second
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if due(refreshed, "queryAnalysisSamplerConfigurationRefreshSecs") {
			refreshed = time.Now()
			s.refresh(ctx, b)
		}
		if due(flushed, "queryAnalysisWriterIntervalSecs") {
			flushed = time.Now()
			short, cancel := context.WithTimeout(ctx, callTimeout)
			if err := s.Flush(short, b); err != nil && ctx.Err() == nil {
				b.Warn("Sampled queries were not stored, and are kept", err)
			}
			cancel()
		}
	}
}

// callTimeout limits the time that a sampler waits for other servers.
const callTimeout = 30 * time.Second

// stopTimeout limits the time that a shutdown waits for samples to be stored.
const stopTimeout = 2 * time.Second

// StoreAtStop makes Stop store the buffered samples.
func (s *Sampler) StoreAtStop(b Backend) { s.last = b }

// Stop stores the buffered samples when the service is about to stop.
func (s *Sampler) Stop() {
	if s == nil || s.last == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.Flush(ctx, s.last); err != nil {
		s.last.Warn("Sampled queries were not stored, and are lost", err)
	}
}

// refresh fetches the configurations. If that fails, sampling continues unchanged.
func (s *Sampler) refresh(ctx context.Context, b Backend) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if list, err := b.Refresh(ctx); err == nil {
		s.Install(list)
	}
}

// Flush stores the buffered samples. Those that cannot be stored are buffered again.
func (s *Sampler) Flush(ctx context.Context, b Backend) (err error) {
	type place struct{ ns, coll string }
	groups := map[place][]sample{}
	for _, d := range s.take() {
		p := place{d.ns, d.coll}
		groups[p] = append(groups[p], d)
	}
	for p, docs := range groups {
		to, e := b.Keeper(ctx, p.ns)
		if e == nil {
			e = s.store(ctx, to, p.coll, docs)
		}
		if e == nil || mongoerr.CodeOf(e) == mongoerr.NamespaceNotFound {
			continue // the samples of a dropped database are dropped
		}
		err = e
		for _, d := range docs {
			s.buffer(d)
		}
	}
	return err
}

// maxBatchBytes limits the size of an insert of samples: a message has at most 48 MB.
const maxBatchBytes = 8 << 20

// store writes samples of one kind to a server, where a TTL index removes them later.
func (s *Sampler) store(ctx context.Context, to cluster.Peer, coll string, docs []sample) error {
	index := value.Doc(value.F("key", value.NewDocument(value.Doc(value.F("expireAt", value.NewInt32(1))))),
		value.F("name", value.NewString(ttlIndex[coll])), value.F("expireAfterSeconds", value.NewInt32(0)))
	_, err := cluster.RunWrite(ctx, to, msg.Doc(&msg.CreateIndexes{DB: "config", Coll: coll, Indexes: [][]byte{index}, Quorum: msg.NoQuorum()}))
	if err != nil {
		return err
	}
	most := min(int(s.params.Int("queryAnalysisWriterMaxBatchSize")), 100000)
	for len(docs) > 0 {
		n, size := 0, 0
		var batch []value.Value
		for n < len(docs) && n < max(1, most) && (n == 0 || size+len(docs[n].doc) < maxBatchBytes) {
			batch = append(batch, value.NewDocument(docs[n].doc))
			size += len(docs[n].doc)
			n++
		}
		reply, err := cluster.Run(ctx, to, msg.Doc(&msg.Insert{DB: "config", Coll: coll, Documents: value.ArrayOf(batch...), Unordered: true},
			value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewString("majority")))))))
		if err != nil {
			return err
		}
		for _, w := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
			if c, _ := value.Lookup(w.Doc(), "code").AsInt64(); mongoerr.Code(c) != mongoerr.DuplicateKey { // already stored by an attempt that failed later
				return mongoerr.New(mongoerr.Code(c), value.Lookup(w.Doc(), "errmsg").Str())
			}
		}
		docs = docs[n:]
	}
	return nil
}

var ttlIndex = map[string]string{Queries: "SampledQueriesTTLIndex", Diffs: "SampledQueriesDiffTTLIndex"}
