//go:build !race

package router_test

// raceDetector reports that allocation counts are unreliable: pools drop items at random.
const raceDetector = false
