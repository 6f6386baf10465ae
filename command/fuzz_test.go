package command

import (
	"testing"

	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzConcerns: any read or write concern is either accepted or refused.
func FuzzConcerns(f *testing.F) {
	names := []string{"w", "j", "fsync", "wtimeout", "level", "afterClusterTime", "atClusterTime", "afterOpTime", "ts", "t", "provenance", "waitLastStableRecoveryTimestamp",
		"$readMajorityTemporarilyUnavailableDebugging", "allowTransactionTableSnapshot", "getLastError", "wElectionId", "wOpTime"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		_, _ = ParseWriteConcern(g.Doc())
		_, _ = ParseReadConcern(g.Doc())
	})
}
