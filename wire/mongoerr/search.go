package mongoerr

// SearchIndexesText is what commands and stages over search indexes answer on a server that has no search service.
const SearchIndexesText = "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional configuration. " +
	"Please connect to Atlas or an AtlasCLI local deployment to enable. For more information on how to connect, see " +
	"https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs."
