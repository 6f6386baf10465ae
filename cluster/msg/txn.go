package msg

import "github.com/shoaldb/shoal/query/value"

// Transactions over several shards. These commands belong to a transaction, so lsid, txnNumber and autocommit
// follow their own fields.

// CoordinateCommit makes a shard coordinate the two-phase commit of a transaction. Without participants it asks
// for a transaction's outcome.
type CoordinateCommit struct{ Participants []string }

func (m *CoordinateCommit) fields(c *codec) {
	c.plain("coordinateCommitTransaction")
	subs(c, "participants", &m.Participants, func(c *codec, shard *string) { c.str("shardId", required, shard) })
}

// PrepareTransaction asks a participant for its vote.
type PrepareTransaction struct{ Coordinator string } // a shard; "" if there is none

func (m *PrepareTransaction) fields(c *codec) {
	c.plain("prepareTransaction")
	c.str("coordinatorId", optional, &m.Coordinator)
}

// PrepareTransactionReply is the vote; the transaction must not commit before this timestamp.
type PrepareTransactionReply struct{ Timestamp uint64 }

func (m *PrepareTransactionReply) fields(c *codec) {
	c.reply("prepareTransaction")
	c.timestamp("prepareTimestamp", required, &m.Timestamp)
}

// CommitTransaction executes a decision to commit. Clients send the same command without a timestamp, for a transaction
// that is not prepared.
type CommitTransaction struct {
	Timestamp     uint64 // 0 is none
	RecoveryToken []byte // a client's; routers read it
}

func (m *CommitTransaction) fields(c *codec) {
	c.plain("commitTransaction")
	c.timestamp("commitTimestamp", optional, &m.Timestamp)
	c.doc("recoveryToken", optional, &m.RecoveryToken)
}

// AbortTransaction ends a transaction and discards its writes.
type AbortTransaction struct{}

func (m *AbortTransaction) fields(c *codec) { c.plain("abortTransaction") }

// NoteMovedWrite informs the shard to which a client's statement was sent that the transaction executes it.
type NoteMovedWrite struct {
	DB        string // the statement's
	Statement int64
	Upserted  value.Value // the _id of an upsert's document; missing for an update
	Image     []byte      // the document that a findAndModify returns
	ImageKind string      // preImage or postImage; "" where none is kept
}

func (m *NoteMovedWrite) fields(c *codec) {
	c.plain("_shardsvrNoteMovedWrite")
	c.sentTo(&m.DB)
	c.int64("statement", required, &m.Statement)
	c.any("upserted", &m.Upserted)
	c.doc("image", optional, &m.Image)
	c.str("imageKind", optional, &m.ImageKind)
}

// StatementExecuted asks a shard whether it has executed a statement of a retryable write.
type StatementExecuted struct {
	Session   []byte
	Number    int64 // the txnNumber
	Statement int64
}

func (m *StatementExecuted) fields(c *codec) {
	c.plain("_shardsvrStatementExecuted")
	c.doc("session", required, &m.Session)
	c.int64("number", required, &m.Number)
	c.int64("statement", required, &m.Statement)
}

// StatementExecutedReply is the reply to StatementExecuted.
type StatementExecutedReply struct{ Executed bool }

func (m *StatementExecutedReply) fields(c *codec) {
	c.reply("_shardsvrStatementExecuted")
	c.boolean("executed", required, &m.Executed)
}
