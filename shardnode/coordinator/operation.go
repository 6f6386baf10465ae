package coordinator

import (
	"context"
	"errors"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// operation is one DDL: the request, the state that check found, and the table of its phases.
type operation interface {
	// name returns the operation's type, as in documents and currentOp.
	name() string
	// locks returns the collections that it locks, all of one database except for a rename's target; with none
	// it locks the database.
	locks() (db string, colls []string)
	// check reads the current state, with the locks held, and changes nothing. local means that only this shard is concerned.
	check(ctx context.Context, r *run) (local bool, err error)
	// found returns what check found, in the form in which the state document stores it; readDocument parses into it.
	found() msg.Message
	phases() []phase
	// undo reverts what the phases before the first final one did.
	undo(ctx context.Context, r *run) error
	// reply appends the reply's fields. It may be called once a final phase has begun, while that is carried out.
	reply(dst []byte) []byte
}

// forwarding is an operation whose request contains the client's own command, which this shard runs if nothing else has to be done.
type forwarding interface{ clientCommand() []byte }

// rezoning is an operation that may change zones of a collection that has no entry in the catalog, and reports whether it does. New ones, which the config server has, are not lost with the removal of
// the state document, and a repeated phase would take them for those that it has found: the removal is durable.
type rezoning interface{ rezones() bool }

// phase is a step of an operation. It is repeated if it fails, and by the next primary.
type phase struct {
	name string
	do   func(ctx context.Context, r *run) error
	// final is the point of no return: from here on the operation can only be completed.
	final bool
	// unstored means that the state document does not name the phase, which saves a sync. A primary that continues the run repeats the last phase before that is stored, which
	// can then no longer be undone (through).
	unstored bool
	// section has the names that the phase blocks, if it does nothing else, on shards, of which this one is the last: its section is entered in the unit of work
	// that writes the state document, and those of the others meanwhile, which saves two syncs (enterBlocked).
	section []string
	shards  *[]string
	alone   bool   // shards that join the cluster are not concerned, as others than this one are not
	blocks  string // "" for reads and writes
	// harmless is a last phase that may be carried out once more however late: it ends sections of its run, or lets chunks move. The removal of the document
	// behind it need not be durable: what other DDL has done to the names since is behind the removal in this shard's log, and lost with it (run.remove).
	harmless bool
	// opens means that others may use the names once the phase has begun, before the run has ended: what requests ask for then, the run has not done (joined).
	opens bool
	// event, unless nil, returns the event for change streams when the phase begins: it is logged in the unit of work that
	// writes the state document, so that it is reported once.
	event func() event
	// former are names of phases of earlier versions that have become part of this one.
	former []string
}

// event is a no-op entry in the oplog about a collection.
type event struct {
	ns   string
	uuid catalog.UUID
	doc  []byte
}

// errAlreadyDone is returned by check if there is nothing left to do: the command succeeds.
var errAlreadyDone = errors.New("already done")

// kinds maps a command's name to the parser that makes an operation from its stored form.
var kinds = map[string]func(cmd []byte) (operation, error){
	"_shardsvrDropCollection":   parseAs(func(m *msg.ShardDropCollection) operation { return &drop{req: m} }),
	"_shardsvrDropDatabase":     parseAs(func(m *msg.ShardDropDatabase) operation { return &dropDatabase{req: m} }),
	"_shardsvrRenameCollection": parseAs(func(m *msg.ShardRename) operation { return &rename{req: m} }),
	"_shardsvrMovePrimary":      parseAs(func(m *msg.ShardMovePrimary) operation { return &movePrimary{req: m} }),
	"_shardsvrCollMod":          parseAs(func(m *msg.ShardCollMod) operation { return &forward{kind: collModKind, req: &m.ShardCommand} }),
	"_shardsvrDropIndexes":      parseAs(func(m *msg.ShardDropIndexes) operation { return &forward{kind: dropIndexesKind, req: &m.ShardCommand} }),
	"_shardsvrConvertToCapped":  parseAs(func(m *msg.ShardConvertToCapped) operation { return &convert{req: m} }),
	"_shardsvrCreateIndexes": parseAs(func(m *msg.ShardCreateIndexes) operation {
		return &forward{kind: createIndexesKind, req: &m.ShardCommand}
	}),
	"_shardsvrRefineCollectionShardKey":      parseAs(func(m *msg.ShardRefine) operation { return &refine{req: m} }),
	"_shardsvrReshardCollection":             parseAs(func(m *msg.ShardReshard) operation { return &reshard{req: m} }),
	"_shardsvrUntrackUnsplittableCollection": parseAs(func(m *msg.ShardUntrack) operation { return &untrack{req: m} }),
	"_shardsvrShardCollection":               parseAs(func(m *msg.ShardShardCollection) operation { return &shard{req: m} }),
}

// Executes reports whether a command is one that coordinators execute: they compare its versions under its DDL locks.
func Executes(name string) bool { return kinds[name] != nil || name == "_shardsvrCreateCollection" }

// SentAgain reports whether a request for a coordinator may have been executed before, or is being executed: then it has that reply, even if new ones are refused.
func SentAgain(op *command.Op) bool {
	return Executes(op.Req.Spec.Name) && parseRequestID(op.Req.Body).again
}

// parseAs returns a parser for a command that is a message of type M.
func parseAs[M any, P interface {
	*M
	msg.Message
}](make func(P) operation) func([]byte) (operation, error) {
	return func(cmd []byte) (operation, error) {
		m := P(new(M))
		if err := msg.Parse(cmd, m); err != nil {
			return nil, err
		}
		return make(m), nil
	}
}

func parseOperation(cmd []byte) (operation, error) {
	parse := kinds[commandName(cmd)]
	if parse == nil {
		return nil, mongoerr.Newf(mongoerr.BadValue, "'%s' is not an operation", commandName(cmd))
	}
	return parse(cmd)
}
