package shardnode

import "github.com/shoaldb/shoal/command"

// register adds the node's commands to a table.
func (n *Node) register(t *command.Table) {
	n.registerDDL(t)
	n.registerAdmin(t)
	t.Add(
		findSpec(n), insertSpec(n), updateSpec(n), deleteSpec(n), findAndModifySpec(n), bulkWriteSpec(n),
		writeTogetherSpec(n), dropCollectionParticipantSpec(n), dropDatabaseParticipantSpec(n), n.noteSpec(),
		countSpec(n), distinctSpec(n), aggregateSpec(n), explainSpec(n),
		command.Spec{
			Name: "getMore", Roles: command.All, Kind: command.Read, API: true, Txn: true, TimeToWait: true, Run: n.runGetMore,
			Fields: []command.Field{
				command.Req("collection", command.TString), command.Opt("batchSize", command.TNumber), command.Opt("term", command.TInt),
				command.Opt("lastKnownCommittedOpTime", command.TObject), command.Opt("includeQueryStatsMetrics", command.TSafeBool),
			},
		},
		command.Spec{
			Name: "killCursors", Roles: command.All, Kind: command.Read, Namespace: true, API: true, Txn: true, Run: n.runKillCursors,
			Fields: []command.Field{command.Req("cursors", command.TArray)},
		},
	)
}
