package main

import (
	"math/rand"
	"time"
)

// pause is the pause of a load, or of what disturbs it, between two operations: it sets their rate, and nothing is expected to
// have happened after it. Waits are in internal/await.
func pause(d time.Duration) { time.Sleep(d) }

// pauseUpTo is a pause for a random time below most.
func pauseUpTo(rnd *rand.Rand, most time.Duration) { pause(time.Duration(rnd.Int63n(int64(most)))) }

// withoutServer is the pause of a client that has found no server, before it tries again.
func withoutServer() { pause(20 * time.Millisecond) }
