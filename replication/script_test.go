package replication

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestMembership runs the scripts of testdata/membership: histories of a set whose members are added, removed, crash and are
// cut off, in simulated time. A member is named by a letter; e stands for the host e:1, whose _id is 4. The commands:
//
//	found a b c             start these members and initiate the set
//	start d                 bring a member up with what is on its disk
//	crash b [wipe]          kill members; with wipe they lose their disks
//	cut a b | heal          separate members from all others; undo every separation
//	lead a                  have a member step up
//	reconfigure [force] [at=a] [timeout=5s]
//	                        declare the members of the input, a line for each: "a [priority=2] [votes=0] [id=7]". The member
//	                        that is asked is the primary unless at names one
//	write [w=2] [at=a]      commit a value, by default with a majority
//	wait 5s
//	settle                  wait until every member that is to vote does and all have the same content
//	status                  per member that runs: role and, unless it was removed, version of its configuration, its members, the voters of raft's
//	                        configuration, and those of the configuration before while a change is under way
//	lists                   per member that runs: the values that it has
//
// The checks of the simulation run alongside: one primary a term, the same entry at an index everywhere, acknowledged writes at
// every later primary. With -rewrite the answers are written to the scripts.
func TestMembership(t *testing.T) {
	datadriven.Walk(t, "testdata/membership", func(t *testing.T, path string) {
		simulate(t, 1, five, func(s *simulation) {
			datadriven.RunTest(s.t, path, func(t *testing.T, d *datadriven.TestData) string { return (&script{s, d}).run(t) })
		})
	})
}

// script is one command of a script.
type script struct {
	s *simulation
	d *datadriven.TestData
}

func (x *script) run(t *testing.T) string {
	s := x.s
	var names []string // arguments that are members
	for _, a := range x.d.CmdArgs {
		if len(a.Vals) == 0 && len(a.Key) == 1 {
			names = append(names, a.Key+":1")
		}
	}
	switch x.d.Cmd {
	case "found":
		s.found(simConfig(2*time.Second, names...))
		s.settle(10 * time.Second)
		s.converge(10 * time.Second)
	case "start":
		for _, h := range names {
			s.start(h)
		}
	case "crash":
		for _, h := range names {
			s.crash(h, x.d.HasArg("wipe"))
		}
	case "cut":
		s.divide(names...)
	case "heal":
		s.unite()
	case "lead":
		return answer(s.nodes[names[0]].r.StepUp(background))
	case "reconfigure":
		return x.reconfigure(t)
	case "write":
		return x.write(t)
	case "wait":
		for _, a := range x.d.CmdArgs {
			time.Sleep(parsePause(t, a.Key))
		}
	case "settle":
		s.awaitPrimary(20 * time.Second)
		x.whole(20 * time.Second)
		s.converge(20 * time.Second)
	case "status":
		return x.status()
	case "lists":
		var out strings.Builder
		for _, n := range s.alive() {
			list := slices.DeleteFunc(slices.Clone(n.m.state().list), func(v string) bool { return v[0] != 'w' }) // not the set's own entries
			fmt.Fprintf(&out, "%s %s\n", letter(n.host), strings.Join(list, " "))
		}
		return out.String()
	default:
		x.d.Fatalf(t, "unknown command %s", x.d.Cmd)
	}
	return ""
}

// whole waits until every member of the primary's configuration has that configuration, votes where it is to, and no change
// is under way, and those that are left out know it.
func (x *script) whole(limit time.Duration) {
	s := x.s
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		p := s.primary()
		done := p != nil
		if done {
			c := p.r.Config()
			for i := range c.Members {
				n := s.nodes[c.Members[i].Host]
				done = done && !n.dead && !c.Newer(n.r.Config()) && !n.r.growing.Load() && n.r.role() != Removed &&
					len(n.r.rlog.conf().state.GetVotersOutgoing()) == 0
			}
			for _, n := range s.alive() {
				done = done && (c.ByHost(n.host) != nil || !n.r.hasLog() || n.r.role() == Removed)
			}
		}
		if done {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("the set is not whole after %v\n%s", limit, s.dump())
		}
	}
}

// asked is the member that a command goes to.
func (x *script) asked(t *testing.T) *simNode {
	at := ""
	if x.d.MaybeScanArgs(t, "at", &at); at != "" {
		return x.s.nodes[at+":1"]
	}
	return x.s.awaitPrimary(20 * time.Second)
}

func (x *script) limit(t *testing.T) (context.Context, context.CancelFunc) {
	pause := "5s"
	x.d.MaybeScanArgs(t, "timeout", &pause)
	return context.WithTimeout(background, parsePause(t, pause))
}

func (x *script) reconfigure(t *testing.T) string {
	n := x.asked(t)
	c := n.r.Config().Clone()
	c.Version++
	if x.d.HasArg("force") {
		c.Version += 1000
	}
	old := c.Members
	c.Members = nil
	for line := range strings.Lines(x.d.Input) {
		f := strings.Fields(line)
		m := MemberConfig{ID: int(f[0][0] - 'a'), Host: f[0] + ":1", Priority: 1, Votes: 1, BuildIndexes: true}
		if at := slices.IndexFunc(old, func(o MemberConfig) bool { return o.Host == m.Host }); at >= 0 {
			m = old[at]
		}
		for _, set := range f[1:] {
			var value int
			key, _, _ := strings.Cut(set, "=")
			if _, err := fmt.Sscanf(set, key+"=%d", &value); err != nil {
				x.d.Fatalf(t, "%s: %v", set, err)
			}
			switch key {
			case "priority":
				m.Priority = float64(value)
			case "votes":
				m.Votes = value
			case "id":
				m.ID = value
			default:
				x.d.Fatalf(t, "unknown setting %s", set)
			}
		}
		c.Members = append(c.Members, m)
	}
	ctx, cancel := x.limit(t)
	defer cancel()
	return answer(n.r.Reconfigure(ctx, c, x.d.HasArg("force")))
}

func (x *script) write(t *testing.T) string {
	wc := Majority
	if x.d.HasArg("w") {
		x.d.ScanArgs(t, "w", &wc.W)
		wc.Timeout = 5 * time.Second
	}
	ctx, cancel := x.limit(t)
	defer cancel()
	var at storage.Timestamp
	at, err := x.s.write(ctx, x.asked(t), wc)
	if err != nil && at != 0 {
		return "committed, " + answer(err)
	}
	return answer(err)
}

func (x *script) status() string {
	var out strings.Builder
	for _, n := range x.s.alive() {
		c := n.r.Config()
		fmt.Fprintf(&out, "%s %v", letter(n.host), n.r.role())
		if c == nil || n.r.role() == Removed { // which configuration it had last depends on how it heard
			out.WriteByte('\n')
			continue
		}
		fmt.Fprintf(&out, " version %d members %s", c.Version, memberList(c))
		state := n.r.rlog.conf().state
		fmt.Fprintf(&out, " votes %s", voterList(state.GetVoters()))
		if old := state.GetVotersOutgoing(); len(old) > 0 {
			fmt.Fprintf(&out, " and before %s", voterList(old))
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func letter(host string) string { return strings.TrimSuffix(host, ":1") }

func memberList(c *SetConfig) string {
	all := make([]string, 0, len(c.Members))
	for i := range c.Members {
		all = append(all, letter(c.Members[i].Host))
	}
	return "{" + strings.Join(all, " ") + "}"
}

// voterList names raft's voters by the letters that belong to their _id.
func voterList(ids []uint64) string {
	set := map[string]bool{}
	for _, id := range ids {
		set[string(rune('a'+id-1))] = true
	}
	return "{" + strings.Join(slices.Sorted(maps.Keys(set)), " ") + "}"
}

// answer is ok, or the error by its code: messages may name terms and versions.
func answer(err error) string {
	if err == nil {
		return "ok\n"
	}
	if code := mongoerr.CodeOf(err); code != mongoerr.InternalError {
		return code.Name() + "\n"
	}
	return err.Error() + "\n"
}

func parsePause(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
