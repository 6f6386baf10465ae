// Package analyzer implements configureQueryAnalyzer and analyzeShardKey for routers and replica sets. It works by commands alone: what
// differs between them is where commands go (Deployment).
//
// configureQueryAnalyzer checks the collection (inspect) and stores the configuration, from where samplers fetch it (package sampling).
// analyzeShardKey measures the values of a key through an index (characteristics.go), and counts which ranges of it sampled queries
// would have gone to (distribution.go).
package analyzer
