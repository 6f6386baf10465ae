package mongoerr

// SearchIndexesText is the error text of commands and stages on search indexes on a server without a search service.
const SearchIndexesText = "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional configuration. " +
	"Please connect to Atlas or an AtlasCLI local deployment to enable. For more information on how to connect, see " +
	"https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs."
