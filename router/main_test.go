package router_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// parallelTests is the number of parallel tests that run at a time: they wait for timers and for each other's phases most of the time. Those that do as much as they
// can in a given time, and those that measure memory, are not parallel, and so run before all of these, alone.
const parallelTests = 6

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(max(parallelTests, runtime.GOMAXPROCS(0))))
	}
	os.Exit(m.Run())
}
