package msg

// What routers ask of the primary shard of a database, which coordinates it, and what its state documents keep.

// ShardDropCollection drops a collection wherever it is.
type ShardDropCollection struct {
	DB, Coll string
	UUID     *[16]byte // that the client expects it to have; nil if it names none
}

func (m *ShardDropCollection) fields(c *codec) {
	c.on("_shardsvrDropCollection", &m.Coll)
	c.sentTo(&m.DB)
	c.optionalUUID("collectionUUID", &m.UUID)
}

// DropFound is what a drop found.
type DropFound struct {
	UUID    [16]byte
	Indexes int64
	Shards  []string // those that there were, the coordinator last
}

func (m *DropFound) fields(c *codec) {
	c.reply("_shardsvrDropCollection")
	c.uuid("collectionUUID", &m.UUID)
	c.int64("nIndexesWas", optional, &m.Indexes)
	c.strs("shards", required, &m.Shards)
}
