package msg

// All returns an empty message of each type.
func All() []Message {
	return []Message{
		new(CreateDatabase), new(CreateDatabaseReply), new(AddShard), new(RemoveShard), new(TransitionFromDedicated), new(TransitionToDedicated),
		new(CommitShardCollection), new(ShardFound), new(DropCollection), new(RenameMetadata), new(RemoveDatabase), new(ShardDropDatabase), new(DropDatabaseFound), new(ShardRename), new(RenameFound),
		new(ShardShardCollection), new(ShardMovePrimary), new(MovePrimaryFound), new(CommitMovePrimary), new(MovePrimaryStore), new(MovePrimaryStoreReply), new(MovePrimaryForget), new(AdoptSessions),
		new(ShardRefine), new(RefineFound), new(CommitRefine), new(ValidateShardKey), new(CheckConsistency), new(CheckConsistencyReply),
		new(ShardCreate), new(ShardConvertToCapped), new(ConvertFound), new(ConvertToCappedParticipant), new(ReplaceUnsplittable), new(ShardCollMod), new(ShardDropIndexes), new(ShardCreateIndexes), new(CheckCommand), new(CheckCommandReply), new(ShardUntrack), new(UntrackFound), new(AllowMigrations),
		new(ResetPlacementHistory), new(GetHistoricalPlacement), new(GetHistoricalPlacementReply), new(ForwardFound),
		new(CommitChunkSplit), new(CommitChunksMerge), new(MergeAllChunksOnShard), new(CommitChunkMigration), new(EnsureChunkVersion), new(MoveRange), new(ClearJumboFlag),
		new(BalancerStart), new(BalancerStop), new(BalancerStatus), new(BalancerCollectionStatus), new(ConfigureBalancing),
		new(AddShardToZone), new(RemoveShardFromZone), new(UpdateZoneKeyRange),
		new(RemoveCollection), new(SetAllowMigrations), new(ShardDropCollection), new(DropFound),
		new(HoldsCriticalSection), new(HoldsCriticalSectionReply), new(RunMessage), new(PauseMigrations), new(ResumeMigrations),
		new(Join), new(CreateCollectionParticipant), new(RenameCollectionParticipant), new(DropCollectionParticipant), new(DropDatabaseParticipant),
		new(NotifyShardingEvent), new(ParticipantBlock), new(EndLeftSections),
		new(FlushRoutingTable), new(FlushDatabase), new(FlushRoutingTableDurably), new(FlushDatabaseDurably), new(FlushReply), new(CheckParticipant), new(CheckParticipantReply), new(SetClusterParameter), new(SetOneParameter), new(SetUserWriteBlock), new(ShardSetUserWriteBlock), new(SetFeatureVersion), new(ShardMoveRange), new(ShardMoveRangeReply), new(BalancingStats), new(BalancingStatsReply), new(WriteTogether),
		new(RecvChunkStart), new(RecvChunkStatus), new(RecvChunkStatusReply), new(RecvChunkCommit), new(RecvChunkCommitReply), new(RecvChunkReleaseCritSec), new(RecvChunkAbort),
		new(MigrateClone), new(MigrateCloneReply), new(TransferMods), new(TransferModsReply),
		new(GetNextSessionMods), new(GetNextSessionModsReply), new(MigrationDecision), new(RecreateRangeDeletionTasks),
		new(CoordinateCommit), new(PrepareTransaction), new(PrepareTransactionReply), new(CommitTransaction), new(AbortTransaction),
		new(ShardReshard), new(ReshardFound), new(ConfigReshard), new(ConfigReshardReply), new(ForgetReshard), new(AbortReshard), new(CommitReshard), new(CleanupReshard),
		new(ReshardDonate), new(ReshardDonateReply), new(ReshardReceive), new(ReshardProgress), new(ReshardProgressReply), new(ReshardFinish), new(ReshardEnd),
		new(ReshardFetchDocuments), new(ReshardFetchDocumentsReply), new(ReshardFetchChanges), new(ReshardFetchChangesReply),
		new(ReshardFetchSessions), new(ReshardFetchSessionsReply),
		new(RaftStep), new(RaftStepReply), new(IsSelf), new(IsSelfReply), new(Heartbeat), new(AppendOplogNote),
		new(UserCacheGeneration), new(UserCacheGenerationReply), new(RefreshQueryAnalyzer), new(RefreshQueryAnalyzerReply), new(AutoSplitVector), new(AutoSplitVectorReply),
		new(DataSize), new(DataSizeReply), new(SplitVector), new(SplitVectorReply), new(ListCollections), new(ListIndexes),
		new(Find), new(GetMore), new(KillCursors), new(Count), new(Aggregate), new(Explain), new(ListDatabases), new(Create), new(CollMod), new(Drop), new(Rename), new(RenameIfMatch), new(CreateIndexes), new(DropIndex), new(Insert), new(Update), new(FindAndModify), new(Delete), new(CollStats), new(SetStatus), new(SetConfig), new(SplitChunk),
		new(Hello), new(Ping), new(Authenticate), new(SASLStart), new(SASLContinue), new(RefreshSessions), new(KillSessions), new(KillAllSessions), new(KillSessionsByPattern), new(KillOp), new(GetClusterParameter), new(CreateUser),
		new(NoteMovedWrite), new(StatementExecuted), new(StatementExecutedReply),
	}
}
