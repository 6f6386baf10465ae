//go:build !race

package shardnode

// raceDetector says that allocations are not what they are otherwise: pools forget at random.
const raceDetector = false
