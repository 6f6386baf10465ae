package msg

import "github.com/shoaldb/shoal/query/value"

// Commands between the members of a replica set, and those by which nodes follow changes of users and of the sampling of queries.

// RaftStep carries messages of raft to another member.
type RaftStep struct{ Payload []byte }

func (m *RaftStep) fields(c *codec) {
	c.command("_replSetRaft", Binary, func() value.Value { return value.NewBinary(0, m.Payload) }, func(v value.Value) { m.Payload = v.Bytes() })
}

// RaftStepReply has the immediate reply of that member's raft.
type RaftStepReply struct{ Payload []byte }

func (m *RaftStepReply) fields(c *codec) {
	c.reply("_replSetRaft")
	c.binary("reply", &m.Payload)
}

// IsSelf asks the process at an address for its identity: a node dials the addresses of a configuration to find its
// own.
type IsSelf struct{}

func (m *IsSelf) fields(c *codec) { c.plain("_isSelf") }

// IsSelfReply identifies a process.
type IsSelfReply struct{ ID [12]byte }

func (m *IsSelfReply) fields(c *codec) {
	c.reply("_isSelf")
	c.objectID("id", required, &m.ID)
}

// Heartbeat asks a member that a configuration adds whether it is running and can join the set.
type Heartbeat struct {
	Set        string
	CheckEmpty bool // refuse if the member already has a configuration
}

func (m *Heartbeat) fields(c *codec) {
	c.on("replSetHeartbeat", &m.Set)
	c.flag("checkEmpty", false, &m.CheckEmpty)
}

// AppendOplogNote makes a node write an oplog entry that changes nothing. Clients send the same command.
type AppendOplogNote struct {
	Data           []byte
	MaxClusterTime uint64 // the entry's time is this or later; refused if the newest entry's already is. 0 is none
}

func (m *AppendOplogNote) fields(c *codec) {
	c.plain("appendOplogNote")
	c.doc("data", required, &m.Data)
	c.timestamp("maxClusterTime", optional, &m.MaxClusterTime)
}

// UserCacheGeneration asks the config server whether users or roles have changed.
type UserCacheGeneration struct{}

func (m *UserCacheGeneration) fields(c *codec) { c.plain("_getUserCacheGeneration") }

// UserCacheGenerationReply counts the changes of users and roles since a primary was elected.
type UserCacheGenerationReply struct {
	Epoch      [12]byte // of the process that counts
	Generation int64
}

func (m *UserCacheGenerationReply) fields(c *codec) {
	c.reply("_getUserCacheGeneration")
	c.objectID("cacheGeneration", required, &m.Epoch)
	c.int64("generation", required, &m.Generation)
}

// RefreshQueryAnalyzer asks the primary that stores the configurations of query sampling for a sampler's share of them.
type RefreshQueryAnalyzer struct {
	Sampler string
	Queries value.Value // how many queries a second the sampler runs
}

func (m *RefreshQueryAnalyzer) fields(c *codec) {
	c.plain("_refreshQueryAnalyzerConfiguration")
	c.str("name", required, &m.Sampler)
	c.any("numQueriesExecutedPerSecond", &m.Queries)
}

// RefreshQueryAnalyzerReply has a document for each collection that is sampled.
type RefreshQueryAnalyzerReply struct {
	Configurations [][]byte
}

func (m *RefreshQueryAnalyzerReply) fields(c *codec) {
	c.reply("_refreshQueryAnalyzerConfiguration")
	c.docs("configurations", required, &m.Configurations)
}
