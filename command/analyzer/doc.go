// Package analyzer implements configureQueryAnalyzer and analyzeShardKey for routers and replica sets. It works entirely by commands;
// routers and replica sets differ only in where these are sent (Deployment).
//
// configureQueryAnalyzer checks the collection (inspect) and stores the configuration, which samplers then fetch (package sampling).
// analyzeShardKey measures the values of a key through an index (characteristics.go), and counts which ranges of it sampled queries would
// have gone to (distribution.go).
package analyzer
