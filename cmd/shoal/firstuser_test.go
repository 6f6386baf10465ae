package main

import (
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The localhost exception allows one first user, however many are created at the same time, and through however many routers.
func TestOneFirstUser(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuardedWith(t, topology, func(c *config) { c.Routers = 2 })
			const clients = 12
			codes := make([]int, clients)
			var ready, done sync.WaitGroup
			begin := make(chan struct{})
			for i := range clients {
				c := g.client("", "", "")
				ready.Add(1)
				done.Go(func() {
					_, _, _ = run1(c, "admin", "ping", 1) // connects
					ready.Done()
					<-begin
					_, codes[i], _ = run1(c, "admin", "createUser", fmt.Sprint("first", i), "pwd", "secret", "roles", bson.A{"root"})
				})
			}
			ready.Wait()
			close(begin)
			done.Wait()
			made := 0
			for _, code := range codes {
				if code == 0 {
					made++
				} else if code != int(mongoerr.Unauthorized) {
					t.Errorf("code %d", code)
				}
			}
			if made != 1 {
				t.Errorf("%d first users were made: %v", made, codes)
			}
		})
	}
}
