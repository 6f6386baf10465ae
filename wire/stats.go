package wire

import (
	"crypto/tls"
	"sync/atomic"
)

// counters are the network counters of serverStatus.
type counters struct {
	current  atomic.Int64
	created  atomic.Int64
	rejected atomic.Int64
	active   atomic.Int64 // connections with a running request
	balanced atomic.Int64 // connections that a load balancer has made

	bytesIn, bytesOut   atomic.Int64 // as counted on the socket
	logicalIn, logicOut atomic.Int64 // before compression
	requests            atomic.Int64
	compress            [numCompressors]compressCounters
	tls                 [numTLSVersions]atomic.Int64 // finished handshakes, by the version agreed on
}

// TLSVersions has the names of the TLS versions in the order of Stats.Handshakes.
var TLSVersions = [...]string{"1.0", "1.1", "1.2", "1.3", "unknown"}

const numTLSVersions = len(TLSVersions)

func (c *counters) handshake(version uint16) {
	i := numTLSVersions - 1
	if version >= tls.VersionTLS10 && version <= tls.VersionTLS13 {
		i = int(version - tls.VersionTLS10)
	}
	c.tls[i].Add(1)
}

type compressCounters struct {
	compressIn, compressOut     atomic.Int64
	decompressIn, decompressOut atomic.Int64
}

// CompressStats counts bytes before and after one compressor.
type CompressStats struct {
	Name                        string
	CompressIn, CompressOut     int64
	DecompressIn, DecompressOut int64
}

// Stats is a snapshot of a server's counters.
type Stats struct {
	Current, Available, TotalCreated, Active, Rejected, LoadBalanced int64

	Admission AdmissionStats

	BytesIn, BytesOut               int64 // as on the socket
	LogicalBytesIn, LogicalBytesOut int64 // before compression
	NumRequests                     int64
	Compression                     []CompressStats
	Handshakes                      [numTLSVersions]int64 // encrypted connections since the start, by TLSVersions
}

// Stats reads the counters; each is exact, but together they are not a consistent snapshot.
func (s *Server) Stats() Stats {
	c := &s.stats
	st := Stats{
		Current: c.current.Load(), TotalCreated: c.created.Load(), Active: c.active.Load(), Rejected: c.rejected.Load(),
		LoadBalanced: c.balanced.Load(),
		BytesIn:      c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		LogicalBytesIn: c.logicalIn.Load(), LogicalBytesOut: c.logicOut.Load(), NumRequests: c.requests.Load(),
	}
	st.Admission = s.admission.stats()
	st.Available = int64(s.opts.MaxConnections) - st.Current - st.Admission.Waiting
	for i := range c.compress {
		k := &c.compress[i]
		st.Compression = append(st.Compression, CompressStats{
			Name: CompressorID(i).String(), CompressIn: k.compressIn.Load(), CompressOut: k.compressOut.Load(),
			DecompressIn: k.decompressIn.Load(), DecompressOut: k.decompressOut.Load(),
		})
	}
	for i := range c.tls {
		st.Handshakes[i] = c.tls[i].Load()
	}
	return st
}
