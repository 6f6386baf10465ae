package ddl

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

const queryAnalyzersNS = "config.queryAnalyzers"

// stopSampling ends the sampling of a collection's queries in the unit that drops or renames it.
func stopSampling(u *storage.UnitOfWork, s *storage.Snapshot, ns string) error {
	c := s.Catalog().Lookup(queryAnalyzersNS)
	if c == nil || ns == queryAnalyzersNS {
		return nil
	}
	return statedoc.PutRecord(s, u, c, value.NewString(ns), nil)
}
