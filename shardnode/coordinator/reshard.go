package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// reshard locks a collection's name while the config server gives the collection another key or other shards. The run's id is also that of
// the operation there, so that a repeated request joins it.
type reshard struct {
	req *msg.ShardReshard
	at  msg.ReshardFound
}

func (m *Coordinators) reshard(op *command.Op, req *msg.ShardReshard, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (s *reshard) name() string { return s.req.Provenance }
func (s *reshard) locks() (string, []string) {
	return catalog.DBOf(s.req.NS), lockedWithBuckets(s.req.NS)
}
func (s *reshard) found() msg.Message      { return &s.at }
func (s *reshard) reply(dst []byte) []byte { return dst }

func (s *reshard) check(_ context.Context, r *run) (local bool, err error) {
	if catalog.CollOf(s.req.NS) == "" {
		return false, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", s.req.NS)
	}
	return false, s.resolveSeries(r)
}

// ns returns the namespace that is resharded: that of the buckets for a time series collection.
func (s *reshard) ns() string {
	if s.at.Buckets != "" {
		return s.at.Buckets
	}
	return s.req.NS
}

// onConfig returns the request for the config server, which knows time series collections by their buckets alone.
func (s *reshard) onConfig(id [16]byte) *msg.ConfigReshard {
	m := &msg.ConfigReshard{NS: s.ns(), ID: id, Reshard: s.req.Reshard}
	if s.at.Buckets != "" {
		m.Key, m.Zones, m.Index, m.Distribution = s.at.Key, s.at.Zones, s.at.Index, s.at.Ranges
	}
	return m
}

func (s *reshard) phases() []phase {
	return []phase{
		{name: "reshardCollection", do: s.await},
		{name: "forget", final: true, do: s.forget},
	}
}

// await begins the operation on the config server, or joins it, and waits for its end.
func (s *reshard) await(ctx context.Context, r *run) error {
	body, err := r.onConfig(ctx, s.onConfig(r.doc.id))
	if err != nil {
		return err
	}
	var reply msg.ConfigReshardReply
	if err := msg.Parse(body, &reply); err != nil {
		return err
	}
	if reply.Code != 0 {
		return permanent{mongoerr.New(mongoerr.Code(reply.Code), reply.Error)}
	}
	return nil
}

// forget informs the config server that the outcome is known here.
func (s *reshard) forget(ctx context.Context, r *run) error {
	_, err := r.onConfig(ctx, &msg.ForgetReshard{NS: s.ns(), ID: r.doc.id})
	return err
}

// undo aborts the operation on the config server, which may have started it although the request failed in transit.
func (s *reshard) undo(ctx context.Context, r *run) error {
	_, err := r.onConfig(ctx, &msg.AbortReshard{NS: s.ns(), ID: (*[16]byte)(&r.doc.id)})
	switch mongoerr.CodeOf(err) {
	case mongoerr.NoSuchReshardCollection, mongoerr.ReshardCollectionCommitted:
		err = nil
	}
	if err != nil {
		return err
	}
	return s.forget(ctx, r)
}
