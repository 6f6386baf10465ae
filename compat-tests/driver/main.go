// The driver program runs the Go driver's own integration tests against bin/shoal and compares with what passed before.
//
//	go run . -shoal ../../bin/shoal [-rewrite] [sharded] [replset] [standalone] [secured]
//
// secured is a sharded cluster with authentication over TLS, started by the program that SECURED names (../go/secured). The
// driver comes from the module proxy. Only the names of its tests are kept here: passing-TOPOLOGY.txt lists those that pass,
// left-out.txt those that are not run, with reasons. A listed test that does not pass in three attempts fails the run; other
// failures are listed. -rewrite runs everything twice and lists what passed both times.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

const driver, version = "go.mongodb.org/mongo-driver", "v1.17.9"

// kinds maps topologies to their names in the driver's suite.
var kinds = map[string]string{"sharded": "sharded_cluster", "replset": "replica_set", "standalone": "server", "secured": "sharded_cluster"}

func main() {
	shoal := flag.String("shoal", "../../bin/shoal", "the server's binary")
	rewrite := flag.Bool("rewrite", false, "write the lists of passing tests anew")
	flag.Parse()
	topologies := flag.Args()
	if len(topologies) == 0 {
		topologies = []string{"sharded", "replset", "standalone"}
	}
	if err := run(*shoal, topologies, *rewrite); err != nil {
		fmt.Println("driver suite:", err)
		os.Exit(1)
	}
}

func run(shoal string, topologies []string, rewrite bool) error {
	shoal, err := filepath.Abs(shoal)
	if err != nil {
		return err
	}
	left, err := lines("left-out.txt")
	if err != nil {
		return err
	}
	units, err := build()
	if err != nil {
		return err
	}
	b := &bench{shoal: shoal, leftOut: left}
	first := b.all(units, topologies)
	if rewrite {
		return b.rewrite(first, b.all(units, topologies), topologies)
	}
	lost := 0
	for _, topology := range topologies {
		missing, err := b.judge(units, topology, first[topology])
		if err != nil {
			return err
		}
		lost += missing
	}
	if lost > 0 {
		return fmt.Errorf("%d tests that are listed as passing do not pass", lost)
	}
	return nil
}

// all runs every unit on every topology, each on a server of its own, three at a time: the tests wait more than they work.
func (b *bench) all(units []unit, topologies []string) map[string]results {
	out := map[string]results{}
	for _, t := range topologies {
		out[t] = results{}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 3)
	for _, u := range units {
		for _, t := range topologies {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				r := b.whole(u, t)
				mu.Lock()
				defer mu.Unlock()
				for name, verdict := range r {
					out[t][u.name+" "+name] = verdict
				}
			})
		}
	}
	wg.Wait()
	return out
}

// judge prints a topology's figures and runs the listed tests that did not pass again; it returns how many still fail.
func (b *bench) judge(units []unit, topology string, r results) (lost int, err error) {
	list, err := lines("passing-" + topology + ".txt")
	if err != nil {
		return 0, fmt.Errorf("%w: -rewrite makes it", err)
	}
	missing := r.without(list)
	for try := 0; try < 2 && len(missing) > 0; try++ {
		for _, u := range units {
			for name, verdict := range b.some(u, topology, missing) {
				if verdict == "PASS" {
					r[u.name+" "+name] = verdict
				}
			}
		}
		missing = r.without(list)
	}
	fmt.Printf("driver suite on %s: %d passed, %d failed, %d skipped by the driver; %d listed, %d of them lost\n",
		topology, len(r.named("PASS")), len(r.named("FAIL")), len(r.named("SKIP")), len(list), len(missing))
	for _, name := range missing {
		fmt.Println("  lost:", name)
	}
	for _, name := range r.named("FAIL") {
		if !slices.Contains(list, name) {
			fmt.Println("  failed, and is not listed:", name)
		}
	}
	return len(missing), nil
}

func (b *bench) rewrite(first, second map[string]results, topologies []string) error {
	for _, t := range topologies {
		var both []string
		for _, name := range first[t].named("PASS") {
			if second[t][name] == "PASS" {
				both = append(both, name)
			}
		}
		slices.Sort(both)
		fmt.Printf("driver suite on %s: %d and %d passed, %d both times\n", t, len(first[t].named("PASS")), len(second[t].named("PASS")), len(both))
		for _, name := range append(first[t].named("FAIL"), second[t].named("FAIL")...) {
			fmt.Println("  failed:", name)
		}
		if err := os.WriteFile("passing-"+t+".txt", []byte(strings.Join(both, "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// lines reads a list; lines that begin with # are comments.
func lines(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" && l[0] != '#' {
			out = append(out, l)
		}
	}
	return out, nil
}
