package replication

import (
	"encoding/binary"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// callKind is the kind of a call between members.
type callKind byte

const (
	callMessages callKind = iota + 1 // raft messages and the caller's report
	callPiece                        // a piece of a payload that is too large for one call
	callOffer                        // a snapshot: which part of it is missing?
	callChunk                        // a part of a snapshot
	callDone                         // the snapshot is complete
)

// envelopeVersion is the first byte of every payload.
const envelopeVersion = 1

// maxPayload is the largest payload passed to Transport.Send.
const maxPayload = 12 << 20

// envelope is a call or its response.
type envelope struct {
	kind     callKind
	set      string
	setID    [12]byte // replicaSetId; zero for a member without a configuration, and for one of a version that did not send it
	from, to uint64   // raft ids; 0 for a member that does not know its own
	host     string   // of from
	report   report
	config   []byte // the configuration, sent to a member that does not know that it is no longer in it
	messages []*raftpb.Message
	body     []byte // content of kinds other than callMessages; with those, the log's history, for a superseded member
}

// report describes a member to its peers in every call and response.
type report struct {
	role          Role
	flags         reportFlags
	term          uint64
	lead          uint64 // raft id
	index         uint64 // applied
	indexTerm     uint64
	ts            storage.Timestamp // visible
	configVersion int64
	configTerm    int64
	uptimeMS      uint64
	electionTS    storage.Timestamp
	electionMS    uint64 // when elected, milliseconds of the epoch
}

type reportFlags byte

const (
	reportElectable  reportFlags = 1 << iota // would stand for election
	reportWritable                           // is the primary and stepped up
	reportEmpty                              // has no data that counts: needs a snapshot
	reportEager                              // wants a report as soon as something is applied
	reportStranger                           // does not know the caller as a member
	reportSuperseded                         // has received a report of a forced configuration that is newer than its own
)

var errEnvelope = mongoerr.New(mongoerr.FailedToParse, "the call between members of the set cannot be read")

func (e *envelope) marshal() ([]byte, error) {
	p := packer{b: make([]byte, 0, 256+e.size())}
	p.b = append(p.b, envelopeVersion, byte(e.kind))
	p.bytes([]byte(e.set))
	p.uint(e.from)
	p.uint(e.to)
	p.bytes([]byte(e.host))
	e.report.pack(&p)
	p.bytes(e.config)
	p.bytes(e.body)
	p.uint(uint64(len(e.messages)))
	for _, m := range e.messages {
		p.uint(uint64(proto.Size(m)))
		var err error
		if p.b, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(p.b, m); err != nil {
			return nil, err
		}
	}
	p.b = append(p.b, e.setID[:]...) // behind all that earlier versions read
	return p.b, nil
}

func (e *envelope) size() (n int) {
	n = len(e.body) + len(e.config)
	for _, m := range e.messages {
		n += messageSize(m)
	}
	return n
}

// messageSize is roughly the encoded size of m.
func messageSize(m *raftpb.Message) (n int) {
	for _, x := range m.GetEntries() {
		n += len(x.GetData()) + 32
	}
	return n + 96
}

// unmarshal reads a payload, from which only body and config borrow.
func (e *envelope) unmarshal(payload []byte) error {
	if len(payload) < 2 || payload[0] != envelopeVersion {
		return errEnvelope
	}
	e.kind = callKind(payload[1])
	u := unpacker{b: payload[2:]}
	e.set = string(u.bytes())
	e.from, e.to = u.uint(), u.uint()
	e.host = string(u.bytes())
	e.report.unpack(&u)
	e.config = u.bytes()
	e.body = u.bytes()
	n := u.uint()
	if u.bad || n > uint64(len(u.b)) {
		return errEnvelope
	}
	for range n {
		m := &raftpb.Message{}
		if err := proto.Unmarshal(u.bytes(), m); err != nil || u.bad {
			return errEnvelope
		}
		e.messages = append(e.messages, m)
	}
	if len(u.b) > 0 && copy(e.setID[:], u.b) < len(e.setID) {
		return errEnvelope
	}
	return nil
}

// config returns the configuration that the member reports, as far as the report goes.
func (r *report) config() *SetConfig {
	return &SetConfig{Version: r.configVersion, Term: r.configTerm}
}

func (r *report) pack(p *packer) {
	p.uint(uint64(r.role))
	p.uint(uint64(r.flags))
	p.uint(r.term)
	p.uint(r.lead)
	p.uint(r.index)
	p.uint(r.indexTerm)
	p.uint(uint64(r.ts))
	p.int(r.configVersion)
	p.int(r.configTerm)
	p.uint(r.uptimeMS)
	p.uint(uint64(r.electionTS))
	p.uint(r.electionMS)
}

func (r *report) unpack(u *unpacker) {
	r.role = Role(u.uint())
	r.flags = reportFlags(u.uint())
	r.term, r.lead = u.uint(), u.uint()
	r.index, r.indexTerm = u.uint(), u.uint()
	r.ts = storage.Timestamp(u.uint())
	r.configVersion, r.configTerm = u.int(), u.int()
	r.uptimeMS = u.uint()
	r.electionTS = storage.Timestamp(u.uint())
	r.electionMS = u.uint()
}

// packer appends numbers and byte strings.
type packer struct{ b []byte }

func (p *packer) uint(v uint64) { p.b = binary.AppendUvarint(p.b, v) }
func (p *packer) int(v int64)   { p.b = binary.AppendVarint(p.b, v) }
func (p *packer) bytes(v []byte) {
	p.uint(uint64(len(v)))
	p.b = append(p.b, v...)
}

// unpacker reads what a packer wrote. After a decoding error bad is set and all further values are zero.
type unpacker struct {
	b   []byte
	bad bool
}

func (u *unpacker) uint() uint64 {
	v, n := binary.Uvarint(u.b)
	if n <= 0 {
		u.bad, u.b = true, nil
		return 0
	}
	u.b = u.b[n:]
	return v
}

func (u *unpacker) int() int64 {
	v, n := binary.Varint(u.b)
	if n <= 0 {
		u.bad, u.b = true, nil
		return 0
	}
	u.b = u.b[n:]
	return v
}

// bytes borrows from the payload.
func (u *unpacker) bytes() []byte {
	n := u.uint()
	if n > uint64(len(u.b)) {
		u.bad, u.b = true, nil
		return nil
	}
	v := u.b[:n:n]
	u.b = u.b[n:]
	return v
}
