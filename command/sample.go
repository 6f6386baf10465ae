package command

import "github.com/shoaldb/shoal/command/sampling"

// sampledCommands has the commands whose queries are sampled.
var sampledCommands = [...]string{"find", "aggregate", "count", "distinct", "update", "delete", "findAndModify", "bulkWrite"}

func isSampled(name string) bool {
	for _, n := range sampledCommands {
		if n == name {
			return true
		}
	}
	return false
}

// sample samples a client's query if the sampling rate allows it. A sampled update gets the sample's id, under which the shard that
// runs it records which fields have changed.
func (s *Service) sample(op *Op) error {
	req := &op.Req
	if op.Client.InProcess || op.Client.Internal || !isSampled(req.Spec.Name) || req.Shared("explain").Truthy() {
		return nil
	}
	q := s.Sampler.Sample(&sampling.Query{Name: req.Spec.Name, DB: req.DB, Body: req.Body, Seqs: req.Msg.Seqs})
	if q == nil {
		return nil
	}
	msg := *req.Msg
	msg.Body, msg.Seqs = q.Body, q.Seqs
	req.Msg, req.Body = &msg, msg.Body
	req.Sampled = true
	return req.parse(true)
}

// QueriesRun returns the number of commands of the sampled kinds since the service started.
func (s *Service) QueriesRun() (n int64) {
	for _, name := range sampledCommands {
		if spec := s.Table.Lookup(name); spec != nil {
			n += s.CounterOf(spec).Total.Load()
		}
	}
	return n
}
