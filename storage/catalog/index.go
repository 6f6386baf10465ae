package catalog

// Index is one index of a collection at one moment. It never changes; a change makes a new one.
type Index struct {
	Name      string
	Ident     Ident
	IdentName string
	Spec      []byte // raw document as listIndexes shows it: v, key, name, options
	Key       []byte // raw key pattern, borrowed from Spec

	IsID   bool
	Unique bool
	Sparse bool
	// PrepareUnique refuses new duplicates while old ones may exist (collMod).
	PrepareUnique bool
	Hidden        bool
	// Clustered is true where the RecordIds behind the keys are keystrings instead of numbers.
	Clustered bool
	// TTLSeconds is expireAfterSeconds, negative where the index has none.
	TTLSeconds int64

	// Ready is false while the index is being built: writers keep it up to date, readers must not use it.
	Ready bool
	// BuildUUID identifies the build of an index that is not ready.
	BuildUUID UUID
	// Enforcing is true from the moment writers check uniqueness: always for ready unique indexes, and in the last part
	// of a build.
	Enforcing bool

	// Multikey is set once any document gave several keys. MultikeyPaths has, for each field of the key pattern, the
	// positions of its path's components that were arrays; nil for index kinds that do not track them.
	Multikey      bool
	MultikeyPaths [][]int

	// Usage counts how often plans chose the index since the start; shared by all snapshots.
	Usage *Usage
}
