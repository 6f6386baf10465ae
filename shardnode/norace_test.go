//go:build !race

package shardnode

// raceDetector reports whether the race detector is on: pools then drop items at random, and allocation counts are unreliable.
const raceDetector = false
