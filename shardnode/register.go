package shardnode

import "github.com/shoaldb/shoal/command"

// register adds the node's commands to a table.
func (n *Node) register(t *command.Table) {
	t.Add(n.ddl.Specs()...)
	n.registerAdmin(t)
	t.Add(n.writes.Specs()...)
	t.Add(
		findSpec(n),
		writeTogetherSpec(n), n.noteSpec(),
		listCollectionsSpec(n), listDatabasesSpec(n), listIndexesSpec(n), collStatsSpec(n), dbStatsSpec(n), dataSizeSpec(n), dbHashSpec(n),
		validateSpec(n), validateDBMetadataSpec(n),
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
