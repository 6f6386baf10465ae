package querytest

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// Rounds runs f with one seed after the other for about the given time or, if SHOAL_PROPERTY_ROUNDS is set, that many
// times. SHOAL_PROPERTY_SEED is the first seed: to repeat a failure, use the seed at the end of its test's name and one
// round. It stops at the first round that fails.
func Rounds(t *testing.T, d time.Duration, f func(t *testing.T, seed uint64)) {
	t.Helper()
	seed, rounds := uint64(1), 0
	if s, err := strconv.ParseUint(os.Getenv("SHOAL_PROPERTY_SEED"), 10, 64); err == nil {
		seed = s
	}
	if n, err := strconv.Atoi(os.Getenv("SHOAL_PROPERTY_ROUNDS")); err == nil {
		rounds = n
	}
	if testing.Short() {
		d /= 5
	}
	end := time.Now().Add(d)
	for n := 0; rounds == 0 && time.Now().Before(end) || n < rounds; n++ {
		s := seed + uint64(n)
		if !t.Run(fmt.Sprint("seed=", s), func(t *testing.T) { f(t, s) }) {
			return
		}
	}
}
