//go:build !race

package shardnode

// raceDetector reports that allocation counts are unreliable: pools drop items at random.
const raceDetector = false
