package shardnode

import "testing"

// The cursors of a killed router kept the range deleter waiting until they timed out, and those with noCursorTimeout for ever: nobody else knows them. A router
// that is away for less than a minute finds its cursors again, and clients' cursors are not affected.
func TestCursorsOfALostRouterEnd(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`)
	router, process := n.fromRouter()
	const find = `{"find": "c", "batchSize": 1, "noCursorTimeout": true}`
	router.ok("d", find)
	n.ok("d", find)
	table := &n.srv.Node.cursors
	open := func() int64 {
		total, _, _ := table.open()
		return total
	}
	look := func(times int, connected bool) {
		for range times {
			table.expireLost(func(p [16]byte) bool {
				if p != process {
					t.Errorf("asked about process %x", p)
				}
				return connected
			})
		}
	}
	look(lostAfter-1, false)
	look(1, true)
	look(lostAfter-1, false)
	if open() != 2 {
		t.Errorf("%d cursors are open", open())
	}
	look(1, false)
	if open() != 1 {
		t.Errorf("%d cursors are open after the router was away for long", open())
	}
}
