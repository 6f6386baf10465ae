package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/storage"
)

// Role is the current role of a member, with the numbers of replSetGetStatus.
type Role int

// The roles, as documented for member states.
const (
	Startup    Role = 0  // no configuration yet
	Primary    Role = 1  // accepts writes
	Secondary  Role = 2  // follows and serves reads
	Recovering Role = 3  // cannot serve reads: in maintenance, or its store is behind what was acknowledged
	Startup2   Role = 5  // receives its first snapshot
	Unknown    Role = 6  // another member that has never been heard from
	Arbiter    Role = 7  // never configured; listed for its number
	Down       Role = 8  // another member that is no longer heard from
	Removed    Role = 10 // no longer in the configuration
)

var roleNames = map[Role]string{Startup: "STARTUP", Primary: "PRIMARY", Secondary: "SECONDARY", Recovering: "RECOVERING",
	Startup2: "STARTUP2", Unknown: "UNKNOWN", Arbiter: "ARBITER", Down: "(not reachable/healthy)", Removed: "REMOVED"}

func (r Role) String() string { return roleNames[r] }

// NoMember is the _id that stands for no member.
const NoMember = -1

// RoleChange describes what a member has become.
type RoleChange struct {
	Role   Role
	Term   int64
	Leader int // _id of the primary in the configuration, NoMember if there is none
	// Writable is false while the services of a new primary step up, and true once clients may write.
	Writable bool
}

// Transport carries a call to another member: the internal command _replSetRaft with payload, answered by the Handle of
// the Raft at host. Calls to one host may run at the same time and need not arrive in order. A payload is below 16 MB.
type Transport interface {
	Send(ctx context.Context, host string, payload []byte) (reply []byte, err error)
}

// Options configure a Raft.
type Options struct {
	Machine StateMachine
	// Store keeps the raft log and its state; nil keeps them in memory, for engines in memory.
	Store     LocalStore
	SetName   string
	Transport Transport
	// IsSelf reports whether host in a configuration means this member.
	IsSelf func(host string) bool
	Logger *zerolog.Logger // nil for none
	// OnRole is called in order, one call at a time, never from within the loop. It may write, and Close waits for
	// it. It is called twice for a new primary: first with Writable false, to step up the services, which may
	// write; then, once that call has returned, with Writable true.
	OnRole func(RoleChange)
	// OnConfig is called, like OnRole, when another configuration takes effect; with nil when the member is no
	// longer in it.
	OnConfig func(*SetConfig)
	// OnFatal is called once when the member cannot continue, with an error that says why and what to do.
	OnFatal func(error)
	// Starved reports whether this member takes no entries from the primary (fail point stopReplProducer): it stays a
	// member that answers and votes, and falls behind. nil is never.
	Starved func() bool
	// Params is called from time to time; nil for the defaults.
	Params func() Params
	// LogSize is the size to which the raft log is truncated, in bytes; 0 is 256 MB, 64 MB in memory. While the disk is low it is lowLog at
	// most.
	LogSize int64
}

// Params are server parameters that may change at run time. Each comment names the parameter.
type Params struct {
	NoopInterval   time.Duration // periodicNoopIntervalSecs; 0 writes none (writePeriodicNoops: false)
	PriorityLag    time.Duration // priorityTakeoverFreshnessWindowSeconds
	SnapshotRate   int64         // bytes per second of a snapshot to one member; 0 is no limit
	FlowControl    bool          // enableFlowControl
	FlowTargetLag  time.Duration // flowControlTargetLagSeconds
	FlowThreshold  float64       // flowControlThresholdLagPercentage
	FlowMinTickets int           // flowControlMinTicketsPerSecond
}

// DefaultParams returns the documented defaults.
func DefaultParams() Params {
	return Params{NoopInterval: 10 * time.Second, PriorityLag: 2 * time.Second, FlowControl: true,
		FlowTargetLag: 10 * time.Second, FlowThreshold: 0.5, FlowMinTickets: 100}
}

// OpTime is a position in the oplog as reported by a member.
type OpTime struct {
	TS   storage.Timestamp
	Term int64
	Wall time.Time
}

// Status is a member's view of its set; replSetGetStatus, hello and serverStatus are built from it.
type Status struct {
	SetName   string
	Role      Role
	Writable  bool // the primary, with its services stepped up
	Term      int64
	Leader    int        // _id; NoMember if none is known
	Self      int        // _id; NoMember before there is a configuration, and when removed
	Config    *SetConfig // nil before there is one
	Committed OpTime     // what a majority has
	Applied   OpTime
	Durable   OpTime
	Members   []MemberStatus // in the configuration's order
	Log       LogStatus
	Snapshots []SnapshotStatus // in progress, sent or received
	Elections ElectionStatus
	Flow      FlowStatus
	Initiated time.Time // when this member first had a configuration in this process
	Frozen    time.Time // until when it does not stand for election
	Voting    bool      // already part of the quorum: a new voter is once it has caught up
	Fatal     error
}

// MemberStatus describes a member as this one sees it.
type MemberStatus struct {
	ID            int
	Host          string
	Self          bool
	Role          Role
	Healthy       bool
	Voting        bool // already part of the quorum
	Applied       OpTime
	Durable       OpTime
	ConfigVersion int64
	ConfigTerm    int64
	SyncSource    int // _id, NoMember for none
	Uptime        time.Duration
	LastSent      time.Time // last call to it that was answered
	LastReceived  time.Time // last call from it
	Ping          time.Duration
	Error         string // why it is not healthy
	ElectedAt     time.Time
	ElectionTS    storage.Timestamp
}

// LogStatus describes the raft log.
type LogStatus struct {
	First, Last, Commit, Applied uint64
	Bytes                        int64
}

// SnapshotStatus describes a snapshot transfer in progress.
type SnapshotStatus struct {
	Member    int // _id of the other side
	Incoming  bool
	Sent      int64
	Total     int64
	Index     uint64
	Started   time.Time
	LastError string
}

// ElectionStatus counts elections, as serverStatus.electionMetrics does.
type ElectionStatus struct {
	Called, Won                  int64 // by timeout
	StepUpCalled, StepUpWon      int64 // asked for by another member or replSetStepUp
	TakeoverCalled, TakeoverWon  int64 // handed to a member of higher priority
	StepDowns                    int64
	CaughtUp                     int64 // became primary, with everything already there
	LastReason                   string
	LastElection                 time.Time
	LastVoteTerm, LastVotedFor   int64 // the _id of the member voted for in the newest term, NoMember for none
	LastElectionTS               storage.Timestamp
	LastTransition, LastStepDown time.Time
	PrimarySince                 time.Time
	CaughtUpOpTime               OpTime // its last optime when it last became primary
}

// FlowStatus is serverStatus.flowControl.
type FlowStatus struct {
	Enabled      bool
	Lagged       bool
	LaggedCount  int64
	LaggedMicros int64
	Tickets      int // per second
	AcquiredMS   int64
}

// LocalStore keeps what belongs to this member alone. Keys are this package's own; the engine puts them into a
// table that is not part of snapshots.
type LocalStore interface {
	// Scan calls f for each key in [lower, upper), in order, until f returns false. Key and value are borrowed.
	Scan(lower, upper []byte, f func(key, value []byte) bool) error
	// Write applies all of b or nothing, durably if sync is set.
	Write(b *LocalBatch, sync bool) error
}

// LocalBatch is a sequence of changes for LocalStore.Write.
type LocalBatch struct{ Ops []LocalOp }

// LocalOp sets Key to Head followed by Value or, if Upper is not nil, deletes the keys in [Key, Upper).
type LocalOp struct{ Key, Head, Value, Upper []byte }

// Set adds a change; the batch keeps both slices.
func (b *LocalBatch) Set(key, value []byte) { b.Ops = append(b.Ops, LocalOp{Key: key, Value: value}) }

// DeleteRange deletes the keys in [lower, upper).
func (b *LocalBatch) DeleteRange(lower, upper []byte) {
	b.Ops = append(b.Ops, LocalOp{Key: lower, Upper: upper})
}

// Group is a group of units of work that the primary has prepared.
type Group interface {
	// Data returns the group in the form that all members apply.
	Data() []byte
}

// StateMachine is the engine as replication needs it. Apply calls come from one goroutine, in the order of the log.
type StateMachine interface {
	Commit(ctx context.Context, u *storage.UnitOfWork, sync bool) (storage.Timestamp, error)
	WriteNoop(ctx context.Context, msg string) error
	Visible() storage.Timestamp
	// DiskLow reports whether the log must be truncated to the minimum.
	DiskLow() bool

	BecomePrimary(term int64, propose func(Group) error) error
	Resign(err error)
	ApplyGroup(g Group, index, term uint64) error
	ApplyEntry(data []byte, index, term uint64) error
	ApplyNothing(index, term uint64) error
	AppliedIndex() (index, term uint64)
	// EntryTime returns the timestamp of an entry's newest unit.
	EntryTime(data []byte) storage.Timestamp

	SnapshotMachine
}

// SnapshotMachine writes and installs snapshots, as directories of files.
type SnapshotMachine interface {
	// WriteSnapshot writes a consistent state into dir, which it creates, in files of about maxFile bytes.
	WriteSnapshot(ctx context.Context, dir string, maxFile int64) (SnapshotManifest, error)
	InstallSnapshot(ctx context.Context, dir string, m SnapshotManifest) error
	// Files gives access to the snapshot directories: create, read at an offset, append, list with sizes, remove.
	Files() SnapshotFiles
}

// SnapshotManifest lists what a snapshot consists of.
type SnapshotManifest = storage.SnapshotManifest

// SnapshotFile is one file of a snapshot.
type SnapshotFile = storage.SnapshotFile

// SnapshotFiles is the part of a file system that snapshot transfers need. Directories are relative to the
// engine's own.
type SnapshotFiles interface {
	ReadAt(dir, name string, p []byte, offset int64) (int, error)
	// Append writes at the end of a file, creating it if necessary.
	Append(dir, name string, p []byte) error
	Sizes(dir string) (map[string]int64, error) // empty if there is no such directory
	Remove(dir string) error
	List() ([]string, error) // of directories made here
}

func (t OpTime) String() string { return fmt.Sprintf("{ts: %v, t: %d}", t.TS, t.Term) }
