package lock

// Mode is the mode in which a resource is locked.
type Mode uint8

// The modes, weakest first; S and IX are not ordered among themselves.
const (
	None Mode = iota
	IS
	IX
	S
	X
	modes = 5
)

var modeNames = [modes]string{"NONE", "IS", "IX", "S", "X"}

func (m Mode) String() string { return modeNames[m] }

// Letter returns the mode as currentOp and serverStatus show it: r, w, R, W.
func (m Mode) Letter() string { return [modes]string{"", "r", "w", "R", "W"}[m] }

// conflicts[m] has bit n set if n cannot be held by another together with m.
var conflicts = [modes]uint8{
	IS: 1 << X,
	IX: 1<<S | 1<<X,
	S:  1<<IX | 1<<X,
	X:  1<<IS | 1<<IX | 1<<S | 1<<X,
}

// Compatible reports whether two operations may hold a resource in these modes at once.
func Compatible(a, b Mode) bool { return conflicts[a]&(1<<b) == 0 }

// Covers reports whether holding m makes n redundant.
func (m Mode) Covers(n Mode) bool { return join(m, n) == m }

// join returns the weakest mode that covers both.
func join(a, b Mode) Mode {
	if a == IX && b == S || a == S && b == IX {
		return X
	}
	return max(a, b)
}

// intent returns the mode for locking the resources that contain one locked in m.
func (m Mode) intent() Mode {
	if m == X || m == IX {
		return IX
	}
	return IS
}

// Kind is a level of the hierarchy.
type Kind uint8

// The kinds, in locking order.
const (
	ParallelBatchWriter Kind = iota
	ReplicationState
	Global
	Database
	Collection
	Mutex
	DDLDatabase
	DDLCollection
	kinds = 8
)

var kindNames = [kinds]string{"ParallelBatchWriterMode", "ReplicationStateTransition", "Global", "Database", "Collection", "Mutex", "DDLDatabase", "DDLCollection"}

func (k Kind) String() string { return kindNames[k] }

// Resource is something that can be locked. The name is empty for kinds with a single resource.
type Resource struct {
	Kind Kind
	Name string
}
